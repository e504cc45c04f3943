"""Growing inside a Lightning trainer; needs the extra `lightning`."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.hooks import RemovableHandle

from esper.api.growing.decision import Decision
from esper.api.growing.grower import Grower
from esper.kasmina import leave_out_seeds
from esper.leyline import InputError


class GrowthCallback(Callback):  # type: ignore[misc]  # an optional package, not looked at
    """Grows the module that is being fitted, one step per training epoch.

    `evaluate` takes the module and returns its score on validation data; the other settings are those of `Grower`.
    Growth is saved in the trainer's checkpoints, and `fit(..., ckpt_path=...)` goes on with it. To get back what a
    checkpoint holds, load its `state_dict` into the module that was fitted; the plain class refuses it.
    """

    def __init__(self, *, example: Any, evaluate: Callable[..., Any], **settings: Any) -> None:
        self._settings = {"example": example, "evaluate": evaluate, **settings}
        self._grower: Grower | None = None
        self._saved: Mapping[str, Any] | None = None
        self._without_seeds: RemovableHandle | None = None

    @property
    def grower(self) -> Grower:
        if self._grower is None:
            raise InputError("growth begins when trainer.fit does; there is no grower before")
        return self._grower

    @property
    def decisions(self) -> list[Decision]:
        return self.grower.history

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Before the trainer loads a checkpoint into a module without slots: its seeds come with the growth, later."""
        if stage == "fit" and self._grower is None:
            self._without_seeds = leave_out_seeds(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put slots into the module, and the seeds that a checkpoint speaks of.

        This early, because the trainer next loads the optimiser's state, which needs the seeds to be there.
        """
        if len(trainer.optimizers) != 1:
            raise InputError(f"growing needs a module with one optimizer; this one has {len(trainer.optimizers)}")
        if self._without_seeds is not None:
            self._without_seeds.remove()
            self._without_seeds = None
        if self._grower is None:
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            settings = {"epochs": trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None, **self._settings}
            self._grower = Grower(pl_module, optimizer=trainer.optimizers[0], schedulers=schedulers, **settings)
        if self._saved is not None:
            self._grower.load_state_dict(self._saved)
            self._saved = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        decision = self.grower.step()
        numbers = {"growth/score": decision.score, "growth/added_params": float(decision.added_params)}
        pl_module.log_dict(numbers, rank_zero_only=True)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._grower is None else self._grower.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the growth of a checkpoint until there is an optimiser to go on with it."""
        self._saved = state_dict or None
