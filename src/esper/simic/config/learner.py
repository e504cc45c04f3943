"""`LearnerConfig`: the policy's memory, PPO and its optimiser."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from esper.leyline import DEFAULT_GAMMA
from esper.simic.config.checking import Amount, Count, Group, Number, Positive, Range, Share

ValueLossType = Literal["mse", "huber"]
GradClipMode = Literal["per_head", "global"]
HiddenStorage = Literal["all", "first"]


@dataclass(frozen=True, slots=True)
class LearnerConfig(Group):
    """How the policy learns."""

    group: ClassVar[str] = "learner"

    device: str = "auto"
    """Where the policy lives: cpu, cuda, cuda:1; auto takes CUDA where there is one."""
    lstm_hidden_dim: Count = 64
    """Width of the policy's LSTM."""
    lstm_layers: Count = 1
    """Layers of the policy's LSTM."""
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
    """Past rounds that values are fitted to once more after every update, which averages the luck of episodes out."""
    op_bias: Annotated[tuple[float, float, float, float], Range(-10, 10, "[]")] = (0.5, 0.0, 1.0, -2.0)
    """Initial logits of WAIT, GERMINATE, FOSSILIZE and CULL, also the prior of label smoothing in behaviour cloning. A
    random policy that culls what it has just planted learns nothing about planting, so a new policy mostly keeps."""
