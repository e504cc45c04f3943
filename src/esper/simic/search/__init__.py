"""Search: the best plan of a task, found by playing plans and modelling what they come to."""

from esper.simic.search.plans import Plan, PlanSpace, show_plan
from esper.simic.search.posterior import Posterior
from esper.simic.search.search import Finding, PlanSearch, SearchSettings
from esper.simic.search.tasks import SearchJob, TaskFindings, search_tasks
from esper.simic.search.teacher import PlanTeacher

__all__ = [
    "Finding",
    "Plan",
    "PlanSearch",
    "PlanSpace",
    "PlanTeacher",
    "Posterior",
    "SearchJob",
    "SearchSettings",
    "TaskFindings",
    "search_tasks",
    "show_plan",
]
