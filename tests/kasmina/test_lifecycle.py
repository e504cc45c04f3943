"""The lifecycle of seeds as a function on tables."""

import itertools

import pytest
import torch
from torch import Tensor

from esper.kasmina import (
    UNLIMITED,
    ActionMasks,
    Catalogue,
    Family,
    SiteShape,
    SlotTable,
    act,
    action_masks,
    begin_epoch,
    end_epoch,
    next_alpha,
)
from esper.kasmina.lifecycle import move
from esper.leyline import TRANSITIONS, Blend, IllegalActionError, Op, Stage
from tests.kasmina.builders import evidence_for

ActionRow = tuple[int, int, int, int]
CATALOGUE = Catalogue.of([SiteShape(Family.CONV1D, 4, (9,)), SiteShape(Family.FEATURES, 8)])
HEAVY = 3


def masks_of(table: SlotTable, budget: int = UNLIMITED, epochs_left: Tensor | None = None) -> ActionMasks:
    return action_masks(table, CATALOGUE, torch.full((table.shape[0],), budget), epochs_left)


def do(table: SlotTable, *actions: ActionRow, score: float = 0.4) -> SlotTable:
    """The table after one action per host, each (slot, blueprint, blend, op)."""
    scores = torch.full((table.shape[0],), score)
    return act(table, torch.tensor(actions), CATALOGUE, torch.full_like(scores, UNLIMITED, dtype=torch.int64), scores)[
        0
    ]


def germinate(slot: int = 0, blueprint: int = HEAVY, blend: Blend = Blend.LINEAR) -> ActionRow:
    return (slot, blueprint, blend.value, Op.GERMINATE.value)


def epoch(table: SlotTable, **evidence: Tensor) -> SlotTable:
    table = begin_epoch(table)[0]
    return end_epoch(table, evidence_for(table, **evidence))[0]


def stage(table: SlotTable, slot: int = 0) -> Stage:
    return Stage(int(table.stage[0, slot]))


def grown(epochs: int, blend: Blend = Blend.LINEAR) -> SlotTable:
    table = do(SlotTable.empty(1, 2), germinate(blend=blend))
    for _ in range(epochs):
        table = epoch(table)
    return table


@pytest.mark.parametrize(
    ("blend", "alphas"),
    [
        (Blend.LINEAR, [0, 0, 1 / 3, 2 / 3, 1, 1]),
        (Blend.SIGMOID, [0, 0, 0.1173, 0.8827, 1, 1]),
        (Blend.GATED, [0, 0, 1 / 3, 2 / 3, 1, 1]),
    ],
)
def test_a_healthy_seed_trains_two_epochs_blends_three_and_then_holds(blend: Blend, alphas: list[float]) -> None:
    tables = [grown(epochs, blend) for epochs in range(7)]
    assert stage(tables[0]) is Stage.GERMINATED
    stages = [stage(table) for table in tables[1:]]
    assert stages == [Stage.TRAINING, *[Stage.BLENDING] * 3, Stage.HOLDING, Stage.HOLDING]
    assert [float(table.alpha[0, 0]) for table in tables[:6]] == pytest.approx(alphas, abs=1e-4)
    assert float(tables[4].alpha[0, 0]) == 1.0
    assert [int(table.epochs_in_stage[0, 0]) for table in tables] == [0, 1, 0, 1, 2, 0, 1]


def test_a_gated_blend_pauses_at_most_twice_on_a_negative_contribution() -> None:
    table = grown(2, Blend.GATED)
    alphas = []
    for _ in range(5):
        alphas.append(float(table.alpha[0, 0]))
        table = epoch(table, contribution=torch.full((1, 2), -0.1))
    assert alphas == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3, 1])
    assert stage(table) is Stage.HOLDING


@pytest.mark.parametrize(
    "evidence",
    [
        {"loss_finite": torch.tensor([False])},
        {"seed_gradient": torch.zeros(1, 2)},
        {"seed_gradient": torch.full((1, 2), torch.nan)},
        {"seed_gradient": torch.full((1, 2), torch.inf)},
    ],
)
@pytest.mark.parametrize("bad_epoch", [0, 1])
def test_a_seed_without_finite_loss_and_gradient_in_each_epoch_is_culled_at_its_gate(
    evidence: dict[str, Tensor], bad_epoch: int
) -> None:
    table = do(SlotTable.empty(1, 2), germinate())
    for index in range(2):
        table = epoch(table, **(evidence if index == bad_epoch else {}))
    assert stage(table) is Stage.CULLED


def test_an_instant_seed_is_at_alpha_one_at_once_and_holds_after_its_first_epoch() -> None:
    tables = [grown(epochs, Blend.INSTANT) for epochs in range(4)]
    assert [stage(table) for table in tables] == [Stage.GERMINATED, *[Stage.HOLDING] * 3]
    assert [float(table.alpha[0, 0]) for table in tables] == [1.0] * 4
    assert stage(begin_epoch(tables[0])[0]) is Stage.GERMINATED
    assert [int(table.measurements[0, 0]) for table in tables] == [0, 1, 2, 3]
    assert float(tables[1].contribution[0, 0]) == pytest.approx(0.1)
    # It can be kept from its first measurement on, and culled from its second.
    assert [bool(masks_of(table).op[0, Op.FOSSILIZE]) for table in tables] == [False, True, True, True]
    assert [bool(masks_of(table).op[0, Op.CULL]) for table in tables] == [False, False, True, True]
    assert int(do(tables[1], (0, 0, 0, Op.FOSSILIZE.value)).stage[0, 0]) == Stage.FOSSILIZED


@pytest.mark.parametrize(
    "evidence",
    [
        {"loss_finite": torch.tensor([False])},
        {"seed_gradient": torch.zeros(1, 2)},
        {"seed_gradient": torch.full((1, 2), torch.nan)},
    ],
)
def test_an_instant_seed_that_does_not_learn_is_culled_after_its_first_epoch(evidence: dict[str, Tensor]) -> None:
    table = epoch(grown(0, Blend.INSTANT), **evidence)
    assert stage(table) is Stage.CULLED
    assert float(table.alpha[0, 0]) == 0.0
    assert stage(epoch(grown(1, Blend.INSTANT), **evidence)) is Stage.HOLDING  # later nobody asks


def test_an_alpha_that_would_cost_too_much_holds_twice_and_then_the_seed_goes() -> None:
    costly = torch.full((1, 2), -0.011)
    for ready, alpha in ((1, 0.0), (2, 1 / 3), (3, 2 / 3)):
        table = grown(ready)
        old = stage(table)
        for holds in (1, 2):
            table = epoch(table, trial=costly)
            assert (stage(table), int(table.holds[0, 0])) == (old, holds)
            assert float(table.alpha[0, 0]) == pytest.approx(alpha)
        table, moves = end_epoch(table, evidence_for(table, trial=costly))
        assert stage(table) is Stage.CULLED
        assert moves.refused.tolist() == [True]


def test_an_alpha_that_held_rises_as_soon_as_it_may_and_every_hold_counts() -> None:
    table = epoch(grown(2), trial=torch.full((1, 2), -0.5))
    table = epoch(table)
    assert float(table.alpha[0, 0]) == pytest.approx(2 / 3)
    table = epoch(table, trial=torch.full((1, 2), -0.5))
    assert int(table.holds[0, 0]) == 2
    assert stage(epoch(table, trial=torch.full((1, 2), -0.5))) is Stage.CULLED


@pytest.mark.parametrize("trial", [-0.01, 0.0, 0.3, torch.nan])
def test_an_alpha_that_costs_no_more_than_a_point_or_was_not_tried_is_taken(trial: float) -> None:
    table = epoch(grown(2), trial=torch.full((1, 2), trial))
    assert float(table.alpha[0, 0]) == pytest.approx(2 / 3)
    assert int(table.holds[0, 0]) == 0


def test_a_seed_that_did_not_learn_is_culled_for_that_and_a_pause_is_no_hold() -> None:
    table = grown(1)
    table, moves = end_epoch(
        table, evidence_for(table, seed_gradient=torch.zeros(1, 2), trial=torch.full((1, 2), -1.0))
    )
    assert stage(table) is Stage.CULLED
    assert moves.refused.tolist() == [False]
    gated = epoch(grown(2, Blend.GATED), contribution=torch.full((1, 2), -0.1), trial=torch.full((1, 2), -1.0))
    assert (int(gated.pauses[0, 0]), int(gated.holds[0, 0])) == (1, 0)


@pytest.mark.parametrize("blend", Blend)
def test_what_is_to_be_tried_is_the_alpha_that_comes(blend: Blend) -> None:
    """For every epoch of a life: alpha rises exactly where one was to be tried, and to that value."""
    table = do(SlotTable.empty(1, 2), germinate(blend=blend))
    for _ in range(8):
        table = begin_epoch(table)[0]
        tried = next_alpha(table)
        after = end_epoch(table, evidence_for(table))[0]
        assert torch.equal(tried.isnan(), after.alpha == table.alpha)
        assert torch.equal(tried.where(~tried.isnan(), after.alpha), after.alpha)
        table = after


def test_a_culled_slot_forgets_its_seed_cools_down_and_is_free_again() -> None:
    table = do(grown(5), (0, 0, 0, Op.CULL.value))
    assert int(table.blueprint[0, 0]) == 0
    assert float(table.alpha[0, 0]) == 0.0
    assert int(table.added_params) == 0
    stages = []
    for _ in range(3):
        stages.append(stage(table))
        table = epoch(table)
    assert stages == [Stage.CULLED, Stage.EMBARGOED, Stage.DORMANT]
    assert not do(table, germinate()).equals(table)


def test_a_fossilized_seed_stays_at_alpha_one_for_good() -> None:
    table = do(grown(5), (0, 0, 0, Op.FOSSILIZE.value))
    for _ in range(4):
        table = epoch(table)
    assert stage(table) is Stage.FOSSILIZED
    assert float(table.alpha[0, 0]) == 1.0
    assert not masks_of(table).slot[0, Op.GERMINATE, 0]


def test_a_seed_must_be_measured_at_alpha_one_before_it_can_be_kept() -> None:
    unmeasured = grown(4)
    unmeasured = epoch(unmeasured, contribution=torch.full((1, 2), torch.nan))
    assert stage(unmeasured) is Stage.HOLDING
    assert not masks_of(unmeasured).op[0, Op.FOSSILIZE]
    assert masks_of(epoch(unmeasured)).op[0, Op.FOSSILIZE]


def test_seed_metrics_of_a_scripted_episode() -> None:
    table = do(SlotTable.empty(1, 2), germinate(), score=0.40)
    assert float(table.score_at_germination[0, 0]) == pytest.approx(0.40)
    assert table.contribution[0, 0].isnan()
    table = epoch(table, score=torch.tensor([0.45]))
    assert float(table.improvement[0, 0]) == pytest.approx(0.05)
    assert float(table.contribution[0, 0]) == 0.0  # at alpha 0 it is known without a pass
    table = epoch(epoch(table), score=torch.tensor([0.60]), contribution=torch.tensor([[0.07, torch.nan]]))
    assert float(table.improvement[0, 0]) == pytest.approx(0.20)
    assert float(table.contribution[0, 0]) == pytest.approx(0.07)
    assert table.improvement[0, 1].isnan()


def test_transitions_tell_what_changed_and_from_where() -> None:
    table = SlotTable.empty(2, 2)
    actions = torch.tensor([germinate(1), (0, 0, 0, 0)])
    table, transitions = act(table, actions, CATALOGUE, torch.tensor([UNLIMITED] * 2), torch.zeros(2))
    assert len(transitions) == 1
    assert (transitions.host.item(), transitions.slot.item()) == (0, 1)
    assert (transitions.old.item(), transitions.new.item()) == (Stage.DORMANT, Stage.GERMINATED)
    table = epoch(table)
    _, transitions = end_epoch(table, evidence_for(table))
    assert (transitions.new.item(), transitions.epochs_in_old.item()) == (Stage.BLENDING, 1)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Stage, Stage)))
def test_only_the_moves_of_the_transition_table_are_possible(old: Stage, new: Stage) -> None:
    table = SlotTable.empty(1, 1)
    table.stage[:] = old.value
    before = table.clone()
    where = torch.ones(1, 1, dtype=torch.bool)
    if (old, new) in TRANSITIONS:
        move(table, where, new)
        assert stage(table) is new
    else:
        with pytest.raises(IllegalActionError, match=f"from {old.name} to {new.name}"):
            move(table, where, new)
        assert table.equals(before)


def test_the_gradient_norm_of_seeds_is_kept_and_forgotten_with_them() -> None:
    table = SlotTable.empty(1, 2)
    table.stage[0, 0] = Stage.TRAINING
    table = end_epoch(table, evidence_for(table, seed_gradient=torch.tensor([[0.25, 3.0]])))[0]
    assert table.seed_grad_norm[0, 0] == 0.25
    assert table.seed_grad_norm[0, 1].isnan()  # nothing grows there
    table.clear(torch.tensor([[True, False]]))
    assert table.seed_grad_norm.isnan().all()
