"""Every option of a run, in groups, with its range and a sentence beside it. Importing this does not import torch."""

from esper.simic.config.checking import Range
from esper.simic.config.presets import preset, preset_names
from esper.simic.config.reward import RewardConfig
from esper.simic.config.training import (
    FIRST_LESSON,
    GROWTH_REWARD,
    LearnerConfig,
    LessonConfig,
    Phase,
    TelemetryOptions,
    TrainingConfig,
    WorldConfig,
    changed,
)

__all__ = [
    "FIRST_LESSON",
    "GROWTH_REWARD",
    "LearnerConfig",
    "LessonConfig",
    "Phase",
    "Range",
    "RewardConfig",
    "TelemetryOptions",
    "TrainingConfig",
    "WorldConfig",
    "changed",
    "preset",
    "preset_names",
]
