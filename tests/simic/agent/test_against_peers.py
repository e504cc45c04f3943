"""GAE and masked distributions against torchrl and sb3-contrib; `goldens/make_goldens.py` made the numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.simic.agent import PolicyStep, TamiyoRolloutBuffer
from esper.simic.control import MaskedCategorical
from esper_lab.worlds import one_head

GAMMA, GAE_LAMBDA = 0.97, 0.9


@pytest.fixture(scope="module")
def goldens() -> dict[str, Tensor]:
    with np.load(Path(__file__).parents[1] / "goldens" / "peers.npz") as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


def test_advantages_and_returns_equal_torchrl(goldens: dict[str, Tensor]) -> None:
    names = ("rewards", "values", "bootstrap", "dones", "truncated")
    rewards, values, bootstrap, dones, truncated = (goldens[f"gae_{name}"] for name in names)
    envs, steps = rewards.shape
    buffer = TamiyoRolloutBuffer(
        state_dim=1, num_envs=envs, max_steps=steps, lstm_hidden_dim=1, action_spec=one_head(2)
    )
    state = torch.zeros(1, envs, 1)
    for step in range(steps):
        decision = PolicyStep(
            torch.zeros(envs, 1, dtype=torch.long), torch.zeros(envs, 1), values[:, step], (state, state)
        )
        buffer.add_step(
            torch.zeros(envs, 1),
            buffer.spec.all_legal((envs,)),
            (state, state),
            decision,
            rewards[:, step],
            dones[:, step],
            truncated[:, step],
            bootstrap_values=bootstrap[:, step],
        )
    buffer.compute_advantages_and_returns(GAMMA, GAE_LAMBDA)
    assert truncated.any()
    assert (dones & ~truncated).any()
    torch.testing.assert_close(buffer.advantages, goldens["gae_advantages"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(buffer.returns, goldens["gae_returns"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("peer", ["sb3", "torchrl"])
@pytest.mark.parametrize("quantity", ["log_prob", "entropy"])
def test_masked_categorical_and_its_gradient_equal_the_peer(
    goldens: dict[str, Tensor], peer: str, quantity: str
) -> None:
    logits = goldens["masked_logits"].clone().requires_grad_()
    distribution = MaskedCategorical(logits, goldens["masked_mask"])
    ours = distribution.log_prob(goldens["masked_actions"]) if quantity == "log_prob" else distribution.entropy()
    ours.sum().backward()
    torch.testing.assert_close(ours.detach(), goldens[f"masked_{peer}_{quantity}"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits.grad, goldens[f"masked_{peer}_{quantity}_grad"], atol=1e-5, rtol=1e-5)
