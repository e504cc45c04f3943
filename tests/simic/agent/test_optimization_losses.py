"""Each term of the loss against a computation by hand, and what must not change it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import Op
from esper.simic.agent import causal_masks, compute_per_head_advantages
from esper.simic.agent.optimization import entropy_bonus, log_ratios, policy_loss, ratio_statistics, value_loss
from tests.simic.builders import ESPER_SPEC


@pytest.mark.parametrize(
    ("op", "heads"),
    [
        (Op.WAIT, {"op"}),
        (Op.GERMINATE, {"op", "slot", "blueprint", "blend"}),
        (Op.FOSSILIZE, {"op", "slot"}),
        (Op.CULL, {"op", "slot"}),
    ],
)
def test_only_heads_that_mattered_are_credited(op: Op, heads: set[str]) -> None:
    actions = torch.zeros(1, 2, 4, dtype=torch.long)
    actions[..., ESPER_SPEC.decider_index] = op
    active = causal_masks(ESPER_SPEC, actions, torch.tensor([[True, False]]))
    credited = compute_per_head_advantages(torch.full((1, 2), 3.0), active)
    for index, name in enumerate(ESPER_SPEC.names):
        assert credited[0, 0, index] == (3.0 if name in heads else 0.0)
        assert credited[0, 1, index] == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [(1.5, 2.0, 1.2 * 2.0), (0.5, 2.0, 0.5 * 2.0), (1.5, -2.0, 1.5 * -2.0), (0.5, -2.0, 0.8 * -2.0), (1.1, 2.0, 2.2)],
)
def test_surrogate_is_clipped_on_the_side_that_would_gain(ratio: float, advantage: float, objective: float) -> None:
    active = torch.ones(1, 1, 1, dtype=torch.bool)
    loss, _ = policy_loss(torch.tensor([[[math.log(ratio)]]]), torch.tensor([[advantage]]), active, 0.2)
    assert loss.item() == pytest.approx(-objective)


def test_inactive_steps_and_garbage_in_padding_change_no_head_loss() -> None:
    torch.manual_seed(0)
    log_ratio, advantages = torch.randn(3, 5, 4), torch.randn(3, 5)
    active = torch.rand(3, 5, 4) < 0.5
    active[..., 1] = False
    _, heads = policy_loss(log_ratio, advantages, active, 0.2)
    assert heads[1] == 0.0
    longer = torch.cat([log_ratio, torch.full((3, 2, 4), math.nan)], 1)
    padded_active = torch.cat([active, torch.zeros(3, 2, 4, dtype=torch.bool)], 1)
    cleaned = log_ratios(longer, torch.zeros_like(longer), padded_active)
    padded_advantages = torch.cat([advantages, torch.full((3, 2), math.nan)], 1)
    _, again = policy_loss(cleaned, padded_advantages, padded_active, 0.2)
    torch.testing.assert_close(again, heads)


def test_value_clipping_takes_the_worse_error_and_keeps_the_half() -> None:
    valid = torch.ones(1, 3, dtype=torch.bool)
    values, targets, reference = torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([[4.0, 1.0, 2.0]]), torch.zeros(1, 3)
    plain, _ = value_loss(values, targets, valid)
    wide, _ = value_loss(values, targets, valid, reference=reference, clip=1e9)
    narrow, _ = value_loss(values, targets, valid, reference=reference, clip=0.5)
    assert plain.item() == wide.item() == pytest.approx(0.5 * (1 + 0 + 4) / 3)
    assert narrow.item() == pytest.approx(0.5 * (3.5**2 + 0.5**2 + 2.0**2) / 3)


def test_huber_bounds_the_gradient_of_each_step() -> None:
    values = torch.tensor([[100.0, 0.3]], requires_grad=True)
    valid = torch.ones(1, 2, dtype=torch.bool)
    _, errors = value_loss(values, torch.zeros(1, 2), valid, kind="huber", huber_delta=0.7)
    errors.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[0.7, 0.3]]))


def test_a_rare_head_is_not_diluted_in_the_entropy_bonus() -> None:
    """Active in 10 of 100 steps, its gradient is that of a batch with those 10 steps alone."""
    torch.manual_seed(0)
    entropies = torch.rand(1, 100, 1, requires_grad=True)
    active = torch.zeros(1, 100, 1, dtype=torch.bool)
    active[:, ::10] = True
    bonus, means = entropy_bonus(entropies, active, torch.tensor([0.05]))
    bonus.backward()
    assert entropies.grad is not None
    torch.testing.assert_close(entropies.grad[active], torch.full((10,), 0.05 / 10))
    assert not entropies.grad[~active].any()
    torch.testing.assert_close(means[0], entropies[active].mean())


def test_joint_kl_sums_over_heads_and_averages_over_steps() -> None:
    log_ratio, active = torch.zeros(1, 100, 4), torch.zeros(1, 100, 4, dtype=torch.bool)
    active[..., 3] = True
    active[:, :5, 1] = True
    log_ratio[:, :5, 1] = _log_ratio_with_kl(0.2)
    statistics = ratio_statistics(log_ratio, active, torch.ones(1, 100, dtype=torch.bool), 0.2)
    assert statistics["approx_kl"].item() == pytest.approx(0.01, rel=1e-4)
    assert statistics["head_kls"].tolist() == pytest.approx([0.0, 0.2, 0.0, 0.0], rel=1e-4)
    log_ratio[:, 50:, 0] = 3.0  # inactive: no effect
    again = ratio_statistics(log_ratio, active, torch.ones(1, 100, dtype=torch.bool), 0.2)
    assert again["approx_kl"] == statistics["approx_kl"]


def _log_ratio_with_kl(kl: float) -> float:
    guess = 0.5
    for _ in range(20):
        guess -= (math.exp(guess) - 1 - guess - kl) / (math.exp(guess) - 1)
    return guess


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20))
def test_the_kl_estimate_is_never_negative(log_ratio: list[float]) -> None:
    tensor = torch.tensor(log_ratio, dtype=torch.float64).view(1, -1, 1)
    ones = torch.ones_like(tensor, dtype=torch.bool)
    assert ratio_statistics(tensor, ones, ones[..., 0], 0.2)["approx_kl"] >= 0


def test_ratio_statistics_report_extremes_and_clipping() -> None:
    ratio = torch.tensor([[[0.5], [1.0], [1.1], [2.0]]])
    active = torch.ones_like(ratio, dtype=torch.bool)
    statistics = ratio_statistics(ratio.log(), active, active[..., 0], 0.2)
    assert statistics["ratio_max"].item() == pytest.approx(2.0)
    assert statistics["ratio_min"].item() == pytest.approx(0.5)
    assert statistics["clip_fraction"].item() == pytest.approx(0.5)
    assert statistics["ratios_finite"]
