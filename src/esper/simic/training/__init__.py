"""Training a controller: the loop, checkpoints, and the controller that comes of it."""

from esper.simic.config import Phase, TrainingConfig
from esper.simic.training.controller import LearnedController, load_controller
from esper.simic.training.controller_file import CONTROLLER_SUFFIX, about_controller, pack_controller, read_controller
from esper.simic.training.resuming import resumed_config
from esper.simic.training.run_folder import RunFolder
from esper.simic.training.setup import EnvRecipe, make_pool, require_ready, settled
from esper.simic.training.trainer import InterruptedRunError, RoundReport, Trainer, TrainingSummary, collect_round
from esper.simic.training.world import GrowthWorld

__all__ = [
    "CONTROLLER_SUFFIX",
    "EnvRecipe",
    "GrowthWorld",
    "InterruptedRunError",
    "LearnedController",
    "Phase",
    "RoundReport",
    "RunFolder",
    "Trainer",
    "TrainingConfig",
    "TrainingSummary",
    "about_controller",
    "collect_round",
    "load_controller",
    "make_pool",
    "pack_controller",
    "read_controller",
    "require_ready",
    "resumed_config",
    "settled",
]
