"""One episode of one host, with its network at hand: a population of one."""

from collections.abc import Mapping

from torch import Tensor

from esper.kasmina import GraftedModel
from esper.nissa import Hub
from esper.tasks import Task
from esper.tolaria.population import Population
from esper.tolaria.records import EpisodeResult, EpisodeSettings
from esper.tolaria.signals import SignalTable
from esper.tolaria.situation import Outcome, Situation


class Episode:
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
        self._population = Population(task, 1, settings, executor="loop", hub=hub)
        self._population.start([seed], fossils=fossils)
        self.task = task
        self.length = self._population.length
        self.host_params = self._population.host_params

    @property
    def model(self) -> GraftedModel:
        """The network as it is now."""
        return self._population.executor.network(0)

    @property
    def signals(self) -> SignalTable:
        """What training has looked like so far."""
        return self._population.signals

    @property
    def situation(self) -> Situation:
        """What the controller sees now."""
        return self._population.situation

    @property
    def done(self) -> bool:
        """Whether the episode is over, by time or by the governor."""
        return self._population.done

    def step(self, actions: Tensor) -> Outcome:
        """Act (`actions [1, 4]`), train one epoch, measure, move seeds on, and let the governor judge.

        An illegal action raises before anything changes.
        """
        return self._population.step(actions)

    def finish(self) -> EpisodeResult:
        """What the episode ended with, test split included."""
        (result,) = self._population.results()
        return result
