"""Tolaria: where hosts train. Episodes, counterfactual measurement, signals and the governor."""

from esper.tolaria.compute import ComputeSettings
from esper.tolaria.environment import Environment, GrowthEnv, Step, episode_seed
from esper.tolaria.episode import Episode
from esper.tolaria.executors import Executor, LoopExecutor, StackedExecutor, choose_executor, executor_names
from esper.tolaria.governor import GovernorSettings, SignalTable, TrackerSettings, track
from esper.tolaria.population import Population
from esper.tolaria.records import EpisodeResult, EpisodeSettings, Outcome, Shard, Situation
from esper.tolaria.workers import WorkerPool

__all__ = [
    "ComputeSettings",
    "Environment",
    "Episode",
    "EpisodeResult",
    "EpisodeSettings",
    "Executor",
    "GovernorSettings",
    "GrowthEnv",
    "LoopExecutor",
    "Outcome",
    "Population",
    "Shard",
    "SignalTable",
    "Situation",
    "StackedExecutor",
    "Step",
    "TrackerSettings",
    "WorkerPool",
    "choose_executor",
    "episode_seed",
    "executor_names",
    "track",
]
