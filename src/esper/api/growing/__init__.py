"""Growing: someone's own model, in their own loop, under a budget."""

from esper.api.growing.decision import Budget, Decision
from esper.api.growing.grower import Grower

__all__ = ["Budget", "Decision", "Grower"]
