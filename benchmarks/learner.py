"""The tables of `docs/learner.md`.

python benchmarks/learner.py learning       # does it learn, how fast (popgym is skipped where it is missing)
python benchmarks/learner.py comparisons    # what its options change
python benchmarks/learner.py speed          # one update beside RecurrentPPO (needs the extra `peers`)
"""

import argparse
import importlib
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from esper.simic.agent import FactoredRecurrentActorCritic, PPOUpdateMetrics, play_episodes
from esper.simic.bench import bench_ppo_update
from esper.simic.trials import (
    BANDIT_ENVS,
    BANDIT_ROUNDS,
    BANDIT_SETTINGS,
    CARTPOLE_ENVS,
    CARTPOLE_SETTINGS,
    EVALUATION_SEED,
    MEMORY_ENVS,
    MEMORY_SETTINGS,
    Trial,
    agent_for,
    bandit_trial,
    cartpole_trial,
    endless_trial,
    learn,
    learn_to_score,
)
from esper.simic.worlds import FactoredBandit, masked_cartpole, repeat_world

COMPARISON_SEEDS = range(5)
COMPARISON_STEPS = 12_288
"""Environment steps on CartPole: about where the default settings begin to solve it."""
COMPARISON_ROUNDS = BANDIT_ROUNDS // 4
"""Rounds on the bandit: before every variant has solved it."""

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "Huber value loss": {"value_loss_type": "huber"},
    "two feature layers": {"feature_layers": 2},
    "rare head at twice the learning rate": {"head_lr_scale": {"force": 2.0}},
    "first LSTM states only": {"hidden_storage": "first"},
}


def learning() -> None:
    """Print one line per task."""
    print("| task | bar | seeds that reach it | median steps | worst steps | worst score | median CPU-s |")
    print("|---|---|---|---|---|---|---|")
    _line("CartPole without velocities", 195.0, [cartpole_trial(seed) for seed in range(10)])
    for module, name, bar in (
        ("repeat_previous", "RepeatPreviousEasy", 0.9),
        ("repeat_first", "RepeatFirstEasy", 0.95),
    ):
        try:
            make: Callable[[], Any] = getattr(importlib.import_module(f"popgym.envs.{module}"), name)
        except ImportError:
            print(f"| POPGym {name} | {bar} | not run: popgym is not installed | | | | |")
            continue
        _line(f"POPGym {name}", bar, [_memory_trial(make, bar, seed) for seed in range(5)])
    _line("factored bandit (share of the optimum)", 0.95, [bandit_trial(seed) for seed in range(5)])
    _line("endless world (relative error, lower is better)", 0.01, [endless_trial(seed) for seed in range(5)], low=True)


def _memory_trial(make: Callable[[], Any], bar: float, seed: int) -> Trial:
    return learn_to_score(
        lambda s: repeat_world(make, MEMORY_ENVS, s), MEMORY_SETTINGS, seed, bar=bar, budget=500_000, every=10
    )


def _line(name: str, bar: float, trials: list[Trial], *, low: bool = False) -> None:
    reached = sum(trial.score <= bar if low else trial.score >= bar for trial in trials)
    scores = [trial.score for trial in trials]
    steps = [trial.steps for trial in trials]
    seconds = statistics.median(trial.cpu_seconds for trial in trials)
    print(
        f"| {name} | {bar:g} | {reached} of {len(trials)} | {statistics.median(steps):,.0f} | {max(steps):,} "
        f"| {max(scores) if low else min(scores):.3g} | {seconds:.1f} |",
        flush=True,
    )


def comparisons() -> None:
    """Print one line per variant and world: mean over seeds, with the lowest and highest."""
    print("| world | variant | score | gradient norm | rare head's norm | LSTM state kept | CPU-s |")
    print("|---|---|---|---|---|---|---|")
    for variant, options in VARIANTS.items():
        if "head_lr_scale" not in options:
            _compare("CartPole", variant, [_cartpole_run(seed, options) for seed in COMPARISON_SEEDS])
    for variant, options in VARIANTS.items():
        _compare("bandit", variant, [_bandit_run(seed, options) for seed in COMPARISON_SEEDS])


def _cartpole_run(seed: int, options: dict[str, Any]) -> dict[str, float]:
    agent, metrics, seconds = _run(
        seed, masked_cartpole(CARTPOLE_ENVS, seed), CARTPOLE_SETTINGS, options, COMPARISON_STEPS
    )
    score = play_episodes(agent, masked_cartpole(CARTPOLE_ENVS, EVALUATION_SEED + seed), 20).mean().item()
    return _numbers(agent, metrics, seconds, score, "action")


def _bandit_run(seed: int, options: dict[str, Any]) -> dict[str, float]:
    steps = COMPARISON_ROUNDS * BANDIT_ENVS * BANDIT_SETTINGS["max_steps"]
    agent, metrics, seconds = _run(seed, FactoredBandit(BANDIT_ENVS, seed), BANDIT_SETTINGS, options, steps)
    score = play_episodes(agent, FactoredBandit(BANDIT_ENVS, EVALUATION_SEED + seed), 512).mean().item()
    return _numbers(agent, metrics, seconds, score, "force")


def _run(
    seed: int, world: Any, settings: dict[str, Any], options: dict[str, Any], steps: int
) -> tuple[Any, list[PPOUpdateMetrics], float]:
    torch.manual_seed(seed)
    network = FactoredRecurrentActorCritic(
        world.spec,
        world.obs_dim,
        lstm_hidden_dim=settings["lstm_hidden_dim"],
        feature_layers=options.get("feature_layers", 1),
    )
    overrides = {name: value for name, value in options.items() if name != "feature_layers"}
    agent = agent_for(world, settings, network=network, **overrides)
    history: list[PPOUpdateMetrics] = []
    start = time.process_time()

    def until(metrics: PPOUpdateMetrics) -> bool:
        history.append(metrics)
        return agent.total_steps >= steps

    learn(agent, world, until)
    return agent, history, time.process_time() - start


def _numbers(agent: Any, history: list[PPOUpdateMetrics], seconds: float, score: float, head: str) -> dict[str, float]:
    return {
        "score": score,
        "norm": statistics.mean(metrics["total_grad_norm"] for metrics in history),
        "head": statistics.mean(statistics.mean(metrics["head_grad_norms"][head]) for metrics in history),
        "bytes": 2 * agent.buffer.hidden_h.nbytes,
        "seconds": seconds,
    }


def _compare(world: str, variant: str, runs: list[dict[str, float]]) -> None:
    def spread(name: str, digits: int) -> str:
        values = [run[name] for run in runs]
        return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

    digits = 0 if world == "CartPole" else 2
    print(
        f"| {world} | {variant} | {spread('score', digits)} | {spread('norm', 2)} | {spread('head', 2)} "
        f"| {runs[0]['bytes'] / 1024:,.0f} KiB | {spread('seconds', 1)} |",
        flush=True,
    )


def speed() -> None:
    """Print the timings as JSON."""
    print(json.dumps(bench_ppo_update(), indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables: dict[str, Callable[[], None]] = {"learning": learning, "comparisons": comparisons, "speed": speed}
    parser.add_argument("table", choices=tables)
    torch.set_num_threads(1)
    # Warnings about these tasks are expected: constant returns at the end, episodes that go on from a stored state.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    tables[parser.parse_args().table]()
