"""Api: what people import."""

from esper.api.environment import make_env
from esper.api.growth_bench import Candidate, Progress, Row, compare, run_from_scratch, run_widened, search_schedules
from esper.api.statistics import Estimate

__all__ = [
    "Candidate",
    "Estimate",
    "Progress",
    "Row",
    "compare",
    "make_env",
    "run_from_scratch",
    "run_widened",
    "search_schedules",
]
