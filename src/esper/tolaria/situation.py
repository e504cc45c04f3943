"""What a controller sees before it acts, and what a step brought: the records that decisions and rewards read."""

from dataclasses import dataclass

from torch import Tensor

from esper.kasmina import ActionMasks, Catalogue, Site, SlotTable
from esper.tolaria.signals import SignalTable


@dataclass(frozen=True, slots=True)
class Situation:
    """What a controller sees before it acts, for N hosts of one shape."""

    table: SlotTable
    signals: SignalTable
    masks: ActionMasks
    catalogue: Catalogue
    sites: tuple[Site, ...]
    host_params: int
    price: Tensor
    """`[N]`: what adding as many parameters as the host has costs."""
    budget: Tensor
    """`[N]`: the most parameters that all seeds of a host together may add."""
    episode_length: int

    @property
    def steps_left(self) -> Tensor:
        """`[N]`: epochs that are still to come."""
        return self.episode_length - self.signals.epoch

    @property
    def score(self) -> Tensor:
        """`[N]`: the latest validation score, known before the first epoch too."""
        return self.signals.score_history[:, -1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step of N hosts brought: everything that a reward may read.

    `after` is what the next decision sees, so the outcomes of an episode chain: the `after` of one is the
    `before` of the next.
    """

    before: Situation
    actions: Tensor
    """`[N, 4]` in `HEAD_NAMES` order."""
    after: Situation
    panicked: Tensor
    """`[N]` bool: the governor rolled this epoch back."""
    terminated: Tensor
    """`[N]` bool: the governor ended the episode."""
    truncated: Tensor
    """`[N]` bool: the episode reached its length."""
    final_score: Tensor
    """`[N]`: validation score of the committed network (unfinished seeds dropped); NaN before the episode's end."""
    final_loss: Tensor
    """`[N]`: its validation loss; NaN before the episode's end."""
    final_params: Tensor
    """`[N]`: parameters that the committed network adds; meaningful at the episode's end only."""

    @property
    def ended(self) -> Tensor:
        """`[N]` bool: this was the last step of the episode."""
        return self.terminated | self.truncated
