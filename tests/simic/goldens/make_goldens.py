"""Makes `peers.npz`: what torchrl and sb3-contrib compute on random data, for our own code to be compared with.

pip install -c constraints.txt -e '.[peers]'
python tests/simic/goldens/make_goldens.py
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.distributions import MaskableCategorical
from torch import Tensor
from torchrl.modules.distributions import MaskedCategorical
from torchrl.objectives.value.functional import generalized_advantage_estimate

GAMMA, GAE_LAMBDA = 0.97, 0.9


def gae(generator: torch.Generator) -> dict[str, Tensor]:
    """Six rows of 40 steps with random terminations and truncations, by torchrl."""
    shape = (6, 40)
    rewards, values, bootstrap = (torch.randn(shape, generator=generator) for _ in range(3))
    dones = torch.rand(shape, generator=generator) < 0.15
    truncated = dones & (torch.rand(shape, generator=generator) < 0.5)
    cut = truncated.clone()
    cut[:, -1] |= ~dones[:, -1]
    next_values = torch.where(cut, bootstrap, values.roll(-1, 1))
    columns = [tensor.unsqueeze(-1) for tensor in (values, next_values, rewards, dones | cut, dones & ~truncated)]
    advantages, returns = generalized_advantage_estimate(GAMMA, GAE_LAMBDA, *columns[:3], *columns[3:])
    return {
        "rewards": rewards,
        "values": values,
        "bootstrap": bootstrap,
        "dones": dones,
        "truncated": truncated,
        "advantages": advantages.squeeze(-1),
        "returns": returns.squeeze(-1),
    }


def masked(generator: torch.Generator) -> dict[str, Tensor]:
    """Two hundred masked distributions over seven actions, by both peers."""
    logits = 3.0 * torch.randn(200, 7, generator=generator)
    mask = torch.rand(200, 7, generator=generator) < 0.5
    mask[torch.arange(200), torch.randint(7, (200,), generator=generator)] = True
    actions = torch.multinomial(mask.float(), 1, generator=generator).squeeze(-1)
    result = {"logits": logits, "mask": mask, "actions": actions}
    makers: dict[str, Any] = {
        "sb3": lambda x: MaskableCategorical(logits=x, masks=mask.numpy()),
        "torchrl": lambda x: MaskedCategorical(logits=x, mask=mask),
    }
    for peer, make in makers.items():
        leaf = logits.clone().requires_grad_()
        log_probs = make(leaf).log_prob(actions)
        log_probs.sum().backward()
        assert leaf.grad is not None
        result |= {f"{peer}_log_prob": log_probs.detach(), f"{peer}_log_prob_grad": leaf.grad}
        leaf = logits.clone().requires_grad_()
        entropy = make(leaf).entropy()
        entropy.sum().backward()
        assert leaf.grad is not None
        result |= {f"{peer}_entropy": entropy.detach(), f"{peer}_entropy_grad": leaf.grad}
    return result


if __name__ == "__main__":
    source = torch.Generator().manual_seed(0)
    goldens = {f"gae_{name}": tensor for name, tensor in gae(source).items()}
    goldens |= {f"masked_{name}": tensor for name, tensor in masked(source).items()}
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in goldens.items()}
    np.savez_compressed(Path(__file__).parent / "peers.npz", **arrays)
