"""Tiny runs to watch: healthy ones over several tasks, and the means to plant a fault between two rounds."""

import math
from collections.abc import Callable
from typing import Any

import torch

from esper.leyline import EventType
from esper.nissa import Hub, MemorySink
from esper.simic.config.reward import RewardConfig, RewardFamily
from esper.simic.training import RoundReport, Trainer, TrainingConfig
from esper.tasks import OptimizerSettings, Split, Splits, task
from tests.simic.builders import config_of
from tests.worlds import TINY

WAVES = "tiny-waves"
WARM_UP = 2
"""Rounds in which alarms are not counted."""


def _waves(num: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (num,), generator=generator)
    phase = 2 * math.pi * torch.rand(num, 1, generator=generator)
    x = torch.sin(torch.linspace(0, 6, 20) * (y[:, None] + 1) + phase)
    return Split(x + 0.5 * torch.randn(num, 20, generator=generator), y)


@task(
    WAVES,
    "noisy waves of three lengths",
    host="conv1d",
    classes=3,
    optimizer=OptimizerSettings("adamw", lr=1e-2),
    host_settings={"channels": (4, 4, 4), "classes": 3},
    batches_per_epoch=4,
)
def load_waves() -> Splits:
    return Splits(_waves(128, 1), _waves(64, 2), _waves(64, 3))


def watched_config(**overrides: Any) -> TrainingConfig:
    """As runs usually are, but tiny."""
    settings: dict[str, Any] = {
        "tasks": (TINY,),
        "envs": 4,
        "rounds": 5,
        "episode_length": 10,
        "executor": "loop",
        "validation_episodes": 1,
        "validate_every": 0,
        "lstm_hidden_dim": 16,
        "num_minibatches": 4,
        "gae_lambda": 0.9,
        "entropy_coef": 0.002,
        "teacher": "heuristic",
        "reward": RewardConfig(gamma=1.0, scale=10.0, family=RewardFamily.SPARSE, holding_cost=0.002),
    }
    return config_of(**(settings | overrides))


Plant = Callable[[Trainer], None]


def alarms_of(config: TrainingConfig, plant: Plant | None = None, after: int = WARM_UP) -> list[tuple[int, str, str]]:
    """Round, kind and message of every alarm of a run; the fault is planted when round `after` is over."""
    sink = MemorySink()

    def watch(report: RoundReport) -> None:
        if plant is not None and report.record.round == after:
            plant(trainer)

    trainer = Trainer(config, hub=Hub([sink]), watch=watch)
    trainer.run()
    found = [event for event in sink.events if event.event_type is EventType.ANOMALY_DETECTED]
    return [(event.round or 0, str(event.payload["anomaly"]), str(event.payload["message"])) for event in found]
