"""Api: what people import."""

from esper.api.environment import make_env
from esper.api.growing import Budget, Decision, Grower
from esper.api.growth_bench import Candidate, Progress, Row, compare, run_from_scratch, run_widened, search_schedules
from esper.api.statistics import Estimate
from esper.api.training import Evaluation, evaluate, find_controller, train
from esper.simic.training import TrainingConfig

__all__ = [
    "Budget",
    "Candidate",
    "Decision",
    "Estimate",
    "Evaluation",
    "Grower",
    "Progress",
    "Row",
    "TrainingConfig",
    "compare",
    "evaluate",
    "find_controller",
    "make_env",
    "run_from_scratch",
    "run_widened",
    "search_schedules",
    "train",
]
