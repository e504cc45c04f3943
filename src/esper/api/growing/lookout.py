"""Merit, measured while someone trains their own model: what would-be seeds could learn, seen in ordinary passes."""

import torch
from torch import Tensor

from esper.kasmina import GraftedModel
from esper.kasmina.merit import VARIANTS, PassWatch, WouldBeSeeds, measure_merit


class Lookout:
    """Watches training passes of the epochs 1, 2, 4, 8, … and keeps the merit that the last of them shows.

    In other epochs, and for controllers that do not look at merit, the model has no hooks of it. Compiled passes are
    not watched, so a model that is trained compiled has none.
    """

    def __init__(self, grafted: GraftedModel, seed: int, *, wanted: bool) -> None:
        self._grafted, self._wanted = grafted, wanted
        self._variant = seed % VARIANTS
        self._seeds = WouldBeSeeds(keep=False)
        self._passes: PassWatch | None = None
        self.merit = torch.full((1, *grafted.catalogue.fits.shape), torch.nan)
        """`[1, S, B]`: as last measured, whatever was planted since."""

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
