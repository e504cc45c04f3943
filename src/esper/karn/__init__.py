"""Karn: what people look at. The live view and the picture of a growth, and the picture of learning."""

from esper.karn.live import GrowthView
from esper.karn.pictures import check_picture, check_summary, draw_growth, draw_learning

__all__ = ["GrowthView", "check_picture", "check_summary", "draw_growth", "draw_learning"]
