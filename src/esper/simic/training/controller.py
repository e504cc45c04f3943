"""The learned controller: an agent with its normaliser, deciding like any other controller."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.leyline import InputError
from esper.nissa.state_checks import checked_keys, checked_list, checked_tensor
from esper.simic.agent.checkpoint import load_checkpoint, naming
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import Hidden
from esper.simic.control import RunningMeanStd, esper_action_spec, observation_width, signals_to_features
from esper.simic.control.normalization import check_statistics
from esper.simic.control.placing import move, move_masks
from esper.simic.training.run_folder import RunFolder
from esper.simic.training.world import masks_by_head
from esper.tolaria import Situation


class LearnedController:
    """The deterministic policy of an agent, whose normaliser is on the agent's device."""

    name = "learned"

    def __init__(self, agent: PPOAgent, normalizer: RunningMeanStd) -> None:
        self.agent = agent
        self._normalizer = normalizer
        self._hidden: Hidden = agent.initial_hidden(1)

    @property
    def num_slots(self) -> int:
        """How many slots a host must have."""
        return self.agent.slot_config.num_slots

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # nothing here is random
        """Forget everything."""
        self._hidden = self.agent.initial_hidden(num_hosts)

    def state_dict(self) -> dict[str, list[Tensor]]:
        """What it remembers of the episode."""
        return {"hidden": [part.clone() for part in self._hidden]}

    def load_state_dict(self, state: Mapping[str, list[Tensor]]) -> None:
        """Remember it again; a state that does not fit changes nothing."""
        hidden = checked_list(checked_keys(state, ("hidden",), "controller")["hidden"], "controller.hidden", 2)
        num_hosts = hidden[0].shape[1] if isinstance(hidden[0], Tensor) and hidden[0].dim() == 3 else 1
        shape = (self.agent.lstm_layers, num_hosts, self.agent.lstm_hidden_dim)
        for part in hidden:
            checked_tensor(part, "controller.hidden", shape, torch.float32)
        h, c = (part.to(self.agent.device) for part in hidden)
        self._hidden = (h, c)

    @torch.inference_mode()
    def decide(self, situation: Situation) -> Tensor:
        """The most probable legal action of each host."""
        slots, expected = situation.table.shape[1], self.agent.slot_config.num_slots
        if slots != expected:
            raise InputError(f"this controller was trained for {expected} slots; the host has {slots}")
        observations = self._normalizer.normalize(move(signals_to_features(situation), self.agent.device))
        masks = move_masks(masks_by_head(situation.masks), self.agent.device)
        decision = self.agent.act(observations, masks, self._hidden, deterministic=True)
        self._hidden = decision.hidden
        return decision.actions.cpu().clone()


def load_controller(path: Path, device: str = "cpu") -> LearnedController:
    """The controller in a checkpoint, or the best one in a run folder."""
    file = path
    if path.is_dir():
        folder = RunFolder(path)
        found = folder.best if folder.best.exists() else folder.newest()
        if found is None:
            raise InputError(f"{path} holds no checkpoint; name a run folder of `esper train` or a checkpoint file")
        file = found
    agent, extra = load_checkpoint(file, device)
    with naming(file):
        if agent.spec != esper_action_spec(agent.slot_config) or agent.state_dim != observation_width(
            agent.slot_config
        ):
            raise InputError("it holds an agent for another world than growing networks")
        if "normalizer" not in extra:
            raise InputError("it holds an agent without its normaliser, which is no controller")
        check_statistics(extra["normalizer"], (agent.state_dim,), "extra.normalizer")
    return LearnedController(agent, restore_normalizer(extra["normalizer"], agent))


def restore_normalizer(state: dict[str, Any], agent: PPOAgent) -> RunningMeanStd:
    """The normaliser of an agent's observations from its saved state."""
    normalizer = fresh_normalizer(agent)
    normalizer.load_state_dict(state)
    return normalizer


def fresh_normalizer(agent: PPOAgent) -> RunningMeanStd:
    """A normaliser of an agent's observations that has seen nothing."""
    return RunningMeanStd((agent.state_dim,), agent.device)
