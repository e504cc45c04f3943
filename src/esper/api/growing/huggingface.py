"""Growing inside a Hugging Face `Trainer`; needs the extra `huggingface`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from esper.api.growing.decision import Decision
from esper.api.growing.grower import Grower
from esper.kasmina.optimizer_groups import without_seeds
from esper.leyline import InputError

GROWTH_FILE = "esper_growth.pt"
"""Name of the file with the growth in a checkpoint folder."""


class GrowthCallback(TrainerCallback):  # type: ignore[misc]  # an optional package, not looked at
    """Grows the model that is being trained, one step per epoch.

    `evaluate` takes the model and returns its score on evaluation data; the other settings are those of `Grower`.
    The trainer's checkpoints get a file with the growth; to go on from one, name its folder in `resume_from` (or say
    True for the newest in the output folder) beside `trainer.train(resume_from_checkpoint=...)`.
    """

    def __init__(
        self, *, example: Any, evaluate: Callable[..., Any], resume_from: str | bool | None = None, **settings: Any
    ) -> None:
        self._settings = {"example": example, "evaluate": evaluate, **settings}
        self._resume_from = resume_from
        self._grower: Grower | None = None

    @property
    def grower(self) -> Grower:
        if self._grower is None:
            raise InputError("growth begins when trainer.train does; there is no grower before")
        return self._grower

    @property
    def decisions(self) -> list[Decision]:
        return self.grower.history

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Put slots into the model, and the seeds of the growth to go on with."""
        optimizer = _inner(kwargs["optimizer"])
        settings = {"epochs": max(1, round(state.num_train_epochs)), **self._settings}
        self._grower = Grower(kwargs["model"], optimizer=optimizer, **settings)
        # The trainer loads the optimiser before seeds can be there, so its own files must not speak of them.
        slots = self._grower.grafted.slots
        optimizer.register_state_dict_post_hook(lambda own, found: without_seeds(own, slots, found))
        if self._resume_from:
            folder = get_last_checkpoint(args.output_dir) if self._resume_from is True else self._resume_from
            self._grower.load(Path(str(folder)) / GROWTH_FILE)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        decision = self.grower.step()
        numbers = {"growth_score": decision.score, "growth_added_params": decision.added_params}
        state.log_history.append({"epoch": state.epoch, "step": state.global_step, **numbers, "growth": str(decision)})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            self.grower.save(Path(args.output_dir) / f"checkpoint-{state.global_step}" / GROWTH_FILE)


def _inner(optimizer: Any) -> Optimizer:
    """The optimiser itself; accelerate wraps it."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    result: Optimizer = optimizer
    return result
