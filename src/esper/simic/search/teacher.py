"""What a search has learned as a controller that policies learn from: it says what every decision costs."""

import zlib

import torch
from torch import Tensor

from esper.leyline import NUM_BLENDS, Op
from esper.simic.control.regrets import Regrets
from esper.simic.search.plans import BLENDS
from esper.simic.search.tasks import TaskFindings
from esper.simic.search.values import Places, PlanValues
from esper.tamiyo import wait
from esper.tolaria import Situation

_WORST = 4.0
"""Points that any decision costs at most: beyond, it only matters that it is wrong."""
_WAITING = 0.2
"""Points that it costs to leave a seed in HOLDING that could be kept."""
_SPREAD = 2.0
"""Points of regret by which an explored planting is e times less likely."""
_PRICES_PER_DECADE = 8
"""Prices are rounded to so many, so that hosts share what was thought."""


class PlanTeacher:
    """Decides as the model of a search expects most of, from whatever is planted at whatever price.

    With `exploration`, that share of its decisions while plantings may pay are others: half of them wait, half plant
    something that is not much worse. What each decision would have cost is in `regrets`, step by step.
    """

    name = "search"

    def __init__(self, findings: TaskFindings, exploration: float = 0.0) -> None:
        played = {finalist.plan: finalist.gain for finalist in findings.finalists}
        self._values = PlanValues(findings.space, findings.effects, played)
        self._exploration = exploration
        self._generator = torch.Generator()
        self._stream = zlib.crc32(findings.task.encode())
        self.regrets: list[Regrets] = []
        """Of all hosts in every step since the episodes began."""

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # one stream serves all hosts
        self._generator.manual_seed(seed ^ self._stream)
        self.regrets = []

    def decide(self, situation: Situation) -> Tensor:
        judged = [self._judge(situation, host) for host in range(len(situation.price))]
        waits, plantings, keepings = (torch.stack(parts) for parts in zip(*judged, strict=True))
        self.regrets.append(Regrets(waits, plantings, keepings, torch.full_like(waits, _WORST)))
        return torch.stack([self._choose(situation, host, *parts) for host, parts in enumerate(judged)])

    def _judge(self, situation: Situation, host: int) -> tuple[Tensor, Tensor, Tensor]:
        """Regrets of waiting `[]`, of plantings `[S, B, L]` and of keeping `[S]`."""
        masks, table = situation.masks, situation.table
        occupied = table.occupied[host].nonzero().flatten().tolist()
        planted: Places = tuple((slot, int(table.blueprint[host, slot]) - 1) for slot in occupied)
        step, price = int(situation.signals.epoch[host]), _rounded(float(situation.price[host]))
        budget = int(situation.budget[host])
        # Values of what is legal now, and of going on without it.
        legal = masks.slot[host, Op.GERMINATE][:, None] & masks.blueprint[host]
        values = self._values.planting(planted, step, price, budget).where(legal.unsqueeze(2), -torch.inf)
        later = self._values.waiting(planted, step, price, budget)
        best = max(later, float(values.max()))
        plantings = torch.full((*legal.shape, NUM_BLENDS), _WORST)
        for index, blend in enumerate(BLENDS):
            regrets = (best - values[:, :, index]).clamp(max=_WORST).float()
            plantings[:, :, blend] = regrets.where(masks.blend[host, blend], _WORST)
        keepable = masks.slot[host, Op.FOSSILIZE]
        keepings = torch.where(keepable, min(best - later, _WORST), _WORST)
        waiting = min(best - later + _WAITING * bool(keepable.any()), _WORST)
        return torch.tensor(waiting), plantings, keepings

    def _choose(self, situation: Situation, host: int, waiting: Tensor, plantings: Tensor, keepings: Tensor) -> Tensor:
        """The decision that costs least, or with some probability another."""
        masks, germinate = situation.masks, int(Op.GERMINATE)
        legal = masks.slot[host, germinate][:, None, None] & masks.blueprint[host].unsqueeze(2) & masks.blend[host]
        open_still = bool((plantings.where(legal, _WORST) < _WORST).any())
        if open_still and bool(torch.rand((), generator=self._generator) < self._exploration):
            if bool(torch.rand((), generator=self._generator) < 0.5):
                return wait(1)[0]
            odds = torch.where(legal, (-plantings / _SPREAD).exp(), 0.0).flatten()
            chosen = int(torch.multinomial(odds, 1, generator=self._generator))
        else:
            costs = plantings.where(legal, torch.inf).flatten()
            chosen = int(costs.argmin())
            if float(costs[chosen]) >= float(torch.minimum(waiting, keepings.min())):
                slot = int(keepings.argmin())
                keep = float(keepings[slot]) < float(waiting)
                return torch.tensor([slot, 0, 0, Op.FOSSILIZE]) if keep else wait(1)[0]
        slot, kind, blend = (int(part) for part in torch.unravel_index(torch.tensor(chosen), plantings.shape))
        return torch.tensor([slot, kind, blend, germinate])


def _rounded(price: float) -> float:
    """The nearest of the prices that are thought about."""
    if price <= 0:
        return 0.0
    decades = torch.tensor(price, dtype=torch.float64).log10() * _PRICES_PER_DECADE
    return float(10 ** (decades.round() / _PRICES_PER_DECADE))
