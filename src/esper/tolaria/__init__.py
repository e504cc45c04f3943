"""Tolaria: where hosts train. Tasks and data, episodes, counterfactual measurement, signals and the governor."""

from esper.tolaria.episode import Episode, EpisodeResult, EpisodeSettings, Kept
from esper.tolaria.governor import Governor, GovernorSettings
from esper.tolaria.host_training import Measurement, measure
from esper.tolaria.signals import SignalTable, TrackerSettings, track
from esper.tolaria.situation import Outcome, Situation
from esper.tolaria.tasks import OptimizerSettings, Split, Splits, Task, find_task, task, task_names

__all__ = [
    "Episode",
    "EpisodeResult",
    "EpisodeSettings",
    "Governor",
    "GovernorSettings",
    "Kept",
    "Measurement",
    "OptimizerSettings",
    "Outcome",
    "SignalTable",
    "Situation",
    "Split",
    "Splits",
    "Task",
    "TrackerSettings",
    "find_task",
    "measure",
    "task",
    "task_names",
    "track",
]
