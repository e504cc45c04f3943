"""What the tests of all controllers share."""

from esper.tamiyo import Controller
from esper.tolaria import Episode
from tests.worlds import tiny_task


def actions_of(controller: Controller, seed: int = 0) -> list[list[int]]:
    episode = Episode(tiny_task(), seed)
    controller.reset(1, seed)
    actions = []
    while not episode.done:
        chosen = controller.decide(episode.situation)
        actions.append(chosen[0].tolist())
        episode.step(chosen)
    return actions
