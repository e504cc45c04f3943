"""Karn: what people look at. The live view and the picture of a growth."""

from esper.karn.growth_picture import draw_growth
from esper.karn.live import GrowthView

__all__ = ["GrowthView", "draw_growth"]
