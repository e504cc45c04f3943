"""The tables of `docs/learner.md`.

python benchmarks/learner.py learning       # does it learn, how fast (popgym is skipped where it is missing)
python benchmarks/learner.py comparisons    # what its options change
python benchmarks/learner.py speed          # one update beside RecurrentPPO (needs the extra `peers`)
"""

import argparse
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from esper.simic.agent import FactoredRecurrentActorCritic, PPOUpdateMetrics
from esper_lab.learner_speed import bench_ppo_update
from esper_lab.trials import (
    BANDIT,
    BANDIT_STEPS,
    CARTPOLE,
    MEMORY_TASKS,
    Exercise,
    Trial,
    agent_for,
    bandit_trial,
    cartpole_trial,
    endless_trial,
    learn,
    memory_trial,
)
from esper_lab.workload import LSTM_SIZES

COMPARISON_SEEDS = range(5)
CARTPOLE_STEPS = 12_288
"""Environment steps: about where the default settings begin to solve it."""
COMPARED_BANDIT_STEPS = BANDIT_STEPS // 8
"""Before every variant has solved it."""
SPEED_REPEATS = 3

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
    for name, (_, bar) in MEMORY_TASKS.items():
        try:
            trials = [memory_trial(name, seed) for seed in range(5)]
        except ImportError:
            print(f"| POPGym {name} | {bar} | not run: popgym is not installed | | | | |")
        else:
            _line(f"POPGym {name}", bar, trials)
    _line("factored bandit (share of the optimum)", 0.95, [bandit_trial(seed) for seed in range(5)])
    _line("endless world (relative error, lower is better)", 0.01, [endless_trial(seed) for seed in range(5)], low=True)


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
            runs = [_run(CARTPOLE, seed, options, CARTPOLE_STEPS, "action") for seed in COMPARISON_SEEDS]
            _compare("CartPole", variant, runs)
    for variant, options in VARIANTS.items():
        runs = [_run(BANDIT, seed, options, COMPARED_BANDIT_STEPS, "force") for seed in COMPARISON_SEEDS]
        _compare("bandit", variant, runs)


def _run(exercise: Exercise, seed: int, options: dict[str, Any], steps: int, head: str) -> dict[str, float]:
    """Numbers of one run, with the gradient norm of `head`; only the learning is timed."""
    torch.manual_seed(seed)
    world = exercise.make_world(seed)
    network = FactoredRecurrentActorCritic(
        world.spec,
        world.obs_dim,
        lstm_hidden_dim=exercise.options["lstm_hidden_dim"],
        feature_layers=options.get("feature_layers", 1),
    )
    overrides = {name: value for name, value in options.items() if name != "feature_layers"}
    agent = agent_for(world, exercise.options | {"network": network} | overrides)
    history: list[PPOUpdateMetrics] = []
    start = time.process_time()

    def until(metrics: PPOUpdateMetrics) -> bool:
        history.append(metrics)
        return agent.total_steps >= steps

    learn(agent, world, until)
    seconds = time.process_time() - start
    return {
        "score": exercise.score(agent, seed),
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
    print(json.dumps(bench_ppo_update(LSTM_SIZES, SPEED_REPEATS), indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables: dict[str, Callable[[], None]] = {"learning": learning, "comparisons": comparisons, "speed": speed}
    parser.add_argument("table", choices=tables)
    torch.set_num_threads(1)
    # Warnings about these tasks are expected: constant returns at the end, episodes that go on from a stored state.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    tables[parser.parse_args().table]()
