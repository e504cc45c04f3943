"""Running whole episodes with a controller: of one host, or of many at once."""

from collections.abc import Callable, Mapping, Sequence

from esper.nissa import Hub
from esper.tamiyo.simple import Controller
from esper.tasks import Task
from esper.tolaria import Episode, EpisodeResult, EpisodeSettings, Outcome, Population

_AT_ONCE = 32
"""Hosts that run side by side: enough to be fast, few enough for memory."""


def play(
    population: Population, controller: Controller, seed: int, after_step: Callable[[Outcome], None] = lambda _: None
) -> None:
    """Let `controller`, reset with `seed`, decide until all episodes that have begun in `population` are over."""
    controller.reset(population.num_hosts, seed)
    while not population.done:
        after_step(population.step(controller.decide(population.situation)))


def run_episode(
    task: Task,
    controller: Controller,
    seed: int,
    settings: EpisodeSettings | None = None,
    *,
    hub: Hub | None = None,
    fossils: Mapping[str, str] | None = None,
) -> EpisodeResult:
    """One episode from start to end; `fossils` are seeds (slot to blueprint) that are there from the start."""
    episode = Episode(task, seed, settings, fossils=fossils, hub=hub)
    play(episode, controller, seed)
    return episode.finish()


def run_episodes(
    task: Task,
    controller: Controller,
    seeds: Sequence[int],
    settings: EpisodeSettings | None = None,
    *,
    executor: str = "auto",
    test: bool = True,
    fossils: Mapping[str, str] | None = None,
    after_step: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda _: None,
) -> list[EpisodeResult]:
    """An episode for each seed, many side by side; `progress` is told how many are done.

    The test split is read unless `test` is False. `fossils` are as in `run_episode`. `after_step` is called after every
    step of those that run side by side.

    With the executor `stacked` results agree with `run_episode` as far as float arithmetic lets training agree:
    networks that are trained for hundreds of steps differ in the last digits at first and visibly at the end.
    """
    results: list[EpisodeResult] = []
    for first in range(0, len(seeds), _AT_ONCE):
        batch = seeds[first : first + _AT_ONCE]
        population = Population(task, len(batch), settings, executor=executor)
        population.start(batch, fossils=fossils)
        play(population, controller, batch[0], lambda _: after_step())
        results += population.results(test=test)
        progress(len(results))
    return results
