"""Karn: what people look at. The live view and the picture of a growth, and the picture of learning."""

from esper.karn.growth_picture import draw_growth
from esper.karn.learning_picture import check_summary, draw_learning
from esper.karn.live import GrowthView
from esper.karn.pictures import check_picture

__all__ = ["GrowthView", "check_picture", "check_summary", "draw_growth", "draw_learning"]
