"""Names for what passes between the parts of the learner, and the metrics that one update reports."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, NotRequired, Protocol, TypedDict

from torch import Tensor

if TYPE_CHECKING:
    from esper.simic.agent.rollout_buffer import SequenceBatch

Hidden = tuple[Tensor, Tensor]
"""LSTM state h and c, each `[layers, N, hidden]`."""
HeadLogProbs = dict[str, Tensor]
"""Head name to log-probabilities; which heads there are is for the action spec to say."""
HeadEntropies = dict[str, Tensor]
"""Head name to normalised entropies."""


class PolicyStep(NamedTuple):
    """What acting gives: `actions [N, H]`, `log_probs [N, H]`, `values [N]` and the state after this step."""

    actions: Tensor
    log_probs: Tensor
    values: Tensor
    hidden: Hidden


class ActionDict(TypedDict):
    """One joint action of Esper's heads: the index that was chosen for each."""

    slot: int
    blueprint: int
    blend: int
    op: int


class TelemetryLevels(Protocol):
    """Whoever decides how much is recorded."""

    def should_collect(self, level: str) -> bool:
        """Whether things of `level` are wanted."""
        ...


class UpdateObserver(Protocol):
    """Whoever looks on while an update goes over its minibatches.

    It may keep tensors; it must change none, draw no random numbers, and leave waiting for the device to later.
    """

    def minibatch(
        self, part: "SequenceBatch", log_probs: HeadLogProbs, entropies: HeadEntropies, losses: Mapping[str, Tensor]
    ) -> None:
        """Gradients of this minibatch are there, not yet clipped.

        Of the present policy: per head `log_probs [G, L]`, and its mean entropy `[]` over the steps where it mattered.
        """
        ...


class GradientStats(TypedDict):
    """Gradients of the last minibatch with finite numbers, before clipping, be it the one that ended the update."""

    grad_norm: float
    max_grad: float
    """Largest norm among the heads, the value head and the trunk."""
    min_grad: float
    """Smallest norm among them."""


class ValueDiagnostics(TypedDict):
    """The value function as it stood before the update, in raw units."""

    value_pred_mean: float
    value_pred_std: float
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    value_mse_before: float
    advantage_mean_prenorm: float
    advantage_std_prenorm: float
    advantage_min_prenorm: float
    advantage_max_prenorm: float
    advantage_positive_share: float
    """Share of the steps that turned out better than expected."""
    explained_variance: float


class EpochMetrics(TypedDict):
    """One number per epoch that was run, averaged over its minibatches."""

    policy_loss: list[float]
    value_loss: list[float]
    entropy: list[float]
    total_loss: list[float]
    approx_kl: list[float]
    clip_fraction: list[float]


class PPOUpdateMetrics(ValueDiagnostics):
    """What one update did. Floats are means over the epochs that were run unless said otherwise."""

    empty: bool
    """True if there was nothing to learn from; all numbers are then 0."""
    policy_loss: float
    value_loss: float
    entropy: float
    """Sum over heads of the mean normalised entropy."""
    total_loss: float
    approx_kl: float
    """Joint KL by its sampled estimate, in the last epoch that was run."""
    clip_fraction: float
    ratio_max: float
    ratio_min: float
    head_entropies: dict[str, list[float]]
    """Per epoch, mean over the steps where the head mattered."""
    head_grad_norms: dict[str, list[float]]
    """Per epoch, before clipping, for every head and `value`."""
    head_kls: dict[str, float]
    """Mean over the steps where the head mattered, in the last epoch."""
    head_clip_fractions: dict[str, float]
    """Share of the steps where the head mattered whose ratio was clipped."""
    head_ratio_max: dict[str, float]
    head_ratio_min: dict[str, float]
    head_choices: dict[str, int]
    """Steps where the head mattered and masks left it at least two options."""
    head_choice_entropies: dict[str, float]
    """Mean normalised entropy over those steps, before the update; 0 for a head without any."""
    round_ratio_low: float
    """Probability ratio of the whole update that 2 % of the round's choices are below ..."""
    round_ratio_high: float
    """... and that 2 % are above: a single rare action moves neither."""
    value_mse_after: float
    """`value_mse_before` again, after the update; both against the returns of this round."""
    explained_variance_after: float
    """`explained_variance` again, after the update."""
    joint_entropy: float
    """Exact entropy of the joint action in nats, before the update."""
    joint_kl: float
    """Exact KL from the policy before the update to the one of the last epoch, in nats."""
    entropy_coefs: dict[str, float]
    """Coefficient of each head in the loss, per-head factor included."""
    mask_hit_rates: dict[str, float]
    """Share of the decisions of a head in which masking removed at least one option."""
    return_scale: float
    total_grad_norm: float
    """Before clipping, mean over the minibatches with finite numbers, the one that ended the update included."""
    post_clip_grad_norm: float
    gradient_stats: GradientStats | None
    epochs_run: int
    optimizer_steps: int
    skipped_steps: int
    """Minibatches left out because a loss, a ratio or a gradient was not finite, those of the value memory included."""
    early_stopped: bool
    """True if the KL limit ended the update."""
    has_numerical_issue: bool
    ratio_has_numerical_issue: bool
    ratio_has_nan: NotRequired[bool]
    ratio_has_inf: NotRequired[bool]
