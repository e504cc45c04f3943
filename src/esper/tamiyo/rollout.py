"""Running whole episodes of one host with a controller."""

from collections.abc import Callable, Mapping

from esper.nissa import Hub
from esper.tamiyo.controller import Controller
from esper.tolaria import Episode, EpisodeResult, EpisodeSettings, Task


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
