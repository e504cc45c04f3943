"""Watching ordinary training: gradients of seeds in optimiser steps, and the merit of would-be seeds in passes."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from esper.kasmina import GraftedModel, neighbour_correlation
from esper.kasmina.merit import VARIANTS, PassWatch, WouldBeSeeds, measure_merit
from esper.kasmina.slot import Slot
from esper.leyline import InputError


class Lookout:
    """Watches training passes of the epochs 1, 2, 4, 8, … and keeps the merit that the last of them shows.

    In other epochs, and for controllers that do not look at merit, the model has no hooks of it. Compiled passes are
    not watched, so a model that is trained compiled has none.
    """

    def __init__(self, grafted: GraftedModel, example: Any, seed: int, wanted: bool) -> None:
        self._grafted, self._wanted = grafted, wanted
        self._variant = seed % VARIANTS
        self._seeds = WouldBeSeeds(keep=False)
        self._passes: PassWatch | None = None
        self.merit = torch.full((1, *grafted.catalogue.fits.shape), torch.nan)
        """`[1, S, B]`: as last measured, whatever was planted since."""
        self.input_correlation = neighbour_correlation(example, grafted.sites)
        """Of neighbouring positions in the example."""

    def open(self, epoch: int) -> None:
        """Watch the passes after `epoch` epochs, if the next is one to look at."""
        self.close()
        self._passes = None
        if self._wanted and (epoch + 1) & epoch == 0:
            self._passes = PassWatch(self._grafted)
            self._passes.__enter__()

    def close(self) -> None:
        """Watch no longer; what was seen last can still be looked at."""
        if self._passes is not None:
            self._passes.__exit__(None, None, None)

    def look(self) -> None:
        """Measure, if passes were watched and someone asked for gradients in one."""
        if self._passes is None:
            return
        measured = measure_merit(self._grafted, self._passes, self._seeds, self._variant)
        if not measured.isnan().all():
            self.merit = measured[None].to("cpu", torch.float32)

    def of_free_slots(self) -> Tensor:
        """`[1, S, B]`: the merit as a controller sees it, NaN where a seed is by now."""
        return self.merit.masked_fill(self._grafted.table.occupied[..., None], torch.nan)


_EPOCHS_FORGOTTEN = 3
_EVERY = 16
"""Gradients are measured in every 16th step: measuring takes as long as training a small seed."""
_UNMEASURED_EPOCH = 100_000
"""Assumed optimiser steps per epoch until one has been seen."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What an epoch of training showed."""

    seed_gradients: Tensor
    """`[1, S]`: mean gradient norm of each seed over the optimiser steps that were measured, 0 without a seed."""
    host_gradient: Tensor
    """`[1]`: gradient norm of the host in the epoch's first step; NaN where there was none."""


class OptimizerWatch:
    """Counts optimiser steps and measures gradients, from hooks on the optimiser."""

    def __init__(self, optimizer: Optimizer, grafted: GraftedModel) -> None:
        self._grafted = grafted
        # Listed once, because hooks run in every optimiser step. A ModuleList forgets what it holds.
        self._slots: list[Slot] = list(grafted.slots)  # type: ignore[arg-type]
        self._seeds: list[nn.Module | None] = [None] * len(self._slots)
        self._parameters: list[list[nn.Parameter]] = [[] for _ in self._slots]
        self._epoch_steps = _UNMEASURED_EPOCH
        self._warned = False
        self._forget()
        # After the step: closures compute gradients inside of it.
        optimizer.register_step_post_hook(self._after_step)

    def _forget(self) -> None:
        slots = len(self._grafted.sites)
        self.steps = 0
        # Sums stay where the gradients are: reading them at every step would make the CPU wait for the device.
        self._sums = list(torch.zeros(slots).unbind())
        self._counts = [0] * slots
        self._host = torch.full((1,), torch.nan)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._grafted.growth.abandoned:
            return
        if self.steps == 0:
            gradients = [p.grad for p in self._grafted.host.parameters() if p.grad is not None]
            self._host = get_total_norm(gradients).view(1) if gradients else torch.full((1,), torch.nan)
        self.steps += 1
        for index, slot in enumerate(self._slots):
            if slot.seed is not self._seeds[index]:
                self._seeds[index], self._parameters[index] = slot.seed, list(slot.parameters())
            if slot.seed is not None:
                self._look_at(index)
        if self.steps > _EPOCHS_FORGOTTEN * self._epoch_steps and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.steps:,} optimiser steps since grower.step() was called; call it once after every epoch, "
                "or the network does not grow",
                stacklevel=2,
            )

    def _look_at(self, index: int) -> None:
        """Measure the gradient of one seed now and then, and until there was one; drop it in every step.

        Whoever clears gradients through the model they knew before would let those of seeds pile up.
        """
        parameters = self._parameters[index]
        if self.steps % _EVERY == 1 or not self._counts[index]:
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                norm = get_total_norm(gradients)
                self._sums[index] = self._sums[index].to(norm.device).add_(norm)
                self._counts[index] += 1
        for parameter in parameters:
            parameter.grad = None

    def check(self) -> None:
        """Raise if nothing was trained since the last reading, or if seeds that should have learned did not."""
        if self.steps == 0:
            raise InputError(
                "the optimizer has not stepped since the last grower.step(); train grower.model with the optimizer "
                "that was given to Grower, then call step"
            )
        unseen = [index for index, slot in enumerate(self._slots) if slot.seed is not None and not self._counts[index]]
        must_learn = self._grafted.table.must_learn[0] if unseen else ()
        for index in unseen:
            if must_learn[index]:
                path = self._grafted.sites[index].path
                raise InputError(
                    f"the seed behind {path!r} got no gradient in {self.steps:,} optimiser steps; train "
                    "grower.model, not a copy of the model or one that was compiled before it was given to Grower, "
                    "and let gradients reach that submodule"
                )

    def read(self) -> Watched:
        """What was seen since the last reading; counting starts anew."""
        sums, counts, host = self._seen()
        means = torch.where(counts > 0, sums / counts.clamp(min=1), 0.0)
        watched = Watched(means[None], host)
        self._epoch_steps, self._warned = self.steps, False
        self._forget()
        return watched

    def _seen(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sums, counts and the host's norm, copied to the CPU."""
        sums = torch.stack([total.cpu() for total in self._sums])
        return sums, torch.tensor(self._counts, dtype=torch.float32), self._host.to("cpu", torch.float32, copy=True)

    def state_dict(self) -> dict[str, Any]:
        tensors = dict(zip(("sums", "counts", "host"), self._seen(), strict=True))
        return {"steps": self.steps, "epoch_steps": self._epoch_steps, **tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps, self._epoch_steps = state["steps"], state["epoch_steps"]
        sums, counts, self._host = (state[name].clone() for name in ("sums", "counts", "host"))
        self._sums, self._counts = list(sums.unbind()), [int(count) for count in counts.tolist()]
