"""Options of the learner reach what they are about: memory, targets, losses, gradients, steps; each by its effect."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.simic.agent import PPOAgent
from esper.simic.agent.network import ResidualFeatures
from tests.simic.agent.test_rollout_buffer import plain_gae
from tests.simic.builders import agent_with_round, make_agent, parameters_of

GAMMA = 0.9


@pytest.mark.parametrize("gae_lambda", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("value_lambda", [None, 0.3, 1.0])
def test_advantages_and_value_targets_follow_their_lambdas(gae_lambda: float, value_lambda: float | None) -> None:
    agent = agent_with_round(gamma=GAMMA, gae_lambda=gae_lambda, value_lambda=value_lambda)
    buffer = agent.buffer
    advantages = plain_gae(buffer, GAMMA, gae_lambda)
    returns = plain_gae(buffer, GAMMA, gae_lambda if value_lambda is None else value_lambda) + buffer.values.numpy()
    agent.update()  # clears the buffer, but what it held stays in its memory
    standard = (advantages - advantages.mean()) / advantages.std()
    np.testing.assert_allclose(buffer.advantages, standard, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(buffer.returns, returns, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("clip_ratio", "clipped"), [(0.1, 1.0), (0.3, 1.0), (0.5, 0.0)])
def test_the_surrogate_is_clipped_at_the_ratio_asked_for(clip_ratio: float, clipped: float) -> None:
    """Every ratio is about 1.35: gains are cut at 1 + `clip_ratio`, losses count in full."""
    agent, ratio = agent_with_round(clip_ratio=clip_ratio, target_kl=None), math.exp(0.3)
    agent.buffer.log_probs -= 0.3
    metrics = agent.update()
    agent.buffer.step_counts += agent.max_steps  # show the cleared round once more
    batch = agent.buffer.get_batched_sequences()
    gain = batch.advantages.clamp(min=0) * min(ratio, 1 + clip_ratio) + batch.advantages.clamp(max=0) * ratio
    expected = -sum(float(gain[batch.active[..., head]].mean()) for head in range(4))
    assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert metrics["clip_fraction"] == pytest.approx(clipped)


def errors_in_units_of_the_scale(agent: PPOAgent, scale: float) -> Tensor:
    """How far values were off their targets; every step of a round of `agent_with_round` is real."""
    return (agent.buffer.values - agent.buffer.returns) / scale


@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_the_value_loss_is_hubers_where_asked_for_and_bends_at_its_delta(delta: float) -> None:
    agent = agent_with_round(value_loss_type="huber", huber_delta=delta)
    metrics = agent.update()
    errors = errors_in_units_of_the_scale(agent, metrics["return_scale"]).abs()
    assert (errors > delta).any()
    huber = torch.where(errors <= delta, 0.5 * errors.square(), delta * (errors - 0.5 * delta))
    assert metrics["value_loss"] == pytest.approx(float(huber.mean()), rel=1e-4)


def test_the_value_loss_is_half_the_squared_error_otherwise() -> None:
    agent = agent_with_round()
    metrics = agent.update()
    errors = errors_in_units_of_the_scale(agent, metrics["return_scale"])
    assert metrics["value_loss"] == pytest.approx(float(0.5 * errors.square().mean()), rel=1e-4)


def test_values_are_held_only_if_clipping_is_on() -> None:
    options: dict[str, Any] = {"lr": 3e-3, "target_kl": None, "entropy_coef": 0.0, "epochs": 4}
    held = agent_with_round(**options, value_clip=1e-9).update()["value_loss"]
    unclipped = agent_with_round(**options, value_clip=1e-9, clip_value=False).update()["value_loss"]
    free = agent_with_round(**options, value_clip=1e9).update()["value_loss"]
    assert unclipped == free < held


def test_gradients_are_clipped_part_by_part_or_all_together() -> None:
    limit = 1e-3
    parts = agent_with_round(max_grad_norm=limit, grad_clip_mode="per_head").update()["post_clip_grad_norm"]
    together = agent_with_round(max_grad_norm=limit, grad_clip_mode="global").update()["post_clip_grad_norm"]
    assert together == pytest.approx(limit, rel=1e-2)
    assert parts == pytest.approx(limit * math.sqrt(6), rel=1e-2)  # four heads, the value head and the trunk


def test_network_and_buffer_have_the_memory_asked_for() -> None:
    agent = make_agent(lstm_hidden_dim=24, lstm_layers=2)
    lstm = agent._base_network.lstm
    assert (lstm.hidden_size, lstm.num_layers) == (24, 2)
    assert agent.buffer.hidden_h.shape == agent.buffer.hidden_c.shape == (4, 12, 2, 24)


@pytest.mark.parametrize(("hidden_storage", "kept"), [("all", 12), ("first", 1)])
def test_the_buffer_keeps_the_states_asked_for(hidden_storage: str, kept: int) -> None:
    assert make_agent(hidden_storage=hidden_storage).buffer.hidden_h.shape[1] == kept


@pytest.mark.parametrize("lr", [1e-4, 3e-3])
def test_the_first_step_is_as_long_as_the_learning_rate(lr: float) -> None:
    """Adam's first step moves every parameter by the rate, but for gradients of almost nothing."""
    agent = agent_with_round(lr=lr, scale_values=False)
    before = parameters_of(agent)
    agent.update()
    assert float((parameters_of(agent) - before).abs().max()) == pytest.approx(lr, rel=0.05)


@pytest.mark.parametrize("horizon_is_terminal", [False, True])
def test_a_time_limit_is_worth_its_bootstrap_value_unless_it_ends_the_problem(horizon_is_terminal: bool) -> None:
    agent = agent_with_round(horizon_is_terminal=horizon_is_terminal, gamma=GAMMA, max_steps=1)
    buffer = agent.buffer
    buffer.dones[:], buffer.truncated[:], buffer.bootstrap_values[:] = True, True, 5.0
    agent.update()
    ahead = 0.0 if horizon_is_terminal else GAMMA * 5.0
    torch.testing.assert_close(buffer.returns, buffer.rewards + ahead)


def test_the_network_is_made_as_its_options_say() -> None:
    plain = make_agent().policy.network
    made = make_agent(feature_dim=24, feature_layers=2, input_norm=False, head_dim=8, policy_gain=0.5).policy.network
    assert isinstance(made.feature_net, ResidualFeatures)
    assert not any(isinstance(layer, nn.LayerNorm) for layer in made.feature_net.modules())
    assert any(isinstance(layer, nn.LayerNorm) for layer in plain.get_submodule("feature_net").modules())
    assert made.lstm.input_size == 24
    last = made.policy_head("op")[-1]
    assert isinstance(last, nn.Linear)
    assert last.in_features == 8
    # Rows of an orthogonal matrix are as long as its gain.
    assert torch.allclose(torch.linalg.vector_norm(last.weight, dim=1), torch.tensor(0.5))
