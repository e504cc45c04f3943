"""The heuristic: grow early or when learning stalls, try what is affordable, keep what pays its rent."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from esper.leyline import Blend, InputError, Op, Stage, rent
from esper.tamiyo.controller import wait
from esper.tolaria import Situation
from esper.tolaria.signals import HISTORY

_UNFINISHED = torch.tensor([Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])


@dataclass(frozen=True, slots=True)
class HeuristicSettings:
    """The rule's numbers, tuned on the training tasks."""

    first_epoch: int = 0
    """Epochs before a stall may lead to growth."""
    latest_epoch: int = 0
    """Growth begins after this many epochs even without a stall; 0 grows from the start."""
    stall_gain: float = 0.01
    """A gain in score below this ..."""
    stall_epochs: int = 3
    """... over this many epochs is a stall."""
    time_needed: float = 0.8
    """Nothing new is germinated with a smaller share of the episode left: late seeds seem to pay and do not."""
    patience: int = 8
    """Epochs in HOLDING that a seed is given to earn its rent before it is culled."""
    margin: float = 1.0
    """A seed is kept once its contribution exceeds this many times its rent."""
    max_unfinished: int = 2
    """How many seeds may be on trial at the same time."""
    max_rent: float = 0.015
    """A seed whose rent would be higher than this is not tried."""
    order: tuple[int, ...] = (3, 4, 1, 2, 0)
    """In which order blueprints (head indices) are tried; those that are not listed are not tried."""

    def __post_init__(self) -> None:
        if not 1 <= self.stall_epochs < HISTORY:
            raise InputError(f"stall_epochs must be 1 to {HISTORY - 1}; got {self.stall_epochs}")


@dataclass(slots=True)
class _Memory:
    """What has been learnt about the blueprints on one host."""

    tried: list[int] = field(default_factory=list)
    payoff: dict[int, float] = field(default_factory=dict)
    """Best contribution minus rent seen of each blueprint."""


class Heuristic:
    """A few seeds on trial side by side: germinate what is affordable, then keep or cull by counterfactual and rent."""

    name = "heuristic"

    def __init__(self, settings: HeuristicSettings | None = None) -> None:
        self.settings = settings or HeuristicSettings()
        self._memories: list[_Memory] = []

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # nothing here is random
        """Forget all experience."""
        self._memories = [_Memory() for _ in range(num_hosts)]

    def state_dict(self) -> dict[str, Any]:
        """Its experience."""
        return {"memories": [asdict(memory) for memory in self._memories]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember it again."""
        self._memories = [_Memory(list(memory["tried"]), dict(memory["payoff"])) for memory in state["memories"]]

    def decide(self, situation: Situation) -> Tensor:
        """The rule, host by host."""
        actions = wait(len(self._memories))
        for host, memory in enumerate(self._memories):
            unfinished = torch.isin(situation.table.stage[host], _UNFINISHED).nonzero().flatten().tolist()
            verdicts = [self._judge(situation, host, slot, memory) for slot in unfinished]
            decided = [verdict for verdict in verdicts if verdict[-1] != Op.WAIT]
            if decided:
                actions[host] = decided[0]
            elif len(unfinished) < self.settings.max_unfinished and self._wants_growth(situation, host):
                actions[host] = self._germinate(situation, host, memory)
        return actions

    def _judge(self, situation: Situation, host: int, slot: int, memory: _Memory) -> Tensor:
        """Keep the seed in `slot` if it pays, cull it once it has had its time, else wait."""
        table = situation.table
        if table.stage[host, slot] != Stage.HOLDING:
            return wait(1)[0]
        owed = rent(
            float(table.params[host, slot]),
            situation.host_params,
            float(situation.price[host]),
            float(situation.planted_flops[host, slot]),
            situation.host_flops,
            situation.flop_price,
        )
        contribution = float(table.contribution[host, slot])
        blueprint = int(table.blueprint[host, slot]) - 1
        memory.payoff[blueprint] = max(contribution - owed, memory.payoff.get(blueprint, -1.0))
        if contribution > self.settings.margin * owed and situation.masks.slot[host, Op.FOSSILIZE, slot]:
            return torch.tensor([slot, 0, 0, Op.FOSSILIZE])
        overdue = int(table.epochs_in_stage[host, slot]) >= self.settings.patience
        if overdue and situation.masks.slot[host, Op.CULL, slot]:
            return torch.tensor([slot, 0, 0, Op.CULL])
        return wait(1)[0]

    def _wants_growth(self, situation: Situation, host: int) -> bool:
        epoch = int(situation.signals.epoch[host])
        time_left = int(situation.steps_left[host]) / situation.episode_length
        if epoch < self.settings.first_epoch or time_left < self.settings.time_needed:
            return False
        history = situation.signals.score_history[host]
        gain = float(history[-1] - history[-1 - self.settings.stall_epochs])
        return epoch >= self.settings.latest_epoch or gain < self.settings.stall_gain

    def _germinate(self, situation: Situation, host: int, memory: _Memory) -> Tensor:
        """The next untried blueprint, or else the best-paying, in the first free slot where its rent is low enough."""
        masks, offers = situation.masks, situation.catalogue
        in_time = masks.slot[host, Op.GERMINATE] & masks.blend[host, Blend.LINEAR]
        legal = in_time[:, None] & masks.blueprint[host]
        owed = situation.rent(offers.params[None], offers.flops[None])[host]
        open_to = legal & (owed <= self.settings.max_rent)
        possible = [index for index in self.settings.order if index < open_to.shape[1] and open_to[:, index].any()]
        untried = [index for index in possible if index not in memory.tried]
        paying = [index for index in possible if memory.payoff.get(index, -1.0) > 0]
        if not untried and not paying:
            return wait(1)[0]
        chosen = untried[0] if untried else max(paying, key=lambda index: memory.payoff[index])
        memory.tried.append(chosen)
        slot = int(open_to[:, chosen].nonzero()[0])
        return torch.tensor([slot, chosen, Blend.LINEAR, Op.GERMINATE])
