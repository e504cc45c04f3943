"""The options of a run, in groups: how the policy learns, its world, behaviour cloning, telemetry and reward."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from esper.leyline import (
    DEFAULT_GAMMA,
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
from esper.simic.config.checking import Amount, Count, Group, Number, Positive, Range, Share
from esper.simic.config.reward import RewardConfig, RewardFamily, check_learner

ValueLossType = Literal["mse", "huber"]
GradClipMode = Literal["per_head", "global"]
HiddenStorage = Literal["all", "first"]
Architecture = Literal["flat", "pointing"]


@dataclass(frozen=True, slots=True)
class LearnerConfig(Group):
    """How the policy learns."""

    group: ClassVar[str] = "learner"

    device: str = "auto"
    """Where the policy lives: cpu, cuda, cuda:1; auto takes CUDA where there is one."""
    architecture: Architecture = "flat"
    """The policy's network: flat, for hosts that all have the same number of slots, or pointing, which scores whatever
    slots and kinds there are."""
    feature_dim: Count = 128
    """Width of the features that the policy's network makes of an observation."""
    feature_layers: Annotated[int, Range(1, 2, "[]")] = 1
    """Layers that make them; the second comes with a residual connection."""
    input_norm: bool = True
    """Whether these features are normalised, so that the scale of observations does not matter."""
    lstm_hidden_dim: Count = 64
    """Width of the policy's LSTM."""
    lstm_layers: Count = 1
    """Layers of the policy's LSTM."""
    head_dim: Count | None = None
    """Hidden width of the policy's heads and of its value head; None: half of the LSTM's, and 32 at least."""
    policy_gain: Positive = 0.01
    """Gain of the heads' last layers at initialisation; a small one lets every action be about as likely at first."""
    hidden_storage: HiddenStorage = "all"
    """LSTM states that are kept of a round: all, or the first of each episode, which is what learning needs; without
    the others nothing is recorded of the LSTM's health."""
    compile_network: bool = False
    """Whether the policy's network is compiled, which takes minutes and does not pay on a CPU."""

    lr: Positive = 2e-3
    """Learning rate."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """Whether the learning rate stays constant or falls linearly to a tenth over the run."""
    head_lr_scale: Mapping[str, Positive] = field(default_factory=dict)
    """Factors on the learning rate of single heads (slot, blueprint, blend, op); heads that are not named have 1."""
    weight_decay: Amount = 0.0
    """Weight decay of the value head; no other part is decayed."""
    max_grad_norm: Positive = 1.0
    """Norm to which gradients are clipped."""
    grad_clip_mode: GradClipMode = "per_head"
    """Whether gradients of each head, of the value head and of the trunk are clipped apart (per_head) or together
    (global)."""

    gamma: Annotated[float, Range(0, 1, "(]")] = DEFAULT_GAMMA
    """Discount."""
    gae_lambda: Share = 0.9
    """Lambda of generalised advantage estimation: how far advantages trust rewards over values."""
    value_lambda: Share | None = None
    """Lambda of the returns that values are fitted to; None: gae_lambda."""
    horizon_is_terminal: bool = True
    """Whether the time limit of an episode is the end of the problem, worth nothing afterwards."""
    epochs: Count = 4
    """Passes over a round, 4 at the most; exact, because every episode is replayed from its start."""
    num_minibatches: Count | None = None
    """Minibatches of whole episodes per pass; None: 8, or as many as a round has episodes if those are fewer."""
    clip_ratio: Annotated[float, Range(0, 1, "(]")] = 0.2
    """How far probability ratios may move from 1 before PPO clips them."""
    target_kl: Positive | None = 0.05
    """An update stops at 1.5 times this KL divergence from the policy before it; None: never."""

    entropy_coef: Amount = 0.004
    """Weight of the entropy bonus at the start of the run."""
    entropy_coef_min: Amount = 0.0
    """Weight of the entropy bonus at the end of its decay."""
    entropy_decay: Share = 0.8
    """Share of the run over which the weight of the entropy bonus falls; 0 keeps it constant."""
    entropy_coef_per_head: Mapping[str, Amount] = field(default_factory=dict)
    """Factors on the entropy weight of single heads (slot, blueprint, blend, op); heads that are not named have 1."""
    adaptive_entropy_floor: bool = False
    """Whether the least entropy weight rises where masks leave few choices."""

    value_coef: Amount = 0.5
    """Weight of the value loss."""
    value_loss_type: ValueLossType = "mse"
    """Value loss: mse, or huber, which grows linearly for errors beyond huber_delta."""
    huber_delta: Positive = 1.0
    """Error beyond which Huber's loss is linear, in units of the return scale."""
    clip_value: bool = True
    """Whether the value loss is the larger of that of a value and of the same value kept within value_clip of where it
    was."""
    value_clip: Positive = 10.0
    """How far values may move in one update, in units of the return scale."""
    scale_values: bool = True
    """Whether value targets are divided by a running scale of the returns."""
    value_memory: Number = 0
    """Past rounds that values are fitted to again after every update, which averages out the noise of episodes."""
    op_bias: Annotated[tuple[float, float, float, float], Range(-10, 10, "[]")] = (0.5, 0.0, 1.0, -2.0)
    """Initial logits of WAIT, GERMINATE, FOSSILIZE and CULL, also the prior of label smoothing in behaviour cloning. A
    random policy that culls what it has just planted learns nothing about planting, so a new policy mostly keeps."""


GROWTH_REWARD = RewardConfig(
    RewardFamily.SPARSE, gamma=DEFAULT_GAMMA, scale=10.0, governor_penalty=0.05, holding_cost=0.002
)
"""Pays the objective at the end. Paid as it changes it sums to the same, but a value function then has to predict a
whole learning curve, and its error in that is larger than what decisions bring."""
FIRST_LESSON = 1_000_000
"""What seeds the episodes of the first lesson, as the number of a round seeds those of that round. A run has no more
rounds than this, so that they share no seed with a lesson."""
_KL_TARGETS = 4.0
"""An update stops by itself at 1.5 times its target; this many times it shows that stopping did not help."""
_CLONED_ENTROPY = 0.01
"""A policy that was cloned from a teacher is certain from its first round on: only less than this is a collapse."""
_ROUNDING = 1e-6
"""Rounds by which a share of a run, as 0.07 of 100, may miss a whole number."""
_CHANGED_IN_PHASES = ("tasks", "price", "budget")


@dataclass(frozen=True, slots=True)
class Phase(Group):
    """A first part of a run, in a world of its own; what is None is as in the rest of the run."""

    group: ClassVar[str] = "world.curriculum"

    until: Annotated[float, Range(0, 1, "()")]
    """Share of the run's rounds at which the phase ends."""
    tasks: tuple[str, ...] | None = None
    """As many tasks as the run has."""
    price: Amount | tuple[float, float] | None = None
    """The price of parameters."""
    budget: Number | tuple[float, float] | None = None
    """The budget of parameters."""


@dataclass(frozen=True, slots=True)
class WorldConfig(Group):
    """Which hosts a policy learns on, how they train and what growing costs."""

    group: ClassVar[str] = "world"

    tasks: tuple[str, ...] = ("mnist1d", "mnist1d-shuffled")
    """Tasks that every round mixes, the same number of hosts of each; see `esper tasks`."""
    envs: Count = 32
    """Hosts of each task in a round."""
    episode_length: Count | None = None
    """Steps (host epochs) in an episode; None: each task's own number."""
    batches_per_epoch: Count | None = None
    """Minibatches in a step (host epoch); None: each task's own number."""
    batch_size: Count | None = None
    """Samples in a minibatch of a host's training; None: each task's own number."""
    host_lr: Positive | None = None
    """Learning rate of hosts; None: each task's own. Other lengths of training want other rates."""
    seed_lr_scale: Positive | None = None
    """Learning rate of seeds relative to their host's; None: each task's own."""
    price: Amount | tuple[float, float] = (0.01, 0.1)
    """What adding as many parameters as the host has costs; of a range, each episode draws log-uniformly."""
    flop_price: Amount = 0.0
    """What adding as many FLOPs as the host needs for a sample costs, beside the price of parameters."""
    budget: Number | tuple[float, float] | None = None
    """The most parameters that all seeds of a host together may add; None: no limit. Of a range, which is in shares of
    the host's parameters, each episode draws log-uniformly."""
    twins: bool = True
    """Whether the return of a twin, the same host left alone, is the baseline of a host's return."""
    twin_weight: Share = 0.4
    """How far the baseline follows a host's own twin; the rest of it is the mean over all twins of the task."""
    distinct_rounds: Count = 4
    """Rounds after which the seeds of episodes repeat if there are twins, which are then known already."""
    curriculum: tuple[Phase, ...] = ()
    """Phases that a run goes through before the tasks, price and budget above are its own, easiest first."""
    germinate_when_stable: bool = False
    """Whether nothing may germinate in a host before it counts as stable."""
    stable_improvement: Amount = 0.03
    """Relative fall of a host's validation loss below which an epoch counts as stable."""
    stable_epochs: Count = 3
    """Stable epochs in a row after which a host counts as stable."""

    executor: Literal["auto", "loop", "stacked", "native"] = "auto"
    """How hosts run: loop, stacked, native, or auto, which times them briefly and takes the fastest."""
    workers: Count = 1
    """Processes that hosts are spread over, and searches for plans on several tasks; with 1, or fewer than there are
    tasks, hosts run in this process."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format in which hosts train; the last two need the executor loop."""
    compile_hosts: bool = False
    """Whether the passes of hosts are compiled, which pays for large hosts; needs the executor loop."""
    host_devices: tuple[str, ...] = ("cpu",)
    """Devices that hosts are spread over; anything but the CPU alone needs the executor loop."""

    def __post_init__(self) -> None:
        Group.__post_init__(self)
        for name, given in (("price", self.price), ("budget", self.budget)):
            if isinstance(given, tuple) and not 0 < given[0] <= given[1]:
                raise InputError(f"a {name} range must be two numbers above 0, the lower one first; got {given}")
        if not self.tasks:
            raise InputError("world.tasks must name at least one task; see `esper tasks`")
        if len(set(self.tasks)) < len(self.tasks):
            raise InputError(f"world.tasks names a task twice: {', '.join(self.tasks)}")
        reached = 0.0
        for index, phase in enumerate(self.curriculum):
            Range(reached, 1, "()").check(f"world.curriculum[{index}].until", phase.until)
            reached = phase.until
            if phase.tasks is not None and len(phase.tasks) != len(self.tasks):
                raise InputError(
                    f"world.curriculum[{index}].tasks must name {len(self.tasks)} tasks, as many as the run; "
                    f"got {phase.tasks}"
                )

    @property
    def episodes(self) -> int:
        """Episodes in a round."""
        return self.envs * len(self.tasks)

    def in_phase(self, phase: int) -> Self:
        """The world of a phase; it has no curriculum."""
        given = {name: getattr(part, name) for part in self.curriculum[phase:][:1] for name in _CHANGED_IN_PHASES}
        return replace(self, curriculum=(), **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class LessonConfig(Group):
    """Behaviour cloning before the first round."""

    group: ClassVar[str] = "lessons"

    teacher: str | None = "heuristic"
    """Controller whose decisions the policy imitates: heuristic, rule, schedule, random or never; or search: what a
    search for plans, made first, has learned of the cost of every decision. None: start from a random policy."""
    search_episodes: Count = 256
    """Episodes of each task that the search plays, those of its finalists not counted."""
    search_final_seeds: Annotated[int, Range(4)] = 32
    """Fresh seeds from which the search plays its best plans again."""
    search_seed: Annotated[int, Range(0, 2**31)] | None = None
    """Decides which plans the search plays; None: the run's seed."""
    search_folder: str | None = None
    """Folder with the same search, begun or ended by `esper search --out` or another run; None: the run's own."""
    rounds: Count = 2
    """Rounds of behaviour cloning: the teacher plays the first; in others the policy plays and the teacher advises."""
    passes: Count = 60
    """Passes over each of these rounds."""
    lr: Positive = 3e-3
    """Learning rate of behaviour cloning."""
    exploration: Share = 0.6
    """Of the plantings that a searched teacher has still to decide, the share in which it does something else."""
    op_smoothing: Annotated[float, Range(0, 1)] = 0.2
    """Label smoothing of the op head; with teacher=search there are no labels."""
    detail_smoothing: Annotated[float, Range(0, 1)] = 0.05
    """Label smoothing of the slot, blueprint and blend heads."""


@dataclass(frozen=True, slots=True)
class TelemetryOptions(Group):
    """How much is recorded, and what raises an alarm; what is learned does not depend on it."""

    group: ClassVar[str] = "telemetry"

    level: Literal["off", "minimal", "normal", "debug"] = "normal"
    """How much is recorded."""
    max_ratio: Annotated[float, Range(1, ends="()")] = MAX_RATIO
    """A probability ratio above this is an anomaly."""
    min_ratio: Annotated[float, Range(0, 1)] = MIN_RATIO
    """A probability ratio below this is an anomaly."""
    min_explained_variance: Annotated[float, Range(-float("inf"), 1, "(]")] = MIN_EXPLAINED_VARIANCE
    """Explained variance of the values below this is an anomaly."""
    entropy_limit: Share | None = None
    """Normalised entropy of a head below this is an anomaly; None: 0.1, or 0.01 after behaviour cloning."""
    kl_limit: Positive | None = None
    """A KL divergence of an update above this many nats is an anomaly; None: 0.1, or four times learner.target_kl if
    that is more."""
    drift_limit: Positive = GRADIENT_DRIFT
    """A gradient norm that differs from its running mean by more than so many times that mean is an anomaly."""
    critic_rounds: Number = 10
    """Rounds before explained variance is judged."""


@dataclass(frozen=True, slots=True)
class TrainingConfig(Group):
    """What a run trains, on what, and how. Every field has a default that works."""

    rounds: Annotated[int, Range(0, FIRST_LESSON, "[]")] = 60
    """Rounds of whole episodes, each followed by an update; 0: behaviour cloning alone."""
    seed: Annotated[int, Range(0, 2**62)] = 0
    """Seeds the policy's weights and decisions, and the episodes it learns from."""
    validate_every: Number = 10
    """Rounds between validations of the deterministic policy; the best by them is kept. 0: only at the end."""
    validation_episodes: Count = 16
    """Episodes of each task in a validation, always the same seeds."""
    checkpoint_every: Count = 1
    """Rounds between checkpoints."""
    keep_checkpoints: Count = 3
    """How many of the newest checkpoints stay, beside the best."""
    world: WorldConfig = field(default_factory=WorldConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    lessons: LessonConfig = field(default_factory=LessonConfig)
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    reward: RewardConfig = GROWTH_REWARD
    """What a step pays; its gamma and horizon_is_terminal must be the learner's."""

    def __post_init__(self) -> None:
        Group.__post_init__(self)
        check_learner(self.reward, self.learner.gamma, self.learner.horizon_is_terminal)
        for name in ("head_lr_scale", "entropy_coef_per_head"):
            for head in getattr(self.learner, name):
                if head not in HEAD_NAMES:
                    raise unknown_name(f"head in learner.{name}", head, HEAD_NAMES)
        minibatches, episodes = self.learner.num_minibatches, self.world.episodes
        if minibatches is not None and minibatches > episodes:
            raise InputError(
                f"learner.num_minibatches must be at most the {episodes} episodes of a round; got {minibatches}"
            )

    def phase_in(self, round_index: int) -> int:
        """The phase of the curriculum that a round, counted from 0, is in by its share of the run.

        The number of phases stands for the rest of the run, after the last of them.
        """
        return sum(round_index >= phase.until * self.rounds - _ROUNDING for phase in self.world.curriculum)

    def in_phase(self, phase: int) -> Self:
        """The config of a phase of the curriculum: with its world."""
        return replace(self, world=self.world.in_phase(phase)) if self.world.curriculum else self

    def to_anomaly_kwargs(self) -> dict[str, float]:
        """Limits of the anomaly detector."""
        limits, target = self.telemetry, self.learner.target_kl or 0.0
        usual_entropy = ENTROPY_COLLAPSE if self.lessons.teacher is None else _CLONED_ENTROPY
        return {
            "max_ratio_threshold": limits.max_ratio,
            "min_ratio_threshold": limits.min_ratio,
            "min_explained_variance": limits.min_explained_variance,
            "entropy_limit": usual_entropy if limits.entropy_limit is None else limits.entropy_limit,
            "kl_limit": max(KL_ANOMALY, _KL_TARGETS * target) if limits.kl_limit is None else limits.kl_limit,
            "drift_limit": limits.drift_limit,
        }

    def save(self, path: Path) -> None:
        """Write as JSON, all or nothing."""
        write_atomically(path, (json.dumps(self.to_dict(), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from JSON."""
        data = read_json(path, f"config {path}")
        if not isinstance(data, Mapping):
            raise InputError(f"config {path} must hold a JSON object with the fields of TrainingConfig")
        if "envs" in data or "lr" in data:
            raise InputError(
                f"config {path} is of an Esper whose options had no groups; write them in groups, as in "
                '{"world": {"envs": 32}, "learner": {"lr": 0.002}}: see `esper train --help`'
            )
        return cls.from_dict(data)


def changed(config: TrainingConfig, changes: Mapping[str, Any]) -> TrainingConfig:
    """`config` with fields changed by their full names, as in `{"world.envs": 8, "rounds": 2}`."""
    data = config.to_dict()
    for name, value in changes.items():
        *groups, last = name.split(".")
        inner = data
        for group in groups:
            inner = inner[group]
        inner[last] = value
    return TrainingConfig.from_dict(data)
