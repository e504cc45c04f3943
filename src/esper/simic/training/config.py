"""`TrainingConfig`: everything that a training run depends on, checked when it is made."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from esper.kasmina import UNLIMITED
from esper.leyline import (
    DEFAULT_CLIP_RATIO,
    DEFAULT_VALUE_CLIP,
    DEFAULT_VALUE_COEF,
    ENTROPY_COLLAPSE,
    GRADIENT_DRIFT,
    HEAD_NAMES,
    KL_ANOMALY,
    MAX_RATIO,
    MIN_EXPLAINED_VARIANCE,
    MIN_RATIO,
    InputError,
    read_json,
    unknown_name,
    write_atomically,
)
from esper.simic.agent.losses import DEFAULT_HUBER_DELTA, ValueLossType
from esper.simic.agent.optimizer import GradClipMode
from esper.simic.rewards import RewardConfig, RewardFamily, check_learner
from esper.simic.telemetry import LEVELS
from esper.simic.training.config_checks import _validate_range, check_ranges, check_types
from esper.simic.training.config_json import from_plain, to_plain
from esper.tamiyo import controller_names
from esper.tolaria import ComputeSettings, EpisodeSettings, TrackerSettings, executor_names, find_task
from esper.tolaria.compute import DEFAULT_COMPUTE

GROWTH_GAMMA = 1.0
"""An episode's end is the end of the problem, so nothing that comes later counts less."""
GROWTH_REWARD = RewardConfig(
    RewardFamily.SPARSE, gamma=GROWTH_GAMMA, scale=10.0, governor_penalty=0.05, holding_cost=0.002
)
"""Pays the objective at the end. Paid as it changes it sums to the same, but a value function then has to predict a
whole learning curve, and its error in that is larger than what decisions bring."""
KL_TARGETS = 4.0
"""An update stops by itself at 1.5 times its target; this many times it shows that stopping did not help."""
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "lr_schedule": ("constant", "linear"),
    "value_loss_type": get_args(ValueLossType),
    "grad_clip_mode": get_args(GradClipMode),
    "hidden_storage": ("all", "first"),
}
"""What fields with a fixed choice of names may hold."""
IMITATED_ENTROPY = 0.01
"""A policy that imitated a teacher has decided from its first round on: only less than this is a collapse there."""

MINIBATCHES = 8
"""Groups of episodes per pass where a config does not say how many, and a round has that many episodes."""
_ROUNDING = 1e-6
"""Rounds by which a share of a run, as 0.07 of 100, may miss a whole number."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A first part of a run, in a world of its own; what is not given is as in the rest of the run."""

    until: float
    """Share of the run's rounds at which the phase ends."""
    tasks: tuple[str, ...] | None = None
    """As many tasks as the run has."""
    price: float | tuple[float, float] | None = None
    """The price of parameters."""
    budget: int | None = None
    """The most parameters that all seeds of a host together may add."""


@dataclass(slots=True)
class TrainingConfig:
    """What a run trains, on what, and how. Every field has a default that works."""

    tasks: tuple[str, ...] = ("mnist1d", "mnist1d-shuffled")
    """Tasks that every round mixes, the same number of hosts of each; see `esper tasks`."""
    envs: int = 32
    """Hosts of each task in a round."""
    rounds: int = 60
    """Rounds of whole episodes, each followed by an update."""
    episode_length: int | None = None
    """Steps (host epochs) in an episode; each task's own number if not given."""
    seed: int = 0
    """Seeds the controller's weights and decisions, and the episodes it learns from."""
    executor: str = "auto"
    """How hosts run: loop, stacked, or auto, which times both for a moment."""
    workers: int = 1
    """Processes that hosts are spread over, at least one for each task; 1: everything runs in this process."""
    device: str = "auto"
    """Where the controller lives; auto takes CUDA where there is one."""
    precision: str = DEFAULT_COMPUTE.precision
    """Number format in which hosts train: float32, bfloat16 or float16; the last two need the executor loop."""
    compile_hosts: bool = DEFAULT_COMPUTE.compile_hosts
    """Whether the passes of hosts are compiled, which pays for large hosts; needs the executor loop."""
    host_devices: tuple[str, ...] = DEFAULT_COMPUTE.devices
    """Where hosts train, shared out over these devices; all but the CPU alone needs the executor loop."""
    telemetry: Literal["off", "minimal", "normal", "debug"] = "normal"
    """How much is recorded; what is learned does not depend on it."""

    price: float | tuple[float, float] = (0.01, 0.1)
    """What adding as many parameters as the host has costs; of a range, each episode draws log-uniformly."""
    flop_price: float = 0.0
    """What adding as many FLOPs as the host needs for a sample costs, beside the price of parameters."""
    twins: bool = True
    """Whether hosts are paid relative to twins, from the same seeds, that are left alone."""
    twin_weight: float = 0.4
    """How much of its own twin's luck is taken off a host's reward; the mean of all twins of its task always is."""
    distinct_rounds: int = 4
    """Rounds after which the seeds of episodes come round again if there are twins, which are then known already."""
    budget: int = UNLIMITED
    """The most parameters that all seeds of a host together may add."""
    batches_per_epoch: int | None = None
    """Minibatches in a step (host epoch); each task's own number if not given."""
    batch_size: int | None = None
    """Samples per minibatch of a host's training; each task's own number if not given."""
    host_lr: float | None = None
    """Learning rate of hosts; each task's own if not given. Other lengths of training want other rates."""
    seed_lr_scale: float | None = None
    """Learning rate of seeds relative to their host's; each task's own number if not given."""
    curriculum: tuple[Phase, ...] = ()
    """Phases that a run goes through before the tasks, price and budget above are its own, easiest first."""
    reward: RewardConfig = field(default_factory=lambda: GROWTH_REWARD)
    """What a step pays; its gamma and horizon_is_terminal must be the learner's."""

    teacher: str | None = "heuristic"
    """Controller whose decisions the policy imitates before it learns from its own: heuristic, schedule, random or
    never; none starts from dice."""
    lessons: int = 2
    """Rounds with the teacher: it plays the first; in others the policy plays and is told what it would have done."""
    lesson_passes: int = 60
    """Passes over each of these rounds."""
    lesson_lr: float = 3e-3
    """Learning rate in them."""
    lesson_smoothing: float = 0.2
    """Probability that is left for other ops than the teacher's ..."""
    lesson_detail_smoothing: float = 0.05
    """... and for other slots, blueprints and blends, by which an op is judged."""

    lstm_hidden_dim: int = 64
    """Width of the controller's memory."""
    hidden_storage: Literal["all", "first"] = "all"
    """LSTM states that are kept of a round: all, or the first of each episode, which learning needs; without the others
    nothing is told of the memory's health."""
    compile_network: bool = False
    """Whether the controller's network is compiled, which takes minutes and does not pay on a CPU."""
    lr: float = 2e-3
    """Learning rate of the controller ..."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """... which falls to a tenth over the run if linear."""
    head_lr_scale: dict[str, float] = field(default_factory=dict)
    """Factors on the learning rate of single heads (slot, blueprint, blend, op); heads that are not named have 1."""
    gamma: float = GROWTH_GAMMA
    """Discount."""
    gae_lambda: float = 0.9
    """How far advantages trust rewards over values: what a value has learned of earlier rounds is less noisy."""
    value_lambda: float | None = None
    """The same for the returns that values are fitted to; not given: gae_lambda."""
    value_memory: int = 0
    """Rounds that values are fitted to once more after every update, so that they average the luck of episodes out."""
    clip_ratio: float = DEFAULT_CLIP_RATIO
    """How far one update may move the probability of an action."""
    target_kl: float | None = 0.05
    """An update stops at 1.5 times this much change of the policy; none never stops it."""
    epochs: int = 4
    """Passes over a round; exact, because every episode is replayed from its start."""
    num_minibatches: int | None = None
    """Groups of whole episodes per pass; not given: 8, or as many as a round has episodes if those are fewer."""
    entropy_coef: float = 0.004
    """Weight of the entropy bonus at the start ..."""
    entropy_coef_min: float = 0.0
    """... and at the end of the decay."""
    entropy_decay: float = 0.8
    """Share of the run over which the entropy weight falls; 0 keeps it constant."""
    entropy_coef_per_head: dict[str, float] = field(default_factory=dict)
    """Factors on the entropy weight of single heads (slot, blueprint, blend, op); heads that are not named have 1."""
    adaptive_entropy_floor: bool = False
    """Whether the least entropy weight rises where masks leave few choices."""
    value_coef: float = DEFAULT_VALUE_COEF
    """Weight of the value loss."""
    value_loss_type: ValueLossType = "mse"
    """Loss of the value function: mse, or huber, which grows linearly for errors beyond huber_delta."""
    huber_delta: float = DEFAULT_HUBER_DELTA
    """Error beyond which Huber's loss is linear, in units of the return scale."""
    clip_value: bool = True
    """Whether the value loss is that of the worse of a value and the same kept within value_clip of where it was."""
    value_clip: float = DEFAULT_VALUE_CLIP
    """How far values may move in one update, in units of the return scale."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm ..."""
    grad_clip_mode: GradClipMode = "per_head"
    """... those of each head, the value head and the trunk apart (per_head), or all together (global)."""
    weight_decay: float = 0.0
    """Decay of the value head alone."""
    op_bias: tuple[float, float, float, float] = (0.5, 0.0, 1.0, -2.0)
    """Logits that WAIT, GERMINATE, FOSSILIZE and CULL start with, and by which ops beside a teacher's are tried. Dice
    that cull what they have just planted show nothing about what to plant, so a new policy mostly keeps."""
    horizon_is_terminal: bool = True
    """Whether an episode's end is the end of the problem, worth nothing afterwards."""

    germinate_when_stable: bool = False
    """Whether nothing may germinate in a host before it counts as stable."""
    stable_improvement: float = TrackerSettings().stable_improvement
    """Relative fall of a host's validation loss below which an epoch counts as stable."""
    stable_epochs: int = TrackerSettings().stable_epochs
    """Stable epochs in a row after which a host counts as stable enough for seeds."""

    validate_every: int = 10
    """Rounds between validations of the deterministic policy; the best by them is kept. 0: only at the end."""
    validation_episodes: int = 16
    """Episodes of each task in a validation, always the same seeds."""
    checkpoint_every: int = 1
    """Rounds between checkpoints."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints stay, beside the best."""

    anomaly_max_ratio_threshold: float = MAX_RATIO
    """Probability ratios above this are an anomaly."""
    anomaly_min_ratio_threshold: float = MIN_RATIO
    """Probability ratios below this are an anomaly."""
    anomaly_min_explained_variance: float = MIN_EXPLAINED_VARIANCE
    """Explained variance below this is an anomaly."""
    anomaly_entropy_limit: float | None = None
    """Normalised entropy of a head below this is an anomaly; not given: 0.1, or 0.01 after a teacher's lesson."""
    anomaly_kl_limit: float | None = None
    """A change of the policy by one update above this many nats is an anomaly; not given: 0.1, or four times
    target_kl if that is more."""
    anomaly_drift_limit: float = GRADIENT_DRIFT
    """A gradient norm off its running mean by more than so many times that mean is an anomaly."""
    critic_rounds: int = 10
    """Rounds before anything is expected of the critic."""

    def __post_init__(self) -> None:
        check_types(self)
        check_ranges(self)
        self._check_names()
        check_learner(self.reward, self.gamma, self.horizon_is_terminal)
        episodes = self.envs * len(self.tasks)
        if self.num_minibatches is not None and self.num_minibatches > episodes:
            raise InputError(
                f"num_minibatches must be at most the {episodes} episodes of a round; got {self.num_minibatches}"
            )
        self.episode_settings().compute.check_executor(self.executor)
        self._check_curriculum()

    def _check_names(self) -> None:
        if not self.tasks:
            raise InputError("tasks must name at least one task; see `esper tasks`")
        for task in self.tasks:
            find_task(task)
        if len(set(self.tasks)) < len(self.tasks):
            raise InputError(f"tasks names a task twice: {', '.join(self.tasks)}")
        if self.teacher is not None and self.teacher not in controller_names():
            raise unknown_name("teacher", self.teacher, controller_names())
        for name, allowed in {"executor": executor_names(), "telemetry": LEVELS, **_CHOICES}.items():
            if getattr(self, name) not in allowed:
                raise unknown_name(name, getattr(self, name), allowed)
        for name in ("head_lr_scale", "entropy_coef_per_head"):
            for head in getattr(self, name):
                if head not in HEAD_NAMES:
                    raise unknown_name(f"head in {name}", head, HEAD_NAMES)

    def _check_curriculum(self) -> None:
        reached = 0.0
        for index, phase in enumerate(self.curriculum):
            name = f"curriculum[{index}]"
            check_types(phase, f"{name}.")
            _validate_range(phase.until, f"{name}.until", reached, 1, low_inclusive=False, high_inclusive=False)
            reached = phase.until
            if phase.tasks is not None and len(phase.tasks) != len(self.tasks):
                raise InputError(
                    f"{name}.tasks must name {len(self.tasks)} tasks, as many as the run; got {phase.tasks}"
                )
            replace(self, curriculum=(), **_given(phase))

    def phase_in(self, round_index: int) -> int:
        """The phase of the curriculum that a round, counted from 0, is in by its share of the run.

        The number of phases stands for the rest of the run, after the last of them.
        """
        return sum(round_index >= phase.until * self.rounds - _ROUNDING for phase in self.curriculum)

    def in_phase(self, phase: int) -> Self:
        """The config of a phase; it has no curriculum."""
        if not self.curriculum:
            return self
        changes = _given(self.curriculum[phase]) if phase < len(self.curriculum) else {}
        return replace(self, curriculum=(), **changes)

    def episode_settings(self) -> EpisodeSettings:
        """How episodes run."""
        tracker = TrackerSettings(**self.to_tracker_kwargs())
        compute = ComputeSettings(self.precision, self.compile_hosts, self.host_devices)
        return EpisodeSettings(
            self.episode_length,
            self.price,
            self.budget,
            self.batches_per_epoch,
            self.batch_size,
            self.host_lr,
            self.germinate_when_stable,
            flop_price=self.flop_price,
            seed_lr_scale=self.seed_lr_scale,
            tracker=tracker,
            compute=compute,
        )

    def to_ppo_kwargs(self) -> dict[str, Any]:
        """Arguments of `PPOAgent` that this config decides; the trainer adds what depends on the tasks."""
        same = (
            "lr", "head_lr_scale", "gamma", "gae_lambda", "value_lambda", "value_memory", "clip_ratio", "target_kl",
            "entropy_coef", "entropy_coef_min", "entropy_coef_per_head", "adaptive_entropy_floor",
            "value_coef", "value_loss_type", "huber_delta", "clip_value", "value_clip", "max_grad_norm",
            "grad_clip_mode", "weight_decay", "lstm_hidden_dim", "hidden_storage", "compile_network", "device",
            "horizon_is_terminal",
        )  # fmt: skip
        return {name: getattr(self, name) for name in same} | {
            "recurrent_n_epochs": self.epochs,
            "num_minibatches": self.num_minibatches or min(MINIBATCHES, self.envs * len(self.tasks)),
            "use_entropy_decay": self.entropy_decay > 0,
        }

    def to_tracker_kwargs(self) -> dict[str, Any]:
        """Arguments of `TrackerSettings`: when a host counts as stable enough for seeds."""
        return {"stable_improvement": self.stable_improvement, "stable_epochs": self.stable_epochs}

    def to_anomaly_kwargs(self) -> dict[str, float]:
        """Limits of the anomaly detector."""
        return {
            "max_ratio_threshold": self.anomaly_max_ratio_threshold,
            "min_ratio_threshold": self.anomaly_min_ratio_threshold,
            "min_explained_variance": self.anomaly_min_explained_variance,
            "entropy_limit": self._entropy_limit(),
            "kl_limit": self._kl_limit(),
            "drift_limit": self.anomaly_drift_limit,
        }

    def _entropy_limit(self) -> float:
        if self.anomaly_entropy_limit is not None:
            return self.anomaly_entropy_limit
        return ENTROPY_COLLAPSE if self.teacher is None else IMITATED_ENTROPY

    def _kl_limit(self) -> float:
        if self.anomaly_kl_limit is not None:
            return self.anomaly_kl_limit
        return max(KL_ANOMALY, KL_TARGETS * (self.target_kl or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """As built-in types."""
        return {spec.name: to_plain(getattr(self, spec.name)) for spec in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; unknown keys are refused."""
        made: Self = from_plain(cls, data)
        return made

    def save(self, path: Path) -> None:
        """Write as JSON, all or nothing."""
        write_atomically(path, (json.dumps(self.to_dict(), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from JSON."""
        data = read_json(path, f"config {path}")
        if not isinstance(data, dict):
            raise InputError(f"config {path} must hold a JSON object with the fields of TrainingConfig")
        return cls.from_dict(data)


def _given(phase: Phase) -> dict[str, Any]:
    """What a phase changes."""
    changes = {name: getattr(phase, name) for name in ("tasks", "price", "budget")}
    return {name: value for name, value in changes.items() if value is not None}
