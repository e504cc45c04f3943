"""Recurrent PPO over factored, conditionally masked actions.

The agent is generic: an `ActionSpec` says which heads there are. Esper's four are one such spec; a single head with
two actions makes the same agent play CartPole. `update` can be read from top to bottom: what a step of it computes is
in `losses.py`, what it stores and replays in `rollout_buffer.py`, what it reports in `update_log.py`.
"""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from esper.leyline import (
    DEFAULT_EPISODE_LENGTH,
    DEFAULT_NUM_ENVS,
    KL_STOP_MULTIPLIER,
    LOW_ADVANTAGE_STD,
    RECURRENT_EPOCHS_CAP,
    RECURRENT_EPOCHS_WARNING,
    InputError,
    SlotConfig,
)
from esper.simic.agent.network import FactoredRecurrentActorCritic, Policy
from esper.simic.agent.optimization import (
    EntropySchedule,
    ValueMemory,
    build_optimizer,
    clip_gradients,
    entropy_bonus,
    fewest_valid,
    log_ratios,
    parameter_units,
    policy_loss,
    ratio_statistics,
    set_learning_rate,
    value_loss,
)
from esper.simic.agent.rollout_buffer import SequenceBatch, TamiyoRolloutBuffer, minibatches
from esper.simic.agent.types import (
    Decision,
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
from esper.simic.config import LearnerConfig
from esper.simic.control.action_masks import ActionSpec, Masks, esper_action_spec, mask_hit_rates
from esper.tolaria.compute import find_device

logger = logging.getLogger(__name__)
_MINIBATCHES = 8
"""Minibatches per pass where the config does not say how many, and a round has that many rows."""


class PPOAgent:
    """A policy that learns: with its optimiser, the buffer of the current round, and the rounds its values remember.

    loss = policy loss + `value_coef` * value loss - sum over heads of (entropy coefficient * per-head factor * mean
    entropy). `entropy_coef` is only the base: see `get_entropy_coef`. Every term is described in `losses.py`.
    """

    def __init__(
        self,
        config: LearnerConfig,
        *,
        state_dim: int,
        slot_config: SlotConfig | None = None,
        action_spec: ActionSpec | None = None,
        network: FactoredRecurrentActorCritic | None = None,
        num_envs: int = DEFAULT_NUM_ENVS,
        max_steps: int = DEFAULT_EPISODE_LENGTH,
        decay_steps: int | None = None,
        normalize: bool = False,
    ) -> None:
        """`num_envs` rows of at most `max_steps` steps make a round.

        `slot_config` has the slots that Esper's heads act on; an `action_spec` of one's own replaces these heads, and a
        `network` for the same heads the default one. `decay_steps` are the environment steps over which the entropy
        coefficient falls; None: it stays. With `normalize`, the policy keeps running statistics of its observations.
        """
        self.config = config
        self.slot_config = SlotConfig.default() if slot_config is None else slot_config
        self.spec = esper_action_spec(self.slot_config) if action_spec is None else action_spec
        self.state_dim, self.num_envs, self.max_steps = state_dim, num_envs, max_steps
        self.decay_steps = decay_steps
        self.epochs = _capped(config.epochs)
        self.num_minibatches = config.num_minibatches or min(_MINIBATCHES, num_envs)
        if self.num_minibatches > num_envs:
            raise InputError(f"num_minibatches is {self.num_minibatches}; choose 1 to {num_envs}, the num_envs")
        for name in (*config.head_lr_scale, *config.entropy_coef_per_head):
            self.spec.head(name)
        # What decides, what remembers a round, and what learns from it.
        self.policy = self._make_policy(network, normalize=normalize)
        self.buffer = self.make_buffer()
        base = self._base_network
        self.optimizer = build_optimizer(base, config.lr, config.weight_decay, config.head_lr_scale)
        self.memory = ValueMemory(config.value_memory)
        self.units = parameter_units(base)
        self.telemetry_config: TelemetryLevels | None = None
        self.observer: UpdateObserver | None = None
        """Looks on during updates, if set; what is learned does not depend on it."""
        self.total_steps = 0
        """Environment steps learned from so far."""
        self.updates = 0

    def _make_policy(self, network: nn.Module | None, *, normalize: bool) -> Policy:
        config = self.config
        if network is None:
            hidden, layers = config.lstm_hidden_dim, config.lstm_layers
            network = FactoredRecurrentActorCritic(
                self.spec, self.state_dim, lstm_hidden_dim=hidden, lstm_layers=layers
            )
        policy = Policy(
            network,
            find_device(config.device),
            normalize=normalize,
            scale_values=config.scale_values,
            compile_network=config.compile_network,
        )
        self._require_same_heads("network", policy.spec)
        base = policy.network
        self.config = replace(config, lstm_hidden_dim=base.lstm_hidden_dim, lstm_layers=base.lstm_layers)
        if base.state_dim != self.state_dim:
            raise InputError(f"the network reads observations of {base.state_dim}, the agent of {self.state_dim}")
        return policy

    def _require_same_heads(self, owner: str, theirs: ActionSpec) -> None:
        """Refuse what was made for other heads than the agent's."""
        if theirs != self.spec:
            sizes = [", ".join(f"{head.name} {head.size}" for head in spec.heads) for spec in (theirs, self.spec)]
            raise InputError(f"the {owner} is made for other heads ({sizes[0]}) than the agent ({sizes[1]})")

    @property
    def _base_network(self) -> FactoredRecurrentActorCritic:
        return self.policy.network

    @property
    def device(self) -> str:
        """Where the policy, the buffer and the optimiser are."""
        return str(self.policy.device)

    def make_buffer(self) -> TamiyoRolloutBuffer:
        """An empty buffer for one round of this agent."""
        return TamiyoRolloutBuffer(
            state_dim=self.state_dim,
            num_envs=self.num_envs,
            max_steps=self.max_steps,
            lstm_hidden_dim=self.config.lstm_hidden_dim,
            lstm_layers=self.config.lstm_layers,
            slot_config=self.slot_config,
            action_spec=self.spec,
            device=self.device,
            hidden_storage=self.config.hidden_storage,
        )

    def initial_hidden(self, num_envs: int | None = None) -> Hidden:
        """The LSTM state at the start of an episode."""
        return self.policy.initial_hidden(self.num_envs if num_envs is None else num_envs)

    def act(self, obs: Tensor, masks: Masks, hidden: Hidden, *, deterministic: bool = False) -> Decision:
        """Decide for normalised `obs [N, D]`; values are in raw units."""
        return self.policy.act(obs, masks, hidden, deterministic=deterministic, step=self.buffer.num_steps)

    def get_entropy_floor(self, action_mask: Tensor | None = None) -> float:
        """The least entropy coefficient; see `EntropySchedule.floor`."""
        return self._entropy_schedule().floor(action_mask)

    def get_entropy_coef(self, action_mask: Tensor | None = None) -> float:
        """The base coefficient now, before per-head factors; see `EntropySchedule.coefficient`."""
        return self._entropy_schedule().coefficient(self.total_steps, action_mask)

    def _entropy_schedule(self) -> EntropySchedule:
        config = self.config
        floor = config.entropy_coef_min, config.adaptive_entropy_floor
        return EntropySchedule(config.entropy_coef, *floor, self.decay_steps)

    def set_learning_rate(self, lr: float) -> None:
        """Learn at this rate from now on; heads keep their factors on it."""
        set_learning_rate(self.optimizer, lr, self.config.head_lr_scale)

    def update(self, buffer: TamiyoRolloutBuffer | None = None) -> PPOUpdateMetrics:
        """Learn from one round, then clear it.

        Every epoch replays whole sequences from their own start, in one batch by default. This is deliberate: an
        episode's start needs no stored state, so the LSTM is trained on states that the present weights lead to, which
        shuffled single steps would not allow. The policy's normaliser takes in the raw observations first; learning
        uses the observations as acted upon.
        """
        buffer = self.buffer if buffer is None else buffer
        self._require_same_heads("buffer", buffer.spec)
        steps = int(buffer.step_counts.sum())
        # A round whose workers were all lost teaches nothing.
        if steps == 0:
            return empty_metrics(self.spec, float(self.policy.return_scale.scale))
        # Statistics, advantages and returns of the round as it was played.
        self.policy.take_in_observations(buffer)
        diagnostics = self._estimate_advantages(buffer)
        # The policy learns from it once, the values perhaps again.
        batch = buffer.get_batched_sequences(self.device)
        metrics = self._learn(batch, diagnostics)
        if self.config.value_memory:
            self._refit_values(batch, metrics)
        self.total_steps += steps
        self.updates += 1
        buffer.clear()
        return metrics

    def _estimate_advantages(self, buffer: TamiyoRolloutBuffer) -> ValueDiagnostics:
        config, valid = self.config, buffer.valid
        buffer.compute_advantages_and_returns(
            config.gamma,
            config.gae_lambda,
            value_lambda=config.value_lambda,
            horizon_is_terminal=config.horizon_is_terminal,
        )
        diagnostics = value_diagnostics(buffer.values[valid], buffer.returns[valid], buffer.advantages[valid])
        spread = diagnostics["advantage_std_prenorm"]
        if spread < LOW_ADVANTAGE_STD:
            logger.warning("advantages spread by only %.3g before normalisation: look at gamma or reward scale", spread)
        buffer.normalize_advantages()
        self.policy.take_in_returns(buffer)
        return diagnostics

    def _learn(self, batch: SequenceBatch, diagnostics: ValueDiagnostics) -> PPOUpdateMetrics:
        _warn_of_stored_states(self.epochs, batch.hidden)
        # The most restrictive mask that any step of the round had decides the entropy coefficient of a head.
        masks = fewest_valid(self.spec, batch.selected, batch.active)
        factors = self.config.entropy_coef_per_head
        coefficients = {name: self.get_entropy_coef(mask) * factors.get(name, 1.0) for name, mask in masks.items()}
        # Taken afresh and not from the buffer, so that values belong to the same weights and scale as the first step.
        with torch.no_grad():
            before = self.policy.replay(batch)
        log = UpdateLog(self.spec)
        self._run_epochs(batch, before.values, coefficients, log)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            after = self.policy.replay(batch)
        return log.summary(
            diagnostics,
            entropy_coefs=coefficients,
            mask_hit_rates=mask_hit_rates(self.spec, batch.selected, batch.active),
            **round_statistics(self.spec, batch, before, after, self.policy.return_scale.scale),
        )

    def _run_epochs(
        self, batch: SequenceBatch, before_values: Tensor, coefficients: Mapping[str, float], log: UpdateLog
    ) -> None:
        weights = torch.tensor(list(coefficients.values()), device=self.device)
        for _ in range(self.epochs):
            log.epochs.append([])
            for index in minibatches(batch.lengths, self.num_minibatches):
                part = batch.rows(index)
                reference = before_values[index, : part.obs.shape[1]]
                if not self._step(part, reference, weights, log):
                    return

    def _step(self, part: SequenceBatch, reference: Tensor, weights: Tensor, log: UpdateLog) -> bool:
        """One minibatch: step, or skip it if a number is not finite; False if the policy has moved far enough."""
        report, log_ratio = self._backward(part, reference, weights)
        # NaN or infinity costs the minibatch, never the weights.
        if not report.usable:
            log.skipped_steps += 1
            self._note_ratio_issue(report, log_ratio, log)
            return True
        log.epochs[-1].append(report)
        # Early stopping, before the step that would go too far.
        target = self.config.target_kl
        if target is not None and report.scalars["approx_kl"] > KL_STOP_MULTIPLIER * target:
            log.early_stopped = True
            return False
        self.optimizer.step()
        log.optimizer_steps += 1
        return True

    def _backward(self, part: SequenceBatch, reference: Tensor, weights: Tensor) -> tuple[MinibatchReport, Tensor]:
        """Gradients of one minibatch, clipped, and its numbers; the optimiser has not moved yet."""
        config = self.config
        evaluation = self._base_network.evaluate_actions(part.obs, part.actions, part.selected, part.hidden)
        # The loss and its three terms.
        log_ratio = log_ratios(evaluation.log_probs, part.old_log_probs, part.active)
        policy, _ = policy_loss(log_ratio, part.advantages, part.active, config.clip_ratio)
        value, _ = value_loss(
            evaluation.values,
            self.policy.scaled(part.returns),
            part.valid,
            kind=config.value_loss_type,
            huber_delta=config.huber_delta,
            reference=reference if config.clip_value else None,
            clip=config.value_clip,
        )
        bonus, entropies = entropy_bonus(evaluation.entropies, part.active, weights)
        total = policy + config.value_coef * value - bonus
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        # Whoever looks on sees gradients as they are before clipping.
        if self.observer is not None:
            losses = {"policy": policy.detach(), "value": value.detach(), "total": total.detach()}
            means: HeadEntropies = by_head(self.spec, entropies.detach())
            self.observer.minibatch(part, evaluation.head_log_probs(self.spec), means, losses)
        norms = clip_gradients(self.units, config.max_grad_norm, config.grad_clip_mode)
        statistics = ratio_statistics(log_ratio.detach(), part.active, part.valid, config.clip_ratio)
        return fetch_report(policy, value, total, entropies, statistics, norms), log_ratio.detach()

    def _note_ratio_issue(self, report: MinibatchReport, log_ratio: Tensor, log: UpdateLog) -> None:
        if not report.ratios_finite:
            log.ratio_issue = True
            if self.telemetry_config is not None and self.telemetry_config.should_collect("debug"):
                ratio = log_ratio.exp()
                for name, found in (("ratio_has_nan", ratio.isnan()), ("ratio_has_inf", ratio.isinf())):
                    log.ratio_kinds[name] = log.ratio_kinds.get(name, False) or bool(found.any())

    def _refit_values(self, batch: SequenceBatch, metrics: PPOUpdateMetrics) -> None:
        """Fit the values to the remembered rounds, this one included; what was left out goes into `metrics`."""
        left_out = self.memory.remember(batch)
        if left_out:
            logger.warning("the value memory leaves out %d of %d sequences: NaN or infinity", left_out, len(batch.obs))
        lr = self.optimizer.param_groups[0]["lr"]
        skipped = self.memory.refit(self.policy, lr, self.config.value_coef, self.num_minibatches)
        metrics["skipped_steps"] += skipped
        metrics["has_numerical_issue"] |= left_out + skipped > 0


def _capped(epochs: int) -> int:
    if epochs > RECURRENT_EPOCHS_CAP:
        warnings.warn(
            f"n_epochs={epochs} is capped at {RECURRENT_EPOCHS_CAP}: more reuse of a round only overfits it",
            RuntimeWarning,
            stacklevel=3,
        )
    return min(epochs, RECURRENT_EPOCHS_CAP)


def _warn_of_stored_states(epochs: int, hidden: Hidden) -> None:
    """Warn of many passes over sequences of which some start from a state other than zeros."""
    if epochs > RECURRENT_EPOCHS_WARNING and any(state.any() for state in hidden):
        warnings.warn(
            f"n_epochs={epochs} is elevated for sequences that start from a stored state: later epochs replay "
            "them from a state that the changed network would not have reached",
            RuntimeWarning,
            stacklevel=4,
        )
