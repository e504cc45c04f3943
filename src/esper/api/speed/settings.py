"""What `esper bench speed` measures, and for how long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeedSettings:
    """Sizes and times of the benchmark."""

    hosts: tuple[str, ...] = ("mlp", "conv1d", "conv2d")
    """Hosts of the zoo, with their default settings."""
    nums: tuple[int, ...] = (1, 8, 32, 128)
    """How many hosts train side by side."""
    batch_size: int = 32
    repeats: int = 3
    """Interleaved repeats; medians are reported."""
    turn_seconds: float = 0.25
    """How long one turn of one contender should take at least, as far as one minibatch is shorter."""
    turn_batches: int = 10
    """How many minibatches one turn has at least, as in an epoch, whose beginning costs something too."""
    case_seconds: float = 15.0
    """The most that all turns of one host at one N may take; what would take longer is repeated less or skipped."""
    episode_length: int = 12
    """Steps of the episode in which the parts of a whole step are timed."""
    step_envs: int = 32
    """Hosts of that episode."""
    growth_nums: tuple[int, ...] = (1, 8, 32, 128)
    growth_slots: tuple[int, ...] = (3, 5, 7, 9)
    """Odd numbers: see `task_with_slots`."""
    growth_lengths: tuple[int, ...] = (5, 10, 20)
    growth_steps: int = 5
    """Steps of an episode where time and memory are measured against N and slots."""
    batches_per_epoch: int = 25
    """Minibatches in a step of the environment."""


DEFAULT = SpeedSettings()
QUICK = SpeedSettings(
    nums=(2,),
    repeats=1,
    turn_seconds=0.01,
    turn_batches=1,
    case_seconds=1.0,
    episode_length=4,
    step_envs=4,
    growth_nums=(2,),
    growth_slots=(),
    growth_lengths=(),
    growth_steps=2,
    batches_per_epoch=2,
)
"""Seconds instead of minutes: whether everything runs, not how fast."""
