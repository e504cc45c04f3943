"""What a controller sees before it acts, and what a step brought: the records that decisions and rewards read."""

from dataclasses import dataclass

from torch import Tensor

from esper.kasmina import ActionMasks, Catalogue, Site, SlotTable
from esper.leyline import rent
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
    host_flops: int = 1
    """Of one sample through the host; 1 where they were not counted, because nothing is charged for them."""
    flop_price: float = 0.0
    """What adding as many FLOPs as the host needs for a sample costs."""
    merit: Tensor | None = None
    """`[N, S, B]`: how much each kind would have to learn in each free slot (`kasmina/merit.py`), as last measured.

    NaN where that is not known, the slot is occupied, or the kind refines or does not fit; None where nobody measures.
    """

    @property
    def steps_left(self) -> Tensor:
        """`[N]`: epochs that are still to come."""
        return self.episode_length - self.signals.epoch

    @property
    def planted_flops(self) -> Tensor:
        """`[N, S]`: what the seed in each slot adds to a forward pass of one sample; 0 without a seed."""
        return self.catalogue.planted_flops(self.table)

    def rent(self, params: Tensor, flops: Tensor) -> Tensor:
        """What so many parameters and FLOPs, each `[N, ...]` or the same for all hosts, `[1, ...]`, cost each host."""
        price = self.price.view(-1, *[1] * (params.ndim - 1))
        return rent(params, self.host_params, price, flops, self.host_flops, self.flop_price)

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
    final_flops: Tensor
    """`[N]`: FLOPs that it adds to a forward pass of one sample; likewise."""

    @property
    def ended(self) -> Tensor:
        """`[N]` bool: this was the last step of the episode."""
        return self.terminated | self.truncated
