"""Tolaria: where hosts train. Episodes, counterfactual measurement, signals and the governor."""

from esper.tolaria.compute import ComputeSettings
from esper.tolaria.environment import Environment, GrowthEnv, Step, StepInfo, episode_seed
from esper.tolaria.episode import Episode
from esper.tolaria.executors import (
    Executor,
    LoopExecutor,
    Measurement,
    StackedExecutor,
    choose_executor,
    executor_names,
    measure,
)
from esper.tolaria.governor import Governor, GovernorSettings, SignalTable, TrackerSettings, track
from esper.tolaria.population import Population
from esper.tolaria.records import EpisodeResult, EpisodeSettings, Kept, Outcome, Shard, Situation
from esper.tolaria.workers import WorkerPool

__all__ = [
    "ComputeSettings",
    "Environment",
    "Episode",
    "EpisodeResult",
    "EpisodeSettings",
    "Executor",
    "Governor",
    "GovernorSettings",
    "GrowthEnv",
    "Kept",
    "LoopExecutor",
    "Measurement",
    "Outcome",
    "Population",
    "Shard",
    "SignalTable",
    "Situation",
    "StackedExecutor",
    "Step",
    "StepInfo",
    "TrackerSettings",
    "WorkerPool",
    "choose_executor",
    "episode_seed",
    "executor_names",
    "measure",
    "track",
]
