"""Training a controller: the config, the loop, checkpoints, and the controller that comes of it."""

from esper.simic.training.config import Phase, TrainingConfig
from esper.simic.training.controller import LearnedController, load_controller
from esper.simic.training.presets import preset, preset_fields, preset_names
from esper.simic.training.recipe import EnvRecipe
from esper.simic.training.resuming import resumed_config
from esper.simic.training.rounds import RoundOutcome, collect_round
from esper.simic.training.run_folder import RunFolder
from esper.simic.training.setup import require_ready
from esper.simic.training.trainer import InterruptedRunError, RoundReport, Trainer, TrainingSummary
from esper.simic.training.world import GrowthWorld, masks_by_head, settled

__all__ = [
    "EnvRecipe",
    "GrowthWorld",
    "InterruptedRunError",
    "LearnedController",
    "Phase",
    "RoundOutcome",
    "RoundReport",
    "RunFolder",
    "Trainer",
    "TrainingConfig",
    "TrainingSummary",
    "collect_round",
    "load_controller",
    "masks_by_head",
    "preset",
    "preset_fields",
    "preset_names",
    "require_ready",
    "resumed_config",
    "settled",
]
