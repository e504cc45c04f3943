"""The learned controller: a policy that decides like any other controller."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from esper.leyline import InputError, SlotConfig
from esper.nissa.state_files import checked_keys, checked_list, checked_tensor
from esper.simic.agent.checkpoint import load_checkpoint, naming
from esper.simic.agent.network import Policy
from esper.simic.agent.types import Hidden
from esper.simic.control import esper_action_spec
from esper.simic.control.action_masks import move_masks, to_device
from esper.simic.control.observing import observer, state_dim
from esper.simic.training.run_folder import RunFolder
from esper.simic.training.world import masks_by_head
from esper.tolaria import Situation


class LearnedController:
    """The deterministic decisions of a policy."""

    name = "learned"

    def __init__(self, policy: Policy, trained_on: tuple[str, ...] | None = None) -> None:
        """`trained_on` is what its hosts passed on (`SiteShape.carries`); None if that is not known."""
        self.policy = policy
        self.trained_on = trained_on
        self._hidden: Hidden = policy.initial_hidden(1)

    @property
    def num_slots(self) -> int | None:
        """How many slots a host must have; None: any number."""
        return None if self.policy.network.ARCHITECTURE == "pointing" else self.policy.spec.head("slot").size

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # nothing here is random
        """Forget everything."""
        self._hidden = self.policy.initial_hidden(num_hosts)

    def state_dict(self) -> dict[str, list[Tensor]]:
        """What it remembers of the episode."""
        return {"hidden": [part.clone() for part in self._hidden]}

    def load_state_dict(self, state: Mapping[str, list[Tensor]]) -> None:
        """Remember it again; a state that does not fit changes nothing."""
        hidden = checked_list(checked_keys(state, ("hidden",), "controller")["hidden"], "controller.hidden", 2)
        num_hosts = hidden[0].shape[1] if isinstance(hidden[0], Tensor) and hidden[0].dim() == 3 else 1
        network = self.policy.network
        for part in hidden:
            shape = (network.lstm_layers, num_hosts, network.lstm_hidden_dim)
            checked_tensor(part, "controller.hidden", shape, torch.float32)
        h, c = (part.to(self.policy.device) for part in hidden)
        self._hidden = (h, c)

    @torch.inference_mode()
    def decide(self, situation: Situation) -> Tensor:
        """The most probable legal action of each host."""
        slots = situation.table.shape[1]
        if self.num_slots not in (None, slots):
            raise InputError(f"this controller was trained for {self.num_slots} slots; the host has {slots}")
        policy = self.policy.for_spec(esper_action_spec(SlotConfig.of_size(slots)))
        observations = policy.normalized(to_device(observer(policy.network.ARCHITECTURE)(situation), policy.device))
        masks = move_masks(masks_by_head(situation.masks), policy.device)
        decision = policy.act(observations, masks, self._hidden, deterministic=True)
        self._hidden = decision.hidden
        return decision.actions.cpu().clone()


def load_controller(path: Path, device: str = "cpu") -> LearnedController:
    """The controller in a checkpoint, or the best one in a run folder."""
    # Of a run folder, the best by validation; before the first validation, the newest.
    if path.is_dir():
        folder = RunFolder(path)
        found = folder.best if folder.best.exists() else folder.newest()
        if found is None:
            raise InputError(f"{path} holds no checkpoint; name a run folder of `esper train` or a checkpoint file")
        path = found
    agent, _ = load_checkpoint(path, device)
    with naming(path):
        slots = agent.slot_config
        expected = state_dim(agent.config.architecture, slots.num_slots)
        if agent.spec != esper_action_spec(slots) or agent.state_dim != expected:
            raise InputError("it holds an agent for another world than growing networks")
        if agent.policy.normalizer is None:
            raise InputError("it holds an agent without its normaliser, which is no controller")
    return LearnedController(agent.policy)
