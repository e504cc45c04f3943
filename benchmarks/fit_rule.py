"""Fit the distilled rule to what searches found: which kind first, where, and up to which rent.

    esper search --task training --out runs/plans
    python -m benchmarks.fit_rule --folder runs/plans

Line by line: the one is taken that adds most to what the searches' models expect of the rule, in the mean over tasks
and prices, until none adds anything. Nothing is played.
"""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

from esper.kasmina import Family, blueprints_of
from esper.leyline import Blend, Op
from esper.simic.search import Plan, SearchJob, SearchSettings, TaskFindings, search_tasks
from esper.tamiyo import Planting, RulePlanting, RuleSettings
from esper.tamiyo.rule import place_for
from esper.tasks import expand_collections, find_task
from esper.tolaria import EpisodeSettings, Population, Situation

_DEPTHS = tuple(step / 6 for step in range(7))
_RENTS = (0.3, 1.0, 2.0, 4.0, 8.0)
_LEAST = 0.05
"""Points that a line has to add."""


@dataclass
class Options:
    """What the rule is fitted to."""

    folder: Path
    """Folder of `esper search`, whose searches have ended."""
    tasks: tuple[str, ...] = ("training",)
    """Tasks or collections of tasks."""
    prices: tuple[float, ...] = (0.01, 0.03, 0.1)
    """Prices that count alike."""
    search_episodes: int = 256
    """As in the search."""
    final_seeds: int = 32
    """As in the search."""
    lines: int = 3
    """Most lines of the rule."""
    seed: int = 0
    """As in the search."""


@dataclass
class Case:
    """A task whose search has ended, and a host of it at its start."""

    found: TaskFindings
    situation: Situation

    @property
    def of_maps(self) -> bool:
        """Whether the rule treats its hosts as networks of feature maps."""
        return any(site.shape.family is not Family.FEATURES for site in self.situation.sites)

    def expected(self, settings: RuleSettings, price: float) -> float:
        """What the search's model expects of the rule, rent paid, in points."""
        plan = self.plan(settings, price)
        return float(self.found.space.features([plan]) @ self.found.effects) - self.found.space.rent(plan, price)

    def plan(self, settings: RuleSettings, price: float) -> Plan:
        """What the rule plants at this price."""
        masks = replace(self.situation.masks, slot=self.situation.masks.slot.clone())
        situation = replace(self.situation, masks=masks, price=torch.tensor([price]))
        lines, first = settings.lines_for(situation.sites)
        plan: Plan = ()
        for line in lines:
            place = place_for(line, situation, 0)
            if place is not None:
                masks.slot[0, Op.GERMINATE, place[0]] = False
                plan = (*plan, Planting(first + len(plan), *place, Blend.INSTANT))
        return plan


def read(options: Options) -> list[Case]:
    """The searches in the folder; one that has not ended is finished first."""
    names = expand_collections(options.tasks)
    settings = SearchSettings(episodes=options.search_episodes, final_seeds=options.final_seeds, seed=options.seed)
    episode = EpisodeSettings(merit=False)
    cases = []
    for found in search_tasks(SearchJob(tuple(names), options.folder, settings, episode)):
        population = Population(find_task(found.task), 1, episode, executor="loop")
        population.start([0])
        cases.append(Case(found, population.situation))
    return cases


def fit(cases: list[Case], part: str, options: Options) -> tuple[RulePlanting, ...]:
    """The lines for networks of one kind, `maps` or `features`."""
    kinds = sorted({kind.name for family in Family for kind in blueprints_of(family)})
    candidates = [RulePlanting(*values) for values in itertools.product(kinds, _DEPTHS, _RENTS)]

    def value(lines: tuple[RulePlanting, ...]) -> float:
        settings = RuleSettings(lines, ()) if part == "maps" else RuleSettings((), lines)
        expected = [case.expected(settings, price) for case in cases for price in options.prices]
        return sum(expected) / len(expected)

    lines: tuple[RulePlanting, ...] = ()
    reached = value(lines)
    while len(lines) < options.lines:
        best, line = max(((value((*lines, line)), line) for line in candidates), key=lambda pair: pair[0])
        if best < reached + _LEAST:
            break
        lines, reached = (*lines, line), best
        print(f"{part}: {line}, {reached:+.2f} points over {len(cases)} tasks", flush=True)
    return lines


def main() -> None:
    """Print the settings."""
    options = tyro.cli(Options, description=__doc__)
    torch.set_num_threads(1)
    cases = read(options)
    for part, chosen in (("maps", True), ("features", False)):
        fit([case for case in cases if case.of_maps is chosen], part, options)


if __name__ == "__main__":
    main()
