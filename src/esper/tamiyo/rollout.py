"""Running whole episodes with a controller: of one host, or of many at once."""

from collections.abc import Callable, Mapping, Sequence

from esper.nissa import Hub
from esper.tamiyo.controller import Controller
from esper.tasks import Task
from esper.tolaria import Episode, EpisodeResult, EpisodeSettings, Population

_AT_ONCE = 32
"""Hosts that run side by side: enough to be fast, few enough for memory."""


def run_episode(
    task: Task,
    controller: Controller,
    seed: int,
    settings: EpisodeSettings | None = None,
    *,
    hub: Hub | None = None,
    fossils: Mapping[str, str] | None = None,
    after_step: Callable[[Episode], None] = lambda _: None,
) -> EpisodeResult:
    """One episode from start to end; `fossils` are seeds (slot to blueprint) that are there from the start."""
    episode = Episode(task, seed, settings, fossils=fossils, hub=hub)
    controller.reset(1, seed)
    while not episode.done:
        episode.step(controller.decide(episode.situation))
        after_step(episode)
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
    step of a batch.

    With the executor `stacked` results agree with `run_episode` as far as float arithmetic lets training agree:
    networks that are trained for hundreds of steps differ in the last digits at first and visibly at the end.
    """
    results: list[EpisodeResult] = []
    for first in range(0, len(seeds), _AT_ONCE):
        batch = seeds[first : first + _AT_ONCE]
        population = Population(task, len(batch), settings, executor=executor)
        population.start(batch, fossils=fossils)
        controller.reset(len(batch), batch[0])
        while not population.done:
            population.step(controller.decide(population.situation))
            after_step()
        results += population.results(test=test)
        progress(len(results))
    return results
