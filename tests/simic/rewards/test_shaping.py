"""Shaping telescopes along true lifecycles, so that it cannot change which policy is best."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.kasmina import SlotTable
from esper.leyline import Stage
from esper.simic.config.reward import RewardConfig, RewardFamily, ShapingConfig
from esper.simic.rewards import loss_config, make_reward, potential, shaping_term
from tests.simic.lives import last_steps, make_outcome, make_situation, random_life

SHAPING = ShapingConfig(weight=0.7, per_epoch=0.3)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    gamma=st.floats(0.5, 1.0),
    length=st.integers(1, 14),
    panic_rate=st.sampled_from([0.0, 0.3]),
    horizon_is_terminal=st.booleans(),
)
def test_discounted_shaping_telescopes(
    seed: int, gamma: float, length: int, panic_rate: float, horizon_is_terminal: bool
) -> None:
    outcomes = random_life(seed, hosts=3, length=length, panic_rate=panic_rate)
    config = RewardConfig(gamma=gamma, shaping=SHAPING, horizon_is_terminal=horizon_is_terminal)
    reward = make_reward(config)
    terms = torch.stack([reward(outcome).components["shaping"] for outcome in outcomes])
    for host, last in enumerate(last_steps(outcomes).tolist()):
        discounts = gamma ** torch.arange(last + 1, dtype=torch.float64)
        end = outcomes[last]
        over = bool(end.terminated[host]) or horizon_is_terminal
        left = 0.0 if over else float(potential(end.after.table, SHAPING)[host])
        started = float(potential(outcomes[0].before.table, SHAPING)[host])
        shaped = float((discounts * terms[: last + 1, host]).sum())
        assert shaped == pytest.approx(gamma ** (last + 1) * left - started, abs=1e-6)


def test_random_lives_make_every_change_of_stage() -> None:
    seen = set()
    for seed in range(8):
        for outcome in random_life(seed, hosts=16, panic_rate=0.0):
            before, after = outcome.before.table.stage, outcome.after.table.stage
            seen |= set(zip(before.flatten().tolist(), after.flatten().tolist(), strict=True))
    # A step germinates and begins to train at once, and culling ends a step later in EMBARGOED.
    whole_steps = {
        (Stage.DORMANT, Stage.TRAINING),
        (Stage.TRAINING, Stage.BLENDING),
        (Stage.TRAINING, Stage.CULLED),
        (Stage.BLENDING, Stage.HOLDING),
        (Stage.HOLDING, Stage.FOSSILIZED),
        (Stage.HOLDING, Stage.EMBARGOED),
        (Stage.BLENDING, Stage.EMBARGOED),
        (Stage.EMBARGOED, Stage.DORMANT),
    }
    assert {(int(a), int(b)) for a, b in whole_steps} <= seen


@settings(max_examples=200)
@given(
    codes=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 12)), min_size=1, max_size=8),
    weight=st.floats(0.01, 10.0),
)
def test_a_cycle_pays_nothing_at_gamma_one(codes: list[tuple[int, int]], weight: float) -> None:
    config = RewardConfig(gamma=1.0, shaping=ShapingConfig(weight=weight))
    situations = []
    for stage, epochs in codes:
        table = SlotTable.empty(1, 1)
        table.stage[:], table.epochs_in_stage[:] = stage, epochs
        situations.append(make_situation(1, 1, table=table))
    circle = zip(situations, [*situations[1:], situations[0]], strict=True)
    total = sum(float(shaping_term(make_outcome(before, after), config)) for before, after in circle)
    assert total == pytest.approx(0.0, abs=1e-6)


def test_the_potential_counts_stage_and_epochs_in_it_up_to_a_limit() -> None:
    table = SlotTable.empty(1, 3)
    table.stage[0] = torch.tensor([Stage.TRAINING, Stage.HOLDING, Stage.CULLED])
    table.epochs_in_stage[0] = torch.tensor([2, 50, 1])
    config = ShapingConfig(weight=2.0, per_epoch=0.1, max_epochs=5)
    assert float(potential(table, config)) == pytest.approx(2.0 * ((2 + 0.2) + (4 + 0.5) + 0))


@pytest.mark.parametrize("family", list(RewardFamily))
def test_every_family_can_be_shaped(family: RewardFamily) -> None:
    plain = RewardConfig(family=family, loss=loss_config("cifar10"))
    shaped = replace(plain, shaping=SHAPING)
    outcomes = random_life(2)
    gained = [make_reward(shaped)(outcome).total - make_reward(plain)(outcome).total for outcome in outcomes]
    expected = [shaping_term(outcome, shaped) for outcome in outcomes]
    assert torch.stack(expected).abs().sum() > 0
    torch.testing.assert_close(torch.stack(gained), torch.stack(expected))
