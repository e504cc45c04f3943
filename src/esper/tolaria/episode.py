"""One episode of one host, with its network at hand: a population of one."""

from collections.abc import Mapping

from esper.kasmina import GraftedModel
from esper.nissa import Hub
from esper.tasks import Task
from esper.tolaria.population import Population
from esper.tolaria.records import EpisodeResult, EpisodeSettings


class Episode(Population):
    """A host, its slots, its optimiser and its random streams from the first epoch to the last.

    The same task, seed, settings and actions give the same episode, bit for bit. `fossils` (slot to
    blueprint) are seeds that are there from the start, for good: a network that is not grown.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        settings: EpisodeSettings | None = None,
        *,
        fossils: Mapping[str, str] | None = None,
        hub: Hub | None = None,
    ) -> None:
        super().__init__(task, 1, settings, executor="loop", hub=hub)
        self.start([seed], fossils=fossils)

    @property
    def model(self) -> GraftedModel:
        return self.executor.network(0)

    def finish(self) -> EpisodeResult:
        """What the episode ended with, test split included."""
        (result,) = self.results()
        return result
