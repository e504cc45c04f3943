"""What growing brings on models as people bring them, beside widening them by hand: plain loops, six models.

For each model and seed four networks are trained alike: the plain one; the same grown by `Grower` with its defaults;
the plain one with all layers widened to at least the grown size; and what was grown, from scratch. With `--rival`
another controller grows it too. Learning rates were chosen for the plain models on validation scores (`--tune`); the
table tells test scores. Times are those of this process, with one validation per epoch for all; growing includes making
the grower, `finish` and `export`.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import esper
from benchmarks.practice_models import PROBLEMS, Problem
from esper.kasmina import find_blueprint, graft

ROWS = ("plain", "grown", "widened", "scratch")
RIVAL = "rival"
"""The row of what another controller grows."""
RATES = (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2, 8e-2)
_STEP = 1 / 64
"""Scales of widened models are tried in steps of this size."""


@dataclass(frozen=True, slots=True)
class Run:
    """One trained network."""

    row: str
    seed: int
    test: float
    val: float
    params: int
    seconds: float
    kept: tuple[str, ...] = ()
    """What was grown: kinds and slots."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a grower has made of a model: the places that it chose from, and the kind that was kept in each."""

    sites: tuple[str, ...]
    kept: dict[str, str]

    @classmethod
    def of(cls, grower: esper.Grower) -> "Growth":
        """After its `finish`."""
        table, sites = grower.grafted.table, grower.grafted.sites
        kept = {
            site.path: find_blueprint(site.shape.family, kind).name
            for site, kind in zip(sites, table.blueprint[0].tolist(), strict=True)
            if kind
        }
        return cls(tuple(site.path for site in sites), kept)

    @property
    def told(self) -> tuple[str, ...]:
        """What is where, in words."""
        return tuple(f"{kind} in {slot}" for slot, kind in self.kept.items())


def size(model: nn.Module) -> int:
    """How many parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def train(
    problem: Problem, model: nn.Module, seed: int, settings: dict[str, Any] | None = None
) -> tuple[nn.Module, esper.Grower | None]:
    """The loop that everybody has; `settings` are those of a grower, if there is to be one."""
    data = problem.load()
    dice = torch.Generator().manual_seed(seed)
    batches = DataLoader(TensorDataset(*data.train), problem.batch, shuffle=True, generator=dice)
    optimizer = torch.optim.AdamW(model.parameters(), lr=problem.lr)
    scheduler = problem.make_scheduler(optimizer, problem.epochs * len(batches))
    grower = None
    if settings is not None:
        grower = esper.Grower(
            model,
            example=data.train[0][:8],
            optimizer=optimizer,
            evaluate=lambda model: problem.score(model, data.val),
            measure="score" if problem.is_accuracy else "loss",
            epochs=problem.epochs,
            schedulers=[scheduler],
            seed=seed,
            **settings,
        )
        model = grower.model
    for _ in range(problem.epochs):
        model.train()
        for inputs, targets in batches:
            optimizer.zero_grad()
            problem.loss(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
        model.eval()
        if grower is None:
            problem.score(model, data.val)
        else:
            grower.step()
    if grower is None:
        return model, None
    grower.finish()
    return grower.export().eval(), grower


def fresh(problem: Problem, seed: int, scale: float = 1.0) -> nn.Module:
    """An untrained model."""
    torch.manual_seed(seed)
    return problem.build(scale)


def widened(problem: Problem, seed: int, target: int) -> nn.Module:
    """An untrained model with all layers widened: the smallest of at least `target` parameters."""
    scale = 1.0
    while size(model := fresh(problem, seed, scale)) < target:
        scale += _STEP
    return model


def from_scratch(problem: Problem, seed: int, growth: Growth) -> nn.Module:
    """An untrained model with what was grown in place, all of it initialised as torch does it."""
    model = fresh(problem, seed)
    grafted = graft(model, at=growth.sites, example=problem.load().train[0][:8])
    grafted.plant_fossils(growth.kept)
    for part in grafted.slots.modules():
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
    return grafted


def measured(
    row: str, problem: Problem, model: nn.Module, seed: int, settings: dict[str, Any] | None = None
) -> tuple[Run, esper.Grower | None]:
    """Train it by the clock of this process, then look at its scores."""
    data = problem.load()
    start = time.process_time()
    trained, grower = train(problem, model, seed, settings)
    seconds = time.process_time() - start
    test, val = (problem.score(trained, split) for split in (data.test, data.val))
    return Run(row, seed, test, val, size(trained), seconds), grower


def run_seed(
    problem: Problem, seed: int, settings: dict[str, Any] | None = None, rival: str | None = None
) -> list[Run]:
    """All rows on one seed, one after the other; `settings` are those of the grower that are not its defaults."""
    plain, _ = measured("plain", problem, fresh(problem, seed), seed)
    grown, grower = measured("grown", problem, fresh(problem, seed), seed, settings or {})
    assert grower is not None
    growth = Growth.of(grower)
    wide, _ = measured("widened", problem, widened(problem, seed, grown.params), seed)
    scratch, _ = measured("scratch", problem, from_scratch(problem, seed, growth), seed)
    rows = [plain, replace(grown, kept=growth.told), wide, scratch]
    if rival is not None:
        other, grower = measured(RIVAL, problem, fresh(problem, seed), seed, {"controller": rival})
        assert grower is not None
        rows.append(replace(other, kept=Growth.of(grower).told))
    return rows


def difference(problem: Problem, runs: Sequence[Run], one: str, other: str) -> tuple[float, float, float]:
    """How much better `one` row is than the `other` on the same seeds: mean and ends of the 95 % interval."""
    scores = {(run.row, run.seed): run.test for run in runs}
    seeds = sorted({run.seed for run in runs})
    sign = 1 if problem.is_accuracy else -1
    gains = [sign * (scores[one, seed] - scores[other, seed]) for seed in seeds]
    mean = statistics.mean(gains)
    if len(gains) < 2:
        return mean, math.nan, math.nan
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    margin = float(student.ppf(0.975, len(gains) - 1)) * error
    return mean, mean - margin, mean + margin


def cpu_ratio(runs: Sequence[Run], row: str) -> float:
    """Time of a row relative to the plain one of the same seed, the median over seeds."""
    seconds = {(run.row, run.seed): run.seconds for run in runs}
    return statistics.median(seconds[row, seed] / seconds["plain", seed] for _, seed in seconds)


def table(results: dict[Problem, list[Run]]) -> str:
    """The results in Markdown."""
    heads = ["plain", "grown", "widened by hand", "grown architecture from scratch"]
    rivals = [RIVAL] if any(run.row == RIVAL for runs in results.values() for run in runs) else []
    compared = ["widened", *rivals]
    columns = [*heads, *rivals, *(f"grown better than {row} by (95 %)" for row in compared)]
    lines = [f"| test score, parameters, CPU | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for problem, runs in results.items():
        cells = []
        for row in (*ROWS, *rivals):
            own = [run for run in runs if run.row == row]
            score = shown(problem, statistics.mean(run.test for run in own))
            params = statistics.mean(run.params for run in own)
            cells.append(f"{score}, {params:,.0f}, {cpu_ratio(runs, row):.2f}x")
        for other in compared:
            mean, low, high = (shown(problem, value) for value in difference(problem, runs, "grown", other))
            cells.append(f"{mean} ({low} to {high})")
        name = f"{problem.name} ({'accuracy, %' if problem.is_accuracy else 'loss'})"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(problem: Problem, value: float) -> str:
    """A score or a difference of scores as people read it."""
    return f"{100 * value:.1f}" if problem.is_accuracy else f"{value:.4f}"


def tune(problem: Problem, seeds: Sequence[int]) -> str:
    """Validation scores of the plain model at several learning rates."""
    cells = []
    for rate in RATES:
        changed = replace(problem, lr=rate)
        runs = [measured("plain", changed, fresh(changed, seed), seed)[0] for seed in seeds]
        cells.append(f"{rate:g}: {shown(problem, statistics.mean(run.val for run in runs))}")
    return f"{problem.name}: {', '.join(cells)}"


def main() -> None:
    """Run the comparison, or tune the plain models, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1000, help="the first one")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[problem.name for problem in PROBLEMS])
    parser.add_argument("--controller", help="what grows; the default of a grower if not given")
    parser.add_argument("--rival", help="another controller to grow the same models")
    parser.add_argument("--json", type=Path, help="where every run is written to")
    parser.add_argument("--tune", action="store_true", help="try learning rates on the plain models instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seed, options.seed + options.seeds)
    chosen = [problem for problem in PROBLEMS if options.only is None or problem.name in options.only]
    results: dict[Problem, list[Run]] = {}
    for problem in chosen:
        if options.tune:
            print(tune(problem, seeds), flush=True)
            continue
        # Not counted: whatever is slow only the first time.
        settings = {} if options.controller is None else {"controller": options.controller}
        run_seed(replace(problem, epochs=3), options.seed, settings, options.rival)
        results[problem] = []
        for seed in seeds:
            runs = run_seed(problem, seed, settings, options.rival)
            results[problem] += runs
            grown = runs[ROWS.index("grown")]
            print(f"{problem.name}, seed {seed}: {', '.join(grown.kept) or 'nothing'} grown", file=sys.stderr)
    if options.json is not None:
        data = {problem.name: [asdict(run) for run in runs] for problem, runs in results.items()}
        options.json.write_text(json.dumps(data, indent=1))
    if results:
        print(table(results))


if __name__ == "__main__":
    main()
