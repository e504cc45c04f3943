"""Recurrent PPO over factored, conditionally masked actions.

The agent is generic: an `ActionSpec` says which heads there are. Esper's four are one such spec; a single head with
two actions makes the same agent play CartPole.

From `update` on, the file reads as an update runs: advantages, epochs, minibatches, the loss of one of them, its
gradients. The terms of the loss and the optimiser are in `optimization.py`, what is stored and replayed is in
`rollout_buffer.py`, and what is reported in `update_log.py`.
"""

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from esper.leyline import (
    DEFAULT_EPISODE_LENGTH,
    DEFAULT_NUM_ENVS,
    ENTROPY_FLOOR_SCALE_CAP,
    KL_STOP_MULTIPLIER,
    LOW_ADVANTAGE_STD,
    RECURRENT_EPOCHS_CAP,
    RECURRENT_EPOCHS_WARNING,
    InputError,
    SlotConfig,
)
from esper.simic.agent.network import Policy, RecurrentActorCritic
from esper.simic.agent.networks import make_network
from esper.simic.agent.optimization import (
    ValueMemory,
    build_optimizer,
    clip_policy_gradients,
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
    Hidden,
    PolicyStep,
    PPOUpdateMetrics,
    TelemetryLevels,
    UpdateObserver,
    ValueDiagnostics,
)
from esper.simic.agent.update_log import (
    Report,
    UpdateLog,
    empty_metrics,
    fetch_numbers,
    is_usable,
    round_statistics,
    value_diagnostics,
)
from esper.simic.config import LearnerConfig
from esper.simic.control.action_masks import ActionSpec, Masks, by_head, esper_action_spec
from esper.tolaria.compute import find_device

logger = logging.getLogger(__name__)
_MINIBATCHES = 8
"""Minibatches per pass where the config does not say how many, and a round has that many rows."""


class PPOAgent:
    """A policy that learns: with its optimiser, the buffer of the current round, and the rounds its values remember.

    loss = policy loss + `value_coef` * value loss - sum over heads of (entropy coefficient * per-head factor * mean
    entropy). `entropy_coef` is only the base: see `get_entropy_coef`. The terms are those of `optimization.py`.
    """

    def __init__(
        self,
        config: LearnerConfig,
        *,
        state_dim: int,
        slot_config: SlotConfig | None = None,
        action_spec: ActionSpec | None = None,
        network: RecurrentActorCritic | None = None,
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
        base = self._base_network
        self.config = replace(config, lstm_hidden_dim=base.lstm_hidden_dim, lstm_layers=base.lstm_layers)
        self.buffer = self.make_buffer()
        self.optimizer = build_optimizer(base, config.lr, config.weight_decay, config.head_lr_scale)
        self.memory = ValueMemory(config.value_memory)
        self.units = parameter_units(base)
        self.telemetry_config: TelemetryLevels | None = None
        self.observer: UpdateObserver | None = None
        """Looks on during updates, if set; what is learned does not depend on it."""
        self.total_steps = 0
        """Environment steps learned from so far."""
        self.updates = 0

    def update(self, buffer: TamiyoRolloutBuffer | None = None) -> PPOUpdateMetrics:
        """Learn from one round, then clear it.

        Every epoch replays whole sequences from their own start. This is deliberate: an episode's start needs no stored
        state, so the LSTM is trained on states that the present weights lead to, which shuffled single steps would not
        allow. The policy's normaliser takes in the raw observations first; learning uses those acted upon.
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
        self._run_epochs(batch, before.values, torch.tensor(list(coefficients.values()), device=self.device), log)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            after = self.policy.replay(batch)
        return log.summary(
            diagnostics,
            entropy_coefs=coefficients,
            **round_statistics(self.spec, batch, before, after, self.policy.return_scale.scale),
        )

    def _run_epochs(self, batch: SequenceBatch, before_values: Tensor, weights: Tensor, log: UpdateLog) -> None:
        """All epochs, or until the KL limit; `weights [H]` are the entropy coefficients of the heads."""
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
        if not is_usable(report):
            log.skipped_steps += 1
            self._note_ratio_issue(report, log_ratio, log)
            return True
        log.epochs[-1].append(report)
        # Early stopping, before the step that would go too far.
        target = self.config.target_kl
        if target is not None and report["approx_kl"] > KL_STOP_MULTIPLIER * target:
            log.early_stopped = True
            return False
        self.optimizer.step()
        log.optimizer_steps += 1
        return True

    def _backward(self, part: SequenceBatch, reference: Tensor, weights: Tensor) -> tuple[Report, Tensor]:
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
            log_probs = by_head(self.spec, evaluation.log_probs.detach())
            self.observer.minibatch(part, log_probs, by_head(self.spec, entropies.detach()), losses)
        norms = clip_policy_gradients(self.units, config.max_grad_norm, config.grad_clip_mode)
        # All numbers of the minibatch, for which the device is waited for once.
        log_ratio = log_ratio.detach()
        statistics = ratio_statistics(log_ratio, part.active, part.valid, config.clip_ratio)
        numbers = {"policy_loss": policy, "value_loss": value, "total_loss": total, "entropies": entropies}
        return fetch_numbers(numbers | statistics | norms, list(self.units)), log_ratio

    def _note_ratio_issue(self, report: Report, log_ratio: Tensor, log: UpdateLog) -> None:
        if not report["ratios_finite"]:
            log.ratio_issue = True
            # Which of the two it was is worth another look at the device only if someone asks.
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

    def get_entropy_coef(self, action_mask: Tensor | None = None) -> float:
        """The entropy coefficient now: it falls linearly from `entropy_coef` to its floor over `decay_steps`.

        It is the scalar base, which the factors of single heads multiply. An `entropy_coef` of 0 means no bonus at all.
        """
        initial, floor = self.config.entropy_coef, self.get_entropy_floor(action_mask)
        if initial == 0.0:
            return 0.0
        if self.decay_steps is None:
            return max(initial, floor) if self.config.adaptive_entropy_floor else initial
        progress = min(1.0, self.total_steps / self.decay_steps) if self.decay_steps > 0 else 1.0
        return max(floor, initial + progress * (floor - initial))

    def get_entropy_floor(self, action_mask: Tensor | None = None) -> float:
        """The least entropy coefficient: `entropy_coef_min`, raised by `adaptive_entropy_floor` where a mask is tight.

        It rises by ln(all) / ln(valid actions), but at most threefold. The entropies themselves are already normalised
        by the valid actions; the adaptive floor comes on top, and keeps heads exploring that rarely have a choice.
        """
        floor = self.config.entropy_coef_min
        if action_mask is None or not self.config.adaptive_entropy_floor:
            return floor
        total, valid = action_mask.numel(), int(action_mask.sum())
        if valid <= 1 or valid == total:
            return floor
        return floor * min(math.log(total) / math.log(valid), ENTROPY_FLOOR_SCALE_CAP)

    def set_learning_rate(self, lr: float) -> None:
        """Learn at this rate from now on; heads keep their factors on it."""
        set_learning_rate(self.optimizer, lr, self.config.head_lr_scale)

    def initial_hidden(self, num_envs: int | None = None) -> Hidden:
        """The LSTM state at the start of an episode."""
        return self.policy.initial_hidden(self.num_envs if num_envs is None else num_envs)

    def act(self, obs: Tensor, masks: Masks, hidden: Hidden, *, deterministic: bool = False) -> PolicyStep:
        """Decide for normalised `obs [N, D]`; values are in raw units."""
        return self.policy.act(obs, masks, hidden, deterministic=deterministic, step=self.buffer.num_steps)

    @property
    def device(self) -> str:
        """Where the policy, the buffer and the optimiser are."""
        return str(self.policy.device)

    @property
    def _base_network(self) -> RecurrentActorCritic:
        return self.policy.network

    @cached_property
    def made_with(self) -> Mapping[str, Any]:
        """What never changes of an agent, in built-in types, as checkpoints hold it."""
        return {
            "state_dim": self.state_dim,
            "slot_config": self.slot_config.to_dict(),
            "action_spec": self.spec.to_dict(),
            "config": self.config.to_dict(),
            "round": {"num_envs": self.num_envs, "max_steps": self.max_steps, "decay_steps": self.decay_steps},
            "network_options": dict(self._base_network.options),
        }

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

    def _make_policy(self, network: RecurrentActorCritic | None, *, normalize: bool) -> Policy:
        config = self.config
        if network is None:
            network = make_network(config, self.spec, self.state_dim)
        policy = Policy(
            network,
            find_device(config.device),
            normalize=normalize,
            scale_values=config.scale_values,
            compile_network=config.compile_network,
        )
        self._require_same_heads("network", policy.spec)
        if policy.network.state_dim != self.state_dim:
            raise InputError(
                f"the network reads observations of {policy.network.state_dim}, the agent of {self.state_dim}"
            )
        return policy

    def _require_same_heads(self, owner: str, theirs: ActionSpec) -> None:
        """Refuse what was made for other heads than the agent's."""
        if theirs != self.spec:
            sizes = [", ".join(f"{head.name} {head.size}" for head in spec.heads) for spec in (theirs, self.spec)]
            raise InputError(f"the {owner} is made for other heads ({sizes[0]}) than the agent ({sizes[1]})")


def _capped(epochs: int) -> int:
    if epochs > RECURRENT_EPOCHS_CAP:
        warnings.warn(
            f"epochs={epochs} is capped at {RECURRENT_EPOCHS_CAP}: more reuse of a round only overfits it",
            RuntimeWarning,
            stacklevel=3,
        )
    return min(epochs, RECURRENT_EPOCHS_CAP)


def _warn_of_stored_states(epochs: int, hidden: Hidden) -> None:
    """Warn of many passes over sequences of which some start from a state other than zeros."""
    if epochs > RECURRENT_EPOCHS_WARNING and any(state.any() for state in hidden):
        warnings.warn(
            f"epochs={epochs} is elevated for sequences that start from a stored state: later epochs replay "
            "them from a state that the changed network would not have reached",
            RuntimeWarning,
            stacklevel=4,
        )
