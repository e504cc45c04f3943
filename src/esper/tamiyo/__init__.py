"""Tamiyo: who decides. The `Controller` protocol and the kinds that are not learned."""

from esper.tamiyo.heuristic import Heuristic, HeuristicSettings
from esper.tamiyo.registry import controller_names, make_controller
from esper.tamiyo.rollout import play, run_episode, run_episodes
from esper.tamiyo.rule import Rule, RulePlanting, RuleSettings
from esper.tamiyo.simple import Controller, Never, Plans, Planting, Random, Schedule, wait

__all__ = [
    "Controller",
    "Heuristic",
    "HeuristicSettings",
    "Never",
    "Plans",
    "Planting",
    "Random",
    "Rule",
    "RulePlanting",
    "RuleSettings",
    "Schedule",
    "controller_names",
    "make_controller",
    "play",
    "run_episode",
    "run_episodes",
    "wait",
]
