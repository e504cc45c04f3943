"""The single-object view of a slot that people like, read from the table."""

from typing import TYPE_CHECKING

from esper.kasmina.blueprints import find_blueprint
from esper.leyline import Stage

if TYPE_CHECKING:
    from esper.kasmina.graft import GraftedModel


class SlotView:
    """What people ask of one slot of a grafted model."""

    def __init__(self, model: "GraftedModel", index: int) -> None:
        self._model = model
        self._index = index

    @property
    def stage(self) -> Stage:
        """Where its seed stands."""
        return Stage(int(self._model.table.stage[0, self._index]))

    @property
    def alpha(self) -> float:
        """Weight of the seed in the epoch to come."""
        return float(self._model.table.alpha[0, self._index])

    @property
    def epochs_in_stage(self) -> int:
        """Epochs finished since the stage was entered."""
        return int(self._model.table.epochs_in_stage[0, self._index])

    @property
    def blueprint_id(self) -> int:
        """1 to 5, or 0 without a seed."""
        return int(self._model.table.blueprint[0, self._index])

    @property
    def blueprint(self) -> str | None:
        """Name of the seed's blueprint."""
        family = self._model.sites[self._index].shape.family
        return find_blueprint(family, self.blueprint_id).name if self.blueprint_id else None

    @property
    def occupied(self) -> bool:
        """Whether it holds a seed."""
        return bool(self._model.table.occupied[0, self._index])

    @property
    def contribution(self) -> float:
        """Score with the seed minus without it in the last epoch; NaN where not measured."""
        return float(self._model.table.contribution[0, self._index])
