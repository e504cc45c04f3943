"""The update: rollout and replay agree, and every option does what it says."""

import math
from typing import Any

import pytest
import torch

from esper.leyline import (
    DEFAULT_EPISODE_LENGTH,
    DEFAULT_NUM_ENVS,
    HEAD_NAMES,
    InputError,
    SlotConfig,
)
from esper.simic.agent import FactoredRecurrentActorCritic, PPOAgent
from esper.simic.agent.rollout_buffer import SequenceBatch
from esper.simic.config import LearnerConfig
from esper.simic.control import RunningMeanStd, esper_action_spec
from esper.simic.control.action_masks import by_head
from esper_lab.player import Player
from tests.simic.builders import RandomWorld, agent_with_round, make_agent, parameters_of


def log_ratio(agent: PPOAgent, batch: SequenceBatch, selected: torch.Tensor | None = None) -> torch.Tensor:
    """New minus stored log-probabilities, before any learning."""
    masks = batch.selected if selected is None else selected
    replay = agent._base_network.evaluate_actions(batch.obs, batch.actions, masks, batch.hidden)
    return (replay.log_probs - batch.old_log_probs).detach()


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("hidden_storage", ["all", "first"])
def test_first_epoch_ratios_are_one_on_every_head(rounds: int, hidden_storage: str) -> None:
    """Over episodes that end by either flag, begin inside rows, and go on from an earlier round."""
    torch.manual_seed(0)
    agent, world = make_agent(hidden_storage=hidden_storage, max_steps=40), RandomWorld()
    player = Player(agent, world)
    for _ in range(rounds):
        player.fill_buffer()
        batch = agent.buffer.get_batched_sequences()
        for name, gap in by_head(agent.spec, log_ratio(agent, batch)).items():
            active = by_head(agent.spec, batch.active)[name]
            assert active.any()
            assert gap[active].abs().max() < 1e-5, name
        metrics = agent.update()
        assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)


def test_ratios_reveal_a_mask_that_the_update_forgot() -> None:
    agent = agent_with_round()
    batch = agent.buffer.get_batched_sequences()
    forgotten = torch.ones_like(batch.selected)
    assert log_ratio(agent, batch, forgotten)[batch.active].abs().max() > 0.1


def test_ratios_reveal_a_state_that_was_not_reset() -> None:
    agent = agent_with_round()
    batch = agent.buffer.get_batched_sequences()
    batch.hidden = (batch.hidden[0] + 1.0, batch.hidden[1] + 1.0)
    assert log_ratio(agent, batch)[batch.active].abs().max() > 1e-3


def test_time_outs_are_bootstrapped_with_the_state_after_the_step() -> None:
    """The stored value is V of the final observation under the LSTM state after the step, not before it."""
    torch.manual_seed(0)
    agent, world = make_agent(max_steps=1), RandomWorld(end_rate=0.0)
    player = Player(agent, world)
    obs, masks, hidden = player.obs, player.masks, player.hidden
    torch.manual_seed(1)
    player.fill_buffer()
    torch.manual_seed(1)
    decision = agent.act(obs, masks, hidden)
    final = world.step(decision.actions).final_obs
    torch.testing.assert_close(agent.buffer.bootstrap_values[:, 0], agent.policy.value(final, decision.hidden))
    assert not torch.allclose(agent.policy.value(final, decision.hidden), agent.policy.value(final, hidden))
    torch.testing.assert_close(player.hidden[0], decision.hidden[0])


def test_order_of_environments_does_not_change_the_loss() -> None:
    agent = agent_with_round()
    straight = agent.buffer.get_batched_sequences()
    shuffled = straight.rows(torch.randperm(len(straight.lengths)))
    weights = torch.full((4,), 0.05)
    losses = []
    for batch in (straight, shuffled):
        values = agent.policy.replay(batch)[1]
        losses.append(agent._backward(batch, values, weights)[0]["total_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_both_ways_of_storing_states_give_the_same_update() -> None:
    results = [agent_with_round(hidden_storage=kind).update() for kind in ("all", "first")]
    assert results[0]["total_loss"] == results[1]["total_loss"]
    assert results[0]["value_loss"] == results[1]["value_loss"]


def test_total_loss_is_composed_as_documented() -> None:
    factors = {"op": 2.0, "blend": 0.5}
    metrics = agent_with_round(entropy_coef=0.07, entropy_coef_per_head=factors, value_coef=0.3).update()
    bonus = sum(0.07 * factors.get(name, 1.0) * metrics["head_entropies"][name][0] for name in HEAD_NAMES)
    expected = metrics["policy_loss"] + 0.3 * metrics["value_loss"] - bonus
    assert metrics["total_loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["entropy_coefs"]["op"] == pytest.approx(0.14)


def test_the_agent_takes_the_learners_options_whole() -> None:
    config = LearnerConfig(device="cpu")
    agent = PPOAgent(config, state_dim=6)
    assert agent.config == config
    assert (agent.num_envs, agent.max_steps) == (DEFAULT_NUM_ENVS, DEFAULT_EPISODE_LENGTH)
    assert (agent.epochs, agent.num_minibatches) == (4, DEFAULT_NUM_ENVS)
    assert agent._base_network.lstm_hidden_dim == config.lstm_hidden_dim
    assert agent.slot_config is SlotConfig.default()


def test_slot_config_reaches_network_and_buffer() -> None:
    agent = make_agent(slot_config=SlotConfig.of_size(5))
    assert agent.spec.head("slot").size == 5
    assert agent.buffer.masks["slot"].shape[-1] == agent._base_network.spec.head("slot").size == 5


def test_network_or_buffer_for_other_slots_is_refused() -> None:
    other = esper_action_spec(SlotConfig.of_size(5))
    with pytest.raises(InputError, match=r"slot 5.*slot 3"):
        make_agent(network=FactoredRecurrentActorCritic(other, 6))
    with pytest.raises(InputError, match=r"slot 5.*slot 3"):
        make_agent().update(make_agent(slot_config=SlotConfig.of_size(5)).buffer)
    with pytest.raises(InputError, match="observations of 7"):
        make_agent(network=FactoredRecurrentActorCritic(esper_action_spec(SlotConfig.default()), 7))


@pytest.mark.parametrize("options", [{"num_minibatches": 5}, {"epochs": 0}, {"entropy_coef_per_head": {"oops": 1.0}}])
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        make_agent(**options)


def test_more_epochs_than_four_are_capped_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match=r"epochs=10 is capped"):
        assert make_agent(epochs=10).epochs == 4


def test_many_epochs_warn_only_where_sequences_start_from_a_stored_state() -> None:
    aligned = agent_with_round(epochs=4, target_kl=None)
    aligned.update()
    stored = agent_with_round(epochs=3, target_kl=None)
    stored.buffer.hidden_h[:, 0] = 1.0
    with pytest.warns(RuntimeWarning, match=r"epochs=3 is elevated"):
        stored.update()


def test_every_sequence_is_used_once_per_epoch() -> None:
    metrics = agent_with_round(epochs=3, num_minibatches=4, target_kl=None).update()
    assert metrics["epochs_run"] == 3
    assert metrics["optimizer_steps"] == 12
    assert all(len(history) == 3 for history in metrics["head_entropies"].values())
    assert all(len(history) == 3 for history in metrics["head_grad_norms"].values())


def test_the_kl_limit_ends_the_update_before_the_next_step() -> None:
    """The second epoch finds the policy far away and must not step again."""
    once = agent_with_round(lr=0.05, target_kl=None)
    once.update()
    stopped = agent_with_round(lr=0.05, target_kl=0.015, epochs=4)
    metrics = stopped.update()
    assert metrics["early_stopped"]
    assert metrics["optimizer_steps"] == 1
    assert metrics["epochs_run"] == 2
    assert metrics["approx_kl"] > 1.5 * 0.015
    torch.testing.assert_close(parameters_of(stopped), parameters_of(once))
    assert metrics["joint_kl"] > 0
    unlimited = agent_with_round(lr=0.05, target_kl=None, epochs=4).update()
    assert unlimited["optimizer_steps"] == 4
    assert not unlimited["early_stopped"]


def test_value_clipping_stays_centred_on_the_network_at_the_start_of_the_update() -> None:
    """With no room to move, no epoch may report a smaller error than the first; with room they do."""
    options: dict[str, Any] = {"lr": 3e-3, "target_kl": None, "entropy_coef": 0.0}
    first = agent_with_round(**options, value_clip=1e-9).update()["value_loss"]
    held = agent_with_round(**options, value_clip=1e-9, epochs=4).update()["value_loss"]
    free = agent_with_round(**options, value_clip=1e9, epochs=4).update()["value_loss"]
    assert free < first <= held


def test_replayed_values_equal_those_of_the_rollout() -> None:
    agent = agent_with_round()
    batch = agent.buffer.get_batched_sequences()
    agent.buffer.returns.copy_(agent.buffer.values)
    stored = agent.buffer.get_batched_sequences().returns
    torch.testing.assert_close(agent.policy.replay(batch)[1][batch.valid], stored[batch.valid], atol=1e-4, rtol=0)


def test_scaled_values_stay_in_raw_units_outside_the_network() -> None:
    """Rewards a thousand times larger change the scale and nothing else of what is learned."""
    small, large = agent_with_round(), agent_with_round()
    large.buffer.rewards *= 1000.0
    large.buffer.values *= 1000.0
    large.buffer.bootstrap_values *= 1000.0
    one, other = small.update(), large.update()
    assert other["return_scale"] == pytest.approx(1000.0 * one["return_scale"], rel=1e-4)
    assert other["policy_loss"] == pytest.approx(one["policy_loss"], abs=1e-5)
    assert other["return_mean"] == pytest.approx(1000.0 * one["return_mean"], rel=1e-4)


def test_a_new_return_scale_does_not_move_the_values() -> None:
    agent = agent_with_round(lr=1e-12)
    obs, hidden = torch.randn(4, 6), agent.initial_hidden()
    before = agent.policy.value(obs, hidden).clone()
    agent.buffer.rewards *= 50.0
    assert agent.update()["return_scale"] > 5.0
    torch.testing.assert_close(agent.policy.value(obs, hidden), before)
    plain = agent_with_round(scale_values=False)
    assert plain.update()["return_scale"] == 1.0


def test_the_normaliser_sees_raw_observations_once_and_learning_uses_those_acted_upon() -> None:
    torch.manual_seed(0)
    agent, world = make_agent(normalize=True), RandomWorld()
    normalizer = agent.policy.normalizer
    assert normalizer is not None
    normalizer.update(5.0 + 2.0 * torch.randn(100, 6))
    raw, masks = world.reset()
    hidden = agent.initial_hidden()
    for step in range(agent.max_steps):
        obs = agent.policy.normalized(raw)
        decision = agent.act(obs, masks, hidden)
        outcome = world.step(decision.actions)
        ended = torch.full((4,), step == agent.max_steps - 1)
        agent.buffer.add_step(
            obs, masks, hidden, decision, outcome.rewards, ended, torch.zeros_like(ended), raw_obs=raw
        )
        raw, masks, hidden = outcome.obs, outcome.masks, decision.hidden
    twin = RunningMeanStd((6,))
    twin.load_state_dict(normalizer.state_dict())
    twin.update(agent.buffer.raw_obs)
    metrics = agent.update()
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(normalizer.state_dict(), twin.state_dict())


def test_an_update_clears_the_round_and_counts_it() -> None:
    agent = agent_with_round()
    agent.update()
    assert agent.total_steps == 48
    assert agent.updates == 1
    assert agent.buffer.num_steps == 0
    assert all(parameter.grad is None for parameter in agent._base_network.parameters())
    assert agent.update()["empty"]


def test_one_step_in_one_environment_is_enough_to_update() -> None:
    metrics = agent_with_round(num_envs=1, max_steps=1).update()
    assert not metrics["empty"]
    assert all(math.isfinite(value) for value in metrics.values() if isinstance(value, float))
