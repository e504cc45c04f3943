"""The protocol of controllers, and those that look at nothing but what is legal: never, random and schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, Blend, InputError, Op, unknown_name
from esper.tolaria import Situation


class Controller(Protocol):
    """Decides, step by step, for N hosts at once."""

    name: str

    def reset(self, num_hosts: int, seed: int) -> None:
        """Forget everything: a new episode of `num_hosts` hosts begins. Randomness comes from `seed` alone."""

    def decide(self, situation: Situation) -> Tensor:
        """One legal action per host, `[N, 4]` in `HEAD_NAMES` order."""


def wait(num_hosts: int) -> Tensor:
    return torch.zeros((num_hosts, len(HEAD_NAMES)), dtype=torch.int64)


class Never:
    """Leaves the host alone."""

    name = "never"

    def reset(self, num_hosts: int, seed: int) -> None:
        """Nothing to forget."""

    def decide(self, situation: Situation) -> Tensor:
        return wait(situation.table.shape[0])


class Random:
    """Draws op, then slot, then blueprint and blend, each uniformly from what is legal.

    Uniform over joint actions would almost always germinate: nearly all of them do.
    """

    name = "random"

    def __init__(self) -> None:
        self._generator = torch.Generator()

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # one stream serves all hosts
        self._generator.manual_seed(seed)

    def state_dict(self) -> dict[str, Tensor]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._generator.set_state(state["generator"])

    def decide(self, situation: Situation) -> Tensor:
        masks = situation.masks
        actions = wait(situation.table.shape[0])
        host = torch.arange(len(actions))
        op = self._draw(masks.op)
        slot = self._draw(masks.slot[host, op])
        germinates = op == Op.GERMINATE
        # Rows that do not germinate may have no legal blueprint or blend; what they draw is dropped below.
        blueprint = self._draw(masks.blueprint[host, slot] | ~germinates[:, None])
        blend = self._draw(masks.blend | ~germinates[:, None])
        actions[:, 0], actions[:, 3] = slot, op
        actions[:, 1], actions[:, 2] = blueprint.where(germinates, 0), blend.where(germinates, 0)
        return actions

    def _draw(self, legal: Tensor) -> Tensor:
        return torch.multinomial(legal.float(), 1, generator=self._generator).squeeze(1)


@dataclass(frozen=True, slots=True)
class Planting:
    """One line of a schedule: what to germinate where and when. It is kept as soon as that is legal."""

    step: int
    """Counted from 0: the number of epochs before it."""
    slot: int
    blueprint: int
    """Index of the blueprint head, from 0 on."""
    blend: Blend = Blend.LINEAR

    def __str__(self) -> str:
        numbers = f"{self.step}:{self.slot}:{self.blueprint}"
        return numbers if self.blend is Blend.LINEAR else f"{numbers}:{self.blend.name.lower()}"

    @classmethod
    def parse(cls, text: str) -> "Planting":
        """The inverse of `str`: `step:slot:blueprint`, all counted from 0, and maybe `:blend`."""
        *numbers, blend = text.split(":") if text.count(":") == 3 else (*text.split(":"), Blend.LINEAR.name)
        if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
            raise InputError(
                f"malformed planting {text!r}; write step:slot:blueprint, as in '4:0:3' or '4:0:3:instant'"
            )
        if blend.upper() not in Blend.__members__:
            raise unknown_name("blend", blend, (member.name.lower() for member in Blend))
        step, slot, blueprint = map(int, numbers)
        return cls(step, slot, blueprint, Blend[blend.upper()])


class Schedule:
    """Follows a fixed list of plantings, whatever it sees, and keeps every seed once it may."""

    name = "schedule"

    def __init__(self, plantings: Sequence[Planting]) -> None:
        self.plantings = tuple(plantings)

    def reset(self, num_hosts: int, seed: int) -> None:
        """Nothing to forget: the step is read off the situation."""

    def decide(self, situation: Situation) -> Tensor:
        hosts = range(situation.table.shape[0])
        return torch.stack([_follow(self.plantings, situation, host) for host in hosts])


class Plans:
    """Follows a list of plantings for each host, as a schedule does for all."""

    name = "plans"

    def __init__(self, plans: Sequence[Sequence[Planting]]) -> None:
        self.plans = plans

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # nothing here is random
        if num_hosts != len(self.plans):
            raise InputError(f"{num_hosts} hosts need as many plans; got {len(self.plans)}")

    def decide(self, situation: Situation) -> Tensor:
        return torch.stack([_follow(plan, situation, host) for host, plan in enumerate(self.plans)])


def _follow(plantings: Sequence[Planting], situation: Situation, host: int) -> Tensor:
    """The planting that is due, else a seed to keep, else WAIT; what is not legal now is left out."""
    masks, step = situation.masks, int(situation.signals.epoch[host])
    for planting in plantings:
        known = planting.slot < masks.blueprint.shape[1] and planting.blueprint < masks.blueprint.shape[2]
        if planting.step != step or not known:
            continue
        legal = masks.slot[host, Op.GERMINATE, planting.slot] & masks.blend[host, planting.blend]
        if legal and masks.blueprint[host, planting.slot, planting.blueprint]:
            return torch.tensor([planting.slot, planting.blueprint, planting.blend, Op.GERMINATE])
    keepable = masks.slot[host, Op.FOSSILIZE].nonzero().flatten().tolist()
    return torch.tensor([keepable[0], 0, 0, Op.FOSSILIZE]) if keepable else wait(1)[0]
