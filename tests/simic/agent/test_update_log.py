"""What an update reports: against NumPy, per head, and of the right types."""

import logging
import math
from typing import get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, Op, SlotConfig
from esper.simic.agent import PPOUpdateMetrics
from esper.simic.agent.update_log import mask_hit_rates, value_diagnostics
from esper.simic.control import Masks, esper_action_spec, joint_entropy, relevant_heads, select_masks
from tests.simic.builders import RandomWorld, agent_with_round

SPEC = esper_action_spec(SlotConfig.of_size(2))


def test_value_diagnostics_equal_numpy() -> None:
    agent = agent_with_round()
    buffer = agent.buffer
    buffer.compute_advantages_and_returns(agent.config.gamma, agent.config.gae_lambda)
    values, returns, advantages = (
        t.double().numpy().copy() for t in (buffer.values, buffer.returns, buffer.advantages)
    )
    metrics = agent.update()
    expected = {
        "value_pred_mean": values.mean(),
        "value_pred_std": values.std(),
        "return_mean": returns.mean(),
        "return_std": returns.std(),
        "return_min": returns.min(),
        "return_max": returns.max(),
        "value_mse_before": ((returns - values) ** 2).mean(),
        "advantage_mean_prenorm": advantages.mean(),
        "advantage_std_prenorm": advantages.std(),
        "explained_variance": 1 - np.var(returns - values) / np.var(returns),
    }
    for name, number in expected.items():
        assert metrics[name] == pytest.approx(number, rel=1e-4, abs=1e-5), name  # type: ignore[literal-required]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_value_diagnostics_are_finite_in_half_precision(dtype: torch.dtype) -> None:
    large = torch.full((100,), 300.0, dtype=dtype) + torch.arange(100).to(dtype)
    assert all(math.isfinite(number) for number in value_diagnostics(large, large, large).values())  # type: ignore[arg-type]


def test_explained_variance_is_one_for_perfect_values_and_zero_for_constant_returns() -> None:
    returns, zeros = torch.randn(50), torch.zeros(50)
    assert value_diagnostics(returns, returns, zeros)["explained_variance"] == pytest.approx(1.0)
    assert value_diagnostics(returns, zeros, zeros)["explained_variance"] == 0.0
    assert value_diagnostics(torch.ones(1), torch.ones(1), torch.ones(1))["return_std"] == 0.0


@pytest.mark.parametrize(("rewards", "warned"), [(0.0, True), (1.0, False)])
def test_a_small_spread_of_advantages_is_warned_of_once(
    rewards: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with_round()
    agent.buffer.rewards *= rewards
    agent.buffer.values *= rewards
    agent.buffer.bootstrap_values *= rewards
    with caplog.at_level(logging.WARNING):
        agent.update()
    assert [("gamma" in record.message) for record in caplog.records] == [True] * warned


def test_metrics_have_the_declared_types() -> None:
    metrics = agent_with_round(epochs=2).update()
    hints = get_type_hints(PPOUpdateMetrics)
    for name, value in metrics.items():
        if hints[name] in (float, int, bool):
            assert type(value) is hints[name], name
    assert set(hints) - set(metrics) == {"ratio_has_nan", "ratio_has_inf"}
    assert tuple(metrics["head_entropies"]) == tuple(metrics["head_kls"]) == HEAD_NAMES
    assert tuple(metrics["head_grad_norms"]) == (*HEAD_NAMES, "value")
    assert metrics["gradient_stats"] is not None
    assert metrics["gradient_stats"]["max_grad"] >= metrics["gradient_stats"]["min_grad"] > 0


def test_a_head_that_is_certain_is_the_only_one_without_entropy() -> None:
    agent = agent_with_round()
    head = agent._base_network.policy_head("blend")
    with torch.no_grad():
        bias = list(head.parameters())[-1]
        bias.zero_()
        bias[0] = 100.0
    agent.buffer.masks["blend"][:] = True
    entropies = agent.update()["head_entropies"]
    assert entropies["blend"][0] == pytest.approx(0.0, abs=1e-6)
    assert all(entropies[name][0] > 0.01 for name in HEAD_NAMES if name != "blend")


def test_joint_entropy_is_that_of_the_policy_that_acted() -> None:
    agent = agent_with_round()
    batch = agent.buffer.get_batched_sequences()
    logits = agent.policy.replay(batch)[0]
    masks = {name: mask[batch.valid] for name, mask in batch.masks.items()}
    expected = joint_entropy(agent.spec, logits[batch.valid], masks).mean().item()
    metrics = agent.update()
    assert metrics["joint_entropy"] == pytest.approx(expected, rel=1e-5)
    assert metrics["joint_kl"] > 0


def test_approximate_and_exact_kl_agree_for_a_small_step() -> None:
    metrics = agent_with_round(
        world=RandomWorld(64), num_envs=64, max_steps=50, epochs=2, lr=1e-3, target_kl=None
    ).update()
    assert metrics["approx_kl"] < metrics["joint_kl"] * 2.0
    assert metrics["joint_kl"] < 0.1


def test_statistics_of_heads_agree_with_those_of_all() -> None:
    metrics = agent_with_round(epochs=2, target_kl=None, lr=3e-2).update()
    assert max(metrics["head_ratio_max"].values()) == pytest.approx(metrics["ratio_max"])
    assert min(metrics["head_ratio_min"].values()) == pytest.approx(metrics["ratio_min"])
    assert metrics["round_ratio_low"] < 1 < metrics["round_ratio_high"]
    assert 0 < max(metrics["head_clip_fractions"].values()) <= 1
    assert min(metrics["head_clip_fractions"].values()) <= metrics["clip_fraction"]


def test_a_head_is_judged_where_masks_leave_it_a_choice() -> None:
    agent = agent_with_round()
    agent.buffer.masks["blend"][:] = False
    agent.buffer.masks["blend"][..., 0] = True
    agent.buffer.actions[..., HEAD_NAMES.index("blend")] = 0
    metrics = agent.update()
    assert (metrics["head_choices"]["blend"], metrics["head_choice_entropies"]["blend"]) == (0, 0.0)
    assert metrics["head_choices"]["op"] > 0
    # steps without a choice, whose entropy is 0, do not count
    assert metrics["head_choice_entropies"]["op"] >= metrics["head_entropies"]["op"][0] - 1e-6


def test_the_error_of_the_critic_falls_on_the_round_it_learned_from() -> None:
    metrics = agent_with_round(epochs=4, target_kl=None, lr=3e-3).update()
    assert metrics["value_mse_after"] < metrics["value_mse_before"]
    assert metrics["explained_variance_after"] > metrics["explained_variance"]
    assert metrics["advantage_min_prenorm"] < metrics["advantage_mean_prenorm"] < metrics["advantage_max_prenorm"]
    assert 0 < metrics["advantage_positive_share"] < 1


def rates(masks: Masks, actions: Tensor) -> dict[str, float]:
    found = mask_hit_rates(SPEC, select_masks(SPEC, masks, actions), relevant_heads(SPEC, actions))
    return dict(zip(SPEC.names, found.tolist(), strict=True))


def test_heads_that_did_not_matter_decided_nothing() -> None:
    masks = SPEC.all_legal([3])
    masks["op"][0, Op.CULL] = False
    masks["slot"][1, Op.GERMINATE, 1] = False
    masks["blueprint"][:, 0, 4] = False
    # Host 0 waits, host 1 germinates in slot 0, host 2 culls in slot 1.
    actions = torch.tensor([[0, 0, 0, Op.WAIT], [0, 2, 1, Op.GERMINATE], [1, 0, 0, Op.CULL]])
    assert rates(masks, actions) == pytest.approx({"slot": 0.5, "blueprint": 1.0, "blend": 0.0, "op": 1 / 3})


def test_a_head_that_never_decided_has_rate_zero() -> None:
    assert set(rates(SPEC.all_legal([2]), torch.zeros(2, 4, dtype=torch.int64)).values()) == {0.0}


def test_steps_of_several_hosts_count_alike() -> None:
    masks = SPEC.all_legal([3, 5])
    masks["op"][:, 0, Op.CULL] = False
    assert rates(masks, torch.zeros(3, 5, 4, dtype=torch.int64))["op"] == pytest.approx(0.2)


def test_an_update_reports_the_rates_of_its_round() -> None:
    agent = agent_with_round()
    batch = agent.buffer.get_batched_sequences()
    expected = mask_hit_rates(agent.spec, batch.selected, batch.active).tolist()
    assert agent.update()["mask_hit_rates"] == pytest.approx(dict(zip(HEAD_NAMES, expected, strict=True)))
