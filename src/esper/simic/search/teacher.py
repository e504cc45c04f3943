"""The findings of a search as a controller that policies are cloned from."""

import torch
from torch import Tensor

from esper.leyline import POINTS, Op, charge
from esper.simic.search.plans import Plan
from esper.simic.search.tasks import TaskFindings
from esper.tamiyo import Planting, wait
from esper.tolaria import Situation


class PlanTeacher:
    """On each host, what is best next at its price, given what is planted there already.

    Where that is a part of plans that were played again from fresh seeds, the best of those is followed. What else a
    policy may have planted, the model of the search judges: the planting that it expects most of, if that pays.
    """

    name = "search"

    def __init__(self, findings: TaskFindings) -> None:
        self._found = findings
        self._planted: list[Plan] = []
        """What was planted on each host, and when."""
        self._advice: dict[tuple[Plan, float, int], Planting | None] = {}

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # nothing here is random
        self._planted = [()] * num_hosts
        self._advice.clear()

    def decide(self, situation: Situation) -> Tensor:
        self._look(situation)
        return torch.stack([self._decide_for(situation, host) for host in range(len(self._planted))])

    def _look(self, situation: Situation) -> None:
        """Bring what is planted up to date: somebody else may be the one who plants."""
        table = situation.table
        for host, plan in enumerate(self._planted):
            occupied = table.occupied[host].nonzero().flatten().tolist()
            known = {planting.slot: planting for planting in plan}
            before = int(situation.signals.epoch[host]) - 1
            self._planted[host] = tuple(
                known[slot] if slot in known else Planting(max(0, before), slot, int(table.blueprint[host, slot]) - 1)
                for slot in occupied
            )

    def _decide_for(self, situation: Situation, host: int) -> Tensor:
        masks, step = situation.masks, int(situation.signals.epoch[host])
        due = self._next(self._planted[host], float(situation.price[host]), step)
        if due is not None and due.step <= step:
            legal = masks.slot[host, Op.GERMINATE, due.slot] & masks.blend[host, due.blend]
            if legal and masks.blueprint[host, due.slot, due.blueprint]:
                return torch.tensor([due.slot, due.blueprint, due.blend, Op.GERMINATE])
        keepable = masks.slot[host, Op.FOSSILIZE].nonzero().flatten().tolist()
        return torch.tensor([keepable[0], 0, 0, Op.FOSSILIZE]) if keepable else wait(1)[0]

    def _next(self, planted: Plan, price: float, step: int) -> Planting | None:
        key = planted, price, step
        if key not in self._advice:
            self._advice[key] = self._think(planted, price, step)
        return self._advice[key]

    def _think(self, planted: Plan, price: float, step: int) -> Planting | None:
        found, places = self._found, _places(planted)
        if step > found.space.last_step:
            return None
        begun = [finalist for finalist in found.finalists if places <= _places(finalist.plan)]
        if not begun:
            return found.space.next_planting(planted, found.effects, price, step)
        best = max(begun, key=lambda one: one.gain - POINTS * charge(float(one.added_params), found.host_params, price))
        return next((planting for planting in best.plan if (planting.slot, planting.blueprint) not in places), None)


def _places(plan: Plan) -> set[tuple[int, int]]:
    return {(planting.slot, planting.blueprint) for planting in plan}
