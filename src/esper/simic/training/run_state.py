"""What a checkpoint holds beside the agent: how far the run is, and all that going on bit for bit needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, get_type_hints

import torch
from torch import Tensor

from esper.leyline import InputError, Op
from esper.leyline.checks import has_type
from esper.nissa.events import RoundCompleted
from esper.nissa.state_checks import (
    LARGEST_NUMBER,
    checked_keys,
    checked_list,
    checked_number,
    checked_tensor,
    checked_whole,
    shown,
)
from esper.simic.config import TrainingConfig

BASELINES = ("never", "heuristic")
"""Controllers that are measured on the validation seeds before a run begins."""
_KEPT = [spec.name for spec in fields(RoundCompleted) if spec.name != "seconds"]
_ROUND_FIELDS = {name: hint for name, hint in get_type_hints(RoundCompleted).items() if name in _KEPT}
"""What the history keeps of a round, by its type."""


def history_entry(record: RoundCompleted) -> dict[str, Any]:
    """A round as the history keeps it: without its seconds, because no two runs agree on them."""
    return {name: getattr(record, name) for name in _ROUND_FIELDS}


@dataclass(frozen=True, slots=True)
class RunState:
    """A run between two rounds, as tensors and built-in types."""

    round: int
    """Rounds that are over."""
    phase: int
    """Phases of the curriculum that are over; a run never goes back to one, even if it is given more rounds."""
    rng: Tensor
    """State of torch's generator."""
    best: float
    """Mean objective of the best validation so far; minus infinity before the first one."""
    lessons: int
    """Rounds with a teacher that are over."""
    baselines: dict[str, dict[str, float]]
    """Per baseline and task: objective on the validation seeds; empty before they are measured."""
    history: list[dict[str, Any]]
    """One entry per round."""
    instruments: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    @classmethod
    def of(cls, extra: object, config: TrainingConfig) -> Self:
        """The inverse of `to_dict`; what a run with this config cannot have left is refused, and its place named."""
        state = checked_keys(extra, [spec.name for spec in fields(cls)], "extra")
        checked_whole(state["round"], "extra.round", 0, config.rounds)
        checked_whole(state["phase"], "extra.phase", 0, len(config.world.curriculum))
        checked_whole(state["lessons"], "extra.lessons", 0, config.lessons.rounds)
        if not isinstance(state["best"], float) or not state["best"] < math.inf:
            raise InputError(f"extra.best must be a number; got {shown(state['best'])}")
        # The parts that have a shape of their own.
        _check_generator(state["rng"])
        _check_baselines(state["baselines"], config)
        _check_history(state["history"], state["round"], config)
        _check_instruments(state["instruments"])
        return cls(**state)


def _check_generator(state: object) -> None:
    tensor = checked_tensor(state, "extra.rng", torch.get_rng_state().shape, torch.uint8)
    try:
        torch.Generator().set_state(tensor)
    except RuntimeError:
        raise InputError("extra.rng is no state of torch's generator") from None


def _check_baselines(baselines: object, config: TrainingConfig) -> None:
    if isinstance(baselines, dict) and not baselines:
        return  # they were not measured yet
    for name, by_task in checked_keys(baselines, BASELINES, "extra.baselines").items():
        for task, score in checked_keys(by_task, config.world.tasks, f"extra.baselines.{name}").items():
            checked_number(score, f"extra.baselines.{name}.{task}")


def _check_history(history: object, rounds: int, config: TrainingConfig) -> None:
    tasks = {config.world.in_phase(phase).tasks for phase in range(len(config.world.curriculum) + 1)}
    for index, entry in enumerate(checked_list(history, "extra.history", rounds)):
        place = f"extra.history.{index}"
        # Every field of the record is there, in its type; then what ties it to this run.
        for name, value in checked_keys(entry, tuple(_ROUND_FIELDS), place).items():
            if not has_type(value, _ROUND_FIELDS[name]):
                raise InputError(f"{place}.{name} cannot be {shown(value)}")
            for number in value.values() if isinstance(value, Mapping) else (value,):
                if isinstance(number, int):
                    checked_whole(number, f"{place}.{name}", -LARGEST_NUMBER)
        checked_whole(entry["round"], f"{place}.round", index + 1, index + 1)
        checked_whole(entry["dropped"], f"{place}.dropped")
        for name in ("objective", "gain", "validation"):
            if entry[name] is not None and tuple(entry[name]) not in tasks:
                raise InputError(f"{place}.{name} must hold one number for each task of the run")
        checked_keys(entry["ops"], [op.name for op in Op], f"{place}.ops")


def _check_instruments(instruments: object) -> None:
    state = checked_keys(instruments, ("gradients", "escalation"), "extra.instruments")
    checked_whole(state["escalation"], "extra.instruments.escalation")
    place = "extra.instruments.gradients"
    gradients: Mapping[str, Any] = checked_keys(state["gradients"], ("norm", "health", "samples"), place)
    checked_whole(gradients["samples"], f"{place}.samples")
    for name in ("norm", "health"):
        if gradients[name] is not None:
            checked_number(gradients[name], f"{place}.{name}", 0)
    if (gradients["norm"] is None) != (gradients["health"] is None):
        raise InputError(f"{place} must hold both norm and health, or neither")
