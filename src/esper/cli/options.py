"""Options that several commands share: how hosts train in an episode, and what growing costs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper.cli.output import check_count
from esper.leyline import DEFAULT_PRICE

if TYPE_CHECKING:
    from esper.tolaria import EpisodeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOptions:
    """Options of an episode; each that is not given has the task's own value."""

    price: float = DEFAULT_PRICE
    """Cost of doubling the host's parameters, in units of score."""
    flop_price: float = 0.0
    """Cost of doubling the host's FLOPs per sample, in addition to the price of parameters."""
    budget_params: int | None = None
    """Most parameters that growth may add; no limit by default."""
    epochs: int | None = None
    """Epochs that hosts train for; the task's default if not given."""
    batches_per_epoch: int | None = None
    """Minibatches per epoch; the task's default if not given."""
    batch_size: int | None = None
    """Samples per minibatch; the task's default if not given."""
    host_lr: float | None = None
    """Learning rate of hosts; the task's default if not given."""
    seed_lr_scale: float | None = None
    """Learning rate of seeds relative to their host's; the task's default if not given."""

    def episode_settings(self) -> "EpisodeSettings":
        from esper.kasmina import UNLIMITED
        from esper.tolaria import EpisodeSettings

        if self.budget_params is not None:
            check_count("--budget-params", self.budget_params, least=0, most=UNLIMITED)
        return EpisodeSettings(
            length=self.epochs,
            batches_per_epoch=self.batches_per_epoch,
            batch_size=self.batch_size,
            host_lr=self.host_lr,
            price=self.price,
            budget=UNLIMITED if self.budget_params is None else self.budget_params,
            flop_price=self.flop_price,
            seed_lr_scale=self.seed_lr_scale,
        )
