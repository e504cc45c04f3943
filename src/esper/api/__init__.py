"""Api: what people import. Benchmarks of growth so far."""

from esper.api.growth_bench import Candidate, Progress, Row, compare, run_from_scratch, run_widened, search_schedules
from esper.api.statistics import Estimate

__all__ = ["Candidate", "Estimate", "Progress", "Row", "compare", "run_from_scratch", "run_widened", "search_schedules"]
