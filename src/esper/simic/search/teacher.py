"""The findings of a search as a controller that policies are cloned from."""

from torch import Tensor

from esper.simic.search.search import best_finalist
from esper.simic.search.tasks import TaskFindings
from esper.tamiyo import Plans
from esper.tolaria import Situation


class PlanTeacher:
    """Follows, on each host, the best plan that was found for its price."""

    name = "search"

    def __init__(self, findings: TaskFindings) -> None:
        self._findings = findings
        self._plans: Plans | None = None

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # nothing here is random
        self._plans = None

    def decide(self, situation: Situation) -> Tensor:
        # Prices are known once episodes have begun.
        if self._plans is None:
            found = self._findings
            prices = situation.price.tolist()
            best = [best_finalist(found.finalists, found.host_params, price) for price in prices]
            self._plans = Plans([finalist.plan for finalist in best])
        return self._plans.decide(situation)
