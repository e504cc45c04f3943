"""Karn: what people look at. The live view and the picture of a growth, and the picture of learning."""

from esper.karn.growth_picture import draw_growth
from esper.karn.learning_picture import draw_learning
from esper.karn.live import GrowthView

__all__ = ["GrowthView", "draw_growth", "draw_learning"]
