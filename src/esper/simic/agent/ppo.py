"""Recurrent PPO over factored, conditionally masked actions.

The agent is generic: an `ActionSpec` says which heads there are. Esper's four are one such spec; a single head with
two actions makes the same agent play CartPole.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from esper.leyline import (
    DEFAULT_CLIP_RATIO,
    DEFAULT_ENTROPY_COEF,
    DEFAULT_ENTROPY_COEF_MIN,
    DEFAULT_EPISODE_LENGTH,
    DEFAULT_GAE_LAMBDA,
    DEFAULT_GAMMA,
    DEFAULT_LEARNING_RATE,
    DEFAULT_LSTM_HIDDEN_DIM,
    DEFAULT_LSTM_LAYERS,
    DEFAULT_MAX_GRAD_NORM,
    DEFAULT_NUM_ENVS,
    DEFAULT_TARGET_KL,
    DEFAULT_VALUE_CLIP,
    DEFAULT_VALUE_COEF,
    KL_STOP_MULTIPLIER,
    LOW_ADVANTAGE_STD,
    InputError,
    SlotConfig,
)
from esper.simic.agent.arguments import checked_epochs, require_same_heads, resolve_device, warn_of_stored_states
from esper.simic.agent.entropy import EntropySchedule, fewest_valid
from esper.simic.agent.losses import (
    DEFAULT_HUBER_DELTA,
    ValueLossType,
    entropy_bonus,
    log_ratios,
    policy_loss,
    ratio_statistics,
    value_loss,
)
from esper.simic.agent.network import Decision, FactoredRecurrentActorCritic, NetworkOutput, last_layer
from esper.simic.agent.optimizer import (
    GradClipMode,
    build_optimizer,
    clip_gradients,
    parameter_units,
    set_learning_rate,
)
from esper.simic.agent.return_scale import ReturnScale
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.sequences import SequenceBatch, minibatches
from esper.simic.agent.types import (
    HeadEntropies,
    Hidden,
    PPOUpdateMetrics,
    TelemetryLevels,
    UpdateObserver,
    ValueDiagnostics,
    by_head,
)
from esper.simic.agent.update_log import (
    MinibatchReport,
    UpdateLog,
    empty_metrics,
    fetch_report,
    round_statistics,
    value_diagnostics,
)
from esper.simic.agent.value_memory import ValueMemory
from esper.simic.control.action_spec import ActionSpec, Masks, esper_action_spec
from esper.simic.control.mask_counts import mask_hit_rates
from esper.simic.control.normalization import RunningMeanStd

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class PPOAgent:
    """A recurrent policy with its optimiser and the buffer of the current round.

    loss = policy loss + `value_coef` * value loss - sum over heads of (entropy coefficient * per-head factor * mean
    entropy). `entropy_coef` is only the base: see `get_entropy_coef`. Every term is described in `losses.py`.
    """

    state_dim: int
    slot_config: SlotConfig = field(default_factory=SlotConfig.default)
    """The slots that Esper's heads act on."""
    action_spec: ActionSpec | None = None
    """Other heads than Esper's; None builds Esper's from `slot_config`."""
    network: FactoredRecurrentActorCritic | None = None
    """A network of one's own for the same heads; None builds the default one."""
    num_envs: int = DEFAULT_NUM_ENVS
    max_steps: int = DEFAULT_EPISODE_LENGTH
    """Steps per environment and round."""
    lstm_hidden_dim: int = DEFAULT_LSTM_HIDDEN_DIM
    lstm_layers: int = DEFAULT_LSTM_LAYERS
    hidden_storage: Literal["all", "first"] = "all"
    """Which LSTM states the buffer keeps."""
    device: str = "auto"
    """"auto" takes CUDA where there is one."""
    compile_network: bool = False
    lr: float = DEFAULT_LEARNING_RATE
    head_lr_scale: Mapping[str, float] = field(default_factory=dict)
    """Factors on the learning rate of single heads."""
    weight_decay: float = 0.0
    """Decay of the value head alone."""
    max_grad_norm: float = DEFAULT_MAX_GRAD_NORM
    grad_clip_mode: GradClipMode = "per_head"
    gamma: float = DEFAULT_GAMMA
    gae_lambda: float = DEFAULT_GAE_LAMBDA
    value_lambda: float | None = None
    """Lambda of the returns that values are fitted to; None is `gae_lambda`. 1 fits them to what came of it."""
    value_memory: int = 0
    """Rounds that values are fitted to once more after every update; 0 is none."""
    horizon_is_terminal: bool = False
    """Whether a time limit is the end of the problem, worth 0 afterwards, and not just of the recording."""
    recurrent_n_epochs: int | None = None
    """Passes over the round; None is 1."""
    num_minibatches: int = 1
    """Groups of whole sequences per epoch."""
    clip_ratio: float = DEFAULT_CLIP_RATIO
    target_kl: float | None = DEFAULT_TARGET_KL
    """The update stops at 1.5 times this joint KL; None never stops it."""
    clip_value: bool = True
    value_clip: float = DEFAULT_VALUE_CLIP
    """How far a value may move in one update before its loss is held, in units of the return scale."""
    value_coef: float = DEFAULT_VALUE_COEF
    value_loss_type: ValueLossType = "mse"
    huber_delta: float = DEFAULT_HUBER_DELTA
    """Where Huber's loss turns from squares to lines, in units of the return scale."""
    scale_values: bool = True
    """Whether value targets are divided by their running scale."""
    entropy_coef: float = DEFAULT_ENTROPY_COEF
    entropy_coef_min: float = DEFAULT_ENTROPY_COEF_MIN
    entropy_coef_per_head: Mapping[str, float] = field(default_factory=dict)
    """Factors on the entropy coefficient; heads that are not named have 1."""
    adaptive_entropy_floor: bool = False
    use_entropy_decay: bool = False
    total_steps_for_decay: int = 0
    """Environment steps over which the entropy coefficient falls to its floor."""
    telemetry_config: TelemetryLevels | None = None

    observer: UpdateObserver | None = field(default=None, init=False)
    """Looks on during updates, if set; what is learned does not depend on it."""
    total_steps: int = field(default=0, init=False)
    """Environment steps learned from so far."""
    updates: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.device = resolve_device(self.device)
        self.recurrent_n_epochs = checked_epochs(self.recurrent_n_epochs)
        if not 1 <= self.num_minibatches <= self.num_envs:
            raise InputError(f"num_minibatches is {self.num_minibatches}; choose 1 to {self.num_envs}, the num_envs")
        self.spec = esper_action_spec(self.slot_config) if self.action_spec is None else self.action_spec
        for name in (*self.head_lr_scale, *self.entropy_coef_per_head):
            self.spec.head(name)
        self._prepare_network()
        self.buffer = self.make_buffer()
        self.optimizer = build_optimizer(self._base_network, self.lr, self.weight_decay, self.head_lr_scale)
        self.memory = ValueMemory(self.value_memory)
        self.return_scale = ReturnScale(torch.device(self.device), enabled=self.scale_values)
        self._units = parameter_units(self._base_network)

    def _prepare_network(self) -> None:
        if self.network is None:
            self.network = FactoredRecurrentActorCritic(
                self.spec, self.state_dim, lstm_hidden_dim=self.lstm_hidden_dim, lstm_layers=self.lstm_layers
            )
        base = self._base_network
        self.lstm_hidden_dim, self.lstm_layers = base.lstm_hidden_dim, base.lstm_layers
        require_same_heads("network", base.spec, self.spec)
        if base.state_dim != self.state_dim:
            raise InputError(f"the network reads observations of {base.state_dim}, the agent of {self.state_dim}")
        base.to(self.device)
        if self.compile_network:
            torch._dynamo.config.allow_rnn = True
            # In place, so that parameters keep their names. Dynamic, because the length of sequences varies.
            base.compile(dynamic=True)

    @property
    def _base_network(self) -> FactoredRecurrentActorCritic:
        """The network itself, also where `torch.compile` wraps it."""
        # hasattr is authorised here: torch.compile's wrapper is known by this attribute alone, its class is private.
        base: object = self.network
        if hasattr(base, "_orig_mod"):
            base = base._orig_mod
        assert isinstance(base, FactoredRecurrentActorCritic)
        return base

    def make_buffer(self) -> TamiyoRolloutBuffer:
        """An empty buffer for one round of this agent."""
        return TamiyoRolloutBuffer(
            state_dim=self.state_dim,
            num_envs=self.num_envs,
            max_steps=self.max_steps,
            lstm_hidden_dim=self.lstm_hidden_dim,
            lstm_layers=self.lstm_layers,
            slot_config=self.slot_config,
            action_spec=self.spec,
            device=self.device,
            hidden_storage=self.hidden_storage,
        )

    def initial_hidden(self, num_envs: int | None = None) -> Hidden:
        """The LSTM state at the start of an episode."""
        return self._base_network.get_initial_hidden(self.num_envs if num_envs is None else num_envs)

    @torch.inference_mode()
    def act(self, obs: Tensor, masks: Masks, hidden: Hidden, *, deterministic: bool = False) -> Decision:
        """Decide for `obs [N, D]`; values are in raw units."""
        decision = self._base_network.get_action(
            obs, masks, hidden, deterministic=deterministic, step=self.buffer.num_steps
        )
        return decision._replace(values=decision.values * self.return_scale.scale)

    @torch.inference_mode()
    def value(self, obs: Tensor, hidden: Hidden) -> Tensor:
        """V of `obs [N, D]` in raw units: for bootstrapping, the state after a step under the LSTM state after it."""
        values: Tensor = self._base_network(obs, hidden).values
        return values.squeeze(1) * self.return_scale.scale

    def get_entropy_floor(self, action_mask: Tensor | None = None) -> float:
        """The least entropy coefficient; see `EntropySchedule.floor`."""
        return self._entropy_schedule().floor(action_mask)

    def get_entropy_coef(self, action_mask: Tensor | None = None) -> float:
        """The base coefficient now, before per-head factors; see `EntropySchedule.coefficient`."""
        return self._entropy_schedule().coefficient(self.total_steps, action_mask)

    def _entropy_schedule(self) -> EntropySchedule:
        return EntropySchedule(
            self.entropy_coef,
            self.entropy_coef_min,
            self.adaptive_entropy_floor,
            self.total_steps_for_decay if self.use_entropy_decay else None,
        )

    def set_learning_rate(self, lr: float) -> None:
        """Learn at this rate from now on; heads keep their factors on it."""
        set_learning_rate(self.optimizer, lr, self.head_lr_scale)

    def update(
        self, buffer: TamiyoRolloutBuffer | None = None, obs_normalizer: RunningMeanStd | None = None
    ) -> PPOUpdateMetrics:
        """Learn from one round, then clear it.

        Every epoch replays whole sequences from their own start, in one batch by default. This is deliberate: an
        episode's start needs no stored state, so the LSTM is trained on states that the present weights lead to, which
        shuffled single steps would not allow. `obs_normalizer`, if given, takes in the raw observations first;
        learning uses the observations as acted upon.
        """
        buffer = self.buffer if buffer is None else buffer
        require_same_heads("buffer", buffer.spec, self.spec)
        valid = buffer.valid
        steps = int(valid.sum())
        if steps == 0:
            return empty_metrics(self.spec, float(self.return_scale.scale))
        if obs_normalizer is not None:
            obs_normalizer.update(buffer.raw_obs[valid])
        diagnostics = self._estimate_advantages(buffer, valid)
        batch = buffer.get_batched_sequences(self.device)
        metrics = self._learn(batch, diagnostics)
        if self.value_memory:
            self._refit_values(batch, metrics)
        self.total_steps += steps
        self.updates += 1
        buffer.clear()
        return metrics

    def _estimate_advantages(self, buffer: TamiyoRolloutBuffer, valid: Tensor) -> ValueDiagnostics:
        buffer.compute_advantages_and_returns(
            self.gamma,
            self.gae_lambda,
            value_lambda=self.value_lambda,
            horizon_is_terminal=self.horizon_is_terminal,
        )
        diagnostics = value_diagnostics(buffer.values[valid], buffer.returns[valid], buffer.advantages[valid])
        spread = diagnostics["advantage_std_prenorm"]
        if spread < LOW_ADVANTAGE_STD:
            logger.warning("advantages spread by only %.3g before normalisation: look at gamma or reward scale", spread)
        buffer.normalize_advantages()
        self.return_scale.update(buffer.returns[valid], last_layer(self._base_network.value_head))
        return diagnostics

    def _learn(self, batch: SequenceBatch, diagnostics: ValueDiagnostics) -> PPOUpdateMetrics:
        assert self.recurrent_n_epochs is not None
        warn_of_stored_states(self.recurrent_n_epochs, batch.hidden)
        coefficients = self._entropy_coefficients(batch)
        before = self._replay(batch)
        log = UpdateLog(self.spec)
        self._run_epochs(batch, before.values, coefficients, log)
        self.optimizer.zero_grad(set_to_none=True)
        return log.summary(
            diagnostics,
            entropy_coefs=coefficients,
            mask_hit_rates=mask_hit_rates(self.spec, batch.selected, batch.active),
            **round_statistics(self.spec, batch, before, self._replay(batch), self.return_scale.scale),
        )

    def _refit_values(self, batch: SequenceBatch, metrics: PPOUpdateMetrics) -> None:
        """Fit the values to the remembered rounds, this one included; what was left out goes into `metrics`."""
        left_out = self.memory.remember(batch)
        if left_out:
            logger.warning("the value memory leaves out %d of %d sequences: NaN or infinity", left_out, len(batch.obs))
        skipped = self.memory.refit(self, self.optimizer.param_groups[0]["lr"])
        metrics["skipped_steps"] += skipped
        metrics["has_numerical_issue"] |= left_out + skipped > 0

    def _entropy_coefficients(self, batch: SequenceBatch) -> dict[str, float]:
        """Per head, from the most restrictive mask that any step of the round had."""
        masks = fewest_valid(self.spec, batch.selected, batch.active)
        return {
            name: self.get_entropy_coef(mask) * self.entropy_coef_per_head.get(name, 1.0)
            for name, mask in masks.items()
        }

    @torch.no_grad()
    def _replay(self, batch: SequenceBatch) -> NetworkOutput:
        """Logits and scaled values of the present network: the values are the centre of value clipping.

        Taken afresh and not from the buffer, so that they belong to the same weights and scale as the first step.
        """
        output: NetworkOutput = self._base_network(batch.obs, batch.hidden)
        return output

    def _run_epochs(
        self, batch: SequenceBatch, before_values: Tensor, coefficients: Mapping[str, float], log: UpdateLog
    ) -> None:
        assert self.recurrent_n_epochs is not None
        weights = torch.tensor(list(coefficients.values()), device=self.device)
        for _ in range(self.recurrent_n_epochs):
            log.epochs.append([])
            for index in minibatches(batch.lengths, self.num_minibatches):
                part = batch.rows(index)
                reference = before_values[index, : part.obs.shape[1]]
                if not self._step(part, reference, weights, log):
                    return

    def _step(self, part: SequenceBatch, reference: Tensor, weights: Tensor, log: UpdateLog) -> bool:
        """One minibatch: step, or skip it if a number is not finite; False if the policy has moved far enough."""
        report, log_ratio = self._backward(part, reference, weights)
        if not report.usable:
            log.skipped_steps += 1
            self._note_ratio_issue(report, log_ratio, log)
            return True
        log.epochs[-1].append(report)
        if self.target_kl is not None and report.scalars["approx_kl"] > KL_STOP_MULTIPLIER * self.target_kl:
            log.early_stopped = True
            return False
        self.optimizer.step()
        log.optimizer_steps += 1
        return True

    def _backward(self, part: SequenceBatch, reference: Tensor, weights: Tensor) -> tuple[MinibatchReport, Tensor]:
        """Gradients of one minibatch, clipped, and its numbers; the optimiser has not moved yet."""
        evaluation = self._base_network.evaluate_actions(part.obs, part.actions, part.selected, part.hidden)
        log_ratio = log_ratios(evaluation.log_probs, part.old_log_probs, part.active)
        policy, _ = policy_loss(log_ratio, part.advantages, part.active, self.clip_ratio)
        value, _ = value_loss(
            evaluation.values,
            part.returns / self.return_scale.scale,
            part.valid,
            kind=self.value_loss_type,
            huber_delta=self.huber_delta,
            reference=reference if self.clip_value else None,
            clip=self.value_clip,
        )
        bonus, entropies = entropy_bonus(evaluation.entropies, part.active, weights)
        total = policy + self.value_coef * value - bonus
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        if self.observer is not None:
            losses = {"policy": policy.detach(), "value": value.detach(), "total": total.detach()}
            means: HeadEntropies = by_head(self.spec, entropies.detach())
            self.observer.minibatch(part, evaluation.head_log_probs(self.spec), means, losses)
        norms = clip_gradients(self._units, self.max_grad_norm, self.grad_clip_mode)
        statistics = ratio_statistics(log_ratio.detach(), part.active, part.valid, self.clip_ratio)
        return fetch_report(policy, value, total, entropies, statistics, norms), log_ratio.detach()

    def _note_ratio_issue(self, report: MinibatchReport, log_ratio: Tensor, log: UpdateLog) -> None:
        if not report.ratios_finite:
            log.ratio_issue = True
            if self.telemetry_config is not None and self.telemetry_config.should_collect("debug"):
                ratio = log_ratio.exp()
                for name, found in (("ratio_has_nan", ratio.isnan()), ("ratio_has_inf", ratio.isinf())):
                    log.ratio_kinds[name] = log.ratio_kinds.get(name, False) or bool(found.any())
