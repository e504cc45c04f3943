"""Which actions are legal: what the rules say, what the masks allow and what the lifecycle takes are the same."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import (
    UNLIMITED,
    ActionMasks,
    SlotTable,
    act,
    check_actions,
    num_blueprints,
)
from esper.kasmina.table import OP_TARGETS
from esper.leyline import NUM_BLENDS, TRANSITIONS, Blend, IllegalActionError, InputError, Mover, Op, Stage
from tests.kasmina.test_lifecycle import CATALOGUE, HEAVY, ActionRow, do, epoch, germinate, grown, masks_of


def test_a_blend_is_legal_while_it_can_be_decided_in_time() -> None:
    """Exhaustively: masks, and what they allow, say the same for every number of epochs left."""
    left = torch.arange(8)
    table = SlotTable.empty(8, 2)
    masks = masks_of(table, epochs_left=left)
    assert masks.blend.tolist() == [[n >= 6] * 3 + [n >= 2] for n in range(8)]
    assert masks.op[:, Op.GERMINATE].tolist() == [n >= 2 for n in range(8)]
    assert masks.op[:, Op.WAIT].all()
    for blend in Blend:
        actions = torch.tensor([germinate(blend=blend)] * 8)
        assert masks.allow(actions).tolist() == masks.blend[:, blend].tolist()
        late = int((~masks.blend[:, blend]).nonzero()[-1])
        with pytest.raises(IllegalActionError, match=f"GERMINATE .*for host {late},"):
            check_actions(table, torch.where((left == late)[:, None], actions, 0), masks)


def test_a_blending_seed_is_protected_until_its_second_measurement() -> None:
    legal = [bool(masks_of(grown(epochs)).op[0, Op.CULL]) for epochs in range(6)]
    assert legal == [False, False, False, False, True, True]


def table_with(*slots: tuple[Stage, int, bool]) -> SlotTable:
    """One host whose slots have these stages, measurement counts and proofs at alpha 1."""
    table = SlotTable.empty(1, len(slots))
    for index, (code, measurements, proven) in enumerate(slots):
        table.stage[0, index] = code.value
        table.measurements[0, index] = measurements
        table.proven[0, index] = proven
    return table


def joint_actions(masks: ActionMasks) -> set[ActionRow]:
    """Every action that sampling op, slot, blueprint and blend in turn from the masks can give."""
    allowed: set[ActionRow] = set()
    for op in masks.op[0].nonzero().flatten().tolist():
        for slot in masks.slot[0, op].nonzero().flatten().tolist():
            if op == Op.GERMINATE:
                blueprints = masks.blueprint[0, slot].nonzero().flatten().tolist()
                blends = masks.blend[0].nonzero().flatten().tolist()
                allowed |= {(slot, *rest, op) for rest in itertools.product(blueprints, blends)}
            else:
                allowed.add((slot, 0, 0, op))
    return allowed


EVERYTHING: list[ActionRow] = list(
    itertools.product(range(2), range(num_blueprints()), range(NUM_BLENDS), range(len(Op)))
)


def accepted_actions(table: SlotTable, budget: int, tried: list[ActionRow]) -> set[ActionRow]:
    """Those of the actions that the lifecycle takes without raising."""
    accepted: set[ActionRow] = set()
    for action in tried:
        try:
            act(table, torch.tensor([action]), CATALOGUE, torch.tensor([budget]), torch.zeros(1))
        except IllegalActionError:
            continue
        accepted.add(action)
    return accepted


Condition = tuple[Stage, int, bool]


CONDITIONS: list[Condition] = [
    *((code, 0, False) for code in Stage if code not in (Stage.BLENDING, Stage.HOLDING)),
    *((Stage.BLENDING, count, count > 0) for count in range(3)),
    (Stage.HOLDING, 0, False),
    (Stage.HOLDING, 3, True),
]


def should_be_legal(action: ActionRow, slots: tuple[Condition, Condition], budget: int) -> bool:
    """The rules as the documentation states them, written a second time without tables or masks."""
    slot, blueprint, blend, op = action
    stage, measurements, measured_at_one = slots[slot]
    if op == Op.GERMINATE:
        fits = bool(CATALOGUE.fits[slot, blueprint])
        return stage is Stage.DORMANT and fits and int(CATALOGUE.params[slot, blueprint]) <= budget
    if blueprint or blend:
        return False
    if op == Op.FOSSILIZE:
        return stage is Stage.HOLDING and measured_at_one
    if op == Op.CULL:
        return stage in (Stage.BLENDING, Stage.HOLDING) and measurements >= 2
    return slot == 0


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7])
@pytest.mark.parametrize("budget", [0, 60, UNLIMITED])
def test_masks_and_lifecycle_both_allow_exactly_what_the_rules_say(budget: int, every: int) -> None:
    """Masks exhaustively; of the lifecycle every seventh action in turn, so each meets a seventh of the tables."""
    for number, pair in enumerate(itertools.product(CONDITIONS, CONDITIONS)):
        table = table_with(*pair)
        expected = {action for action in EVERYTHING if should_be_legal(action, pair, budget)}
        assert joint_actions(masks_of(table, budget)) == expected
        tried = EVERYTHING[number % every :: every]
        assert accepted_actions(table, budget, tried) == expected & set(tried)


def test_an_op_is_legal_only_where_some_slot_is() -> None:
    masks = masks_of(table_with((Stage.FOSSILIZED, 3, True), (Stage.TRAINING, 0, False)))
    assert masks.op[0].tolist() == [True, False, False, False]


def test_blueprints_beyond_the_budget_left_are_masked() -> None:
    table = do(SlotTable.empty(1, 2), germinate(0, HEAVY))
    spent = int(table.added_params)
    masks = masks_of(table, budget=spent + 50)
    affordable = CATALOGUE.fits[1] & (CATALOGUE.params[1] <= 50)
    assert torch.equal(masks.blueprint[0, 1], affordable)
    assert not masks_of(table, budget=spent).op[0, Op.GERMINATE]


@pytest.mark.parametrize(
    "action", [(0, 0, 0, 9), (7, 0, 0, 1), (0, 9, 0, 1), (0, 0, 9, 1), (-1, 0, 0, 0), (0, 4, 0, 0), (1, 4, 0, 1)]
)
def test_actions_out_of_range_or_unfit_are_refused(action: ActionRow) -> None:
    with pytest.raises(IllegalActionError, match="not legal for host 0"):
        do(SlotTable.empty(1, 2), action)


@pytest.mark.parametrize(
    "actions", [torch.zeros(4, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64), torch.zeros(1, 4)]
)
def test_actions_of_another_shape_or_type_are_refused(actions: Tensor) -> None:
    with pytest.raises(InputError, match="int64 of shape"):
        act(SlotTable.empty(1, 2), actions, CATALOGUE, torch.tensor([0]), torch.zeros(1))


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1, 1), st.booleans()), min_size=1, max_size=40))
def test_masked_lives_never_raise_and_unmasked_actions_always_do(script: list[tuple[int, float, bool]]) -> None:
    table = SlotTable.empty(1, 2)
    for choice, contribution, measured in script:
        masks = masks_of(table)
        allowed = joint_actions(masks)
        illegal = [action for action in EVERYTHING if action not in allowed]
        before = table.clone()
        with pytest.raises(IllegalActionError):
            do(table, illegal[choice % len(illegal)])
        assert table.equals(before)
        table = do(table, sorted(allowed)[choice % len(allowed)])
        value = contribution if measured else torch.nan
        table = epoch(table, contribution=torch.full((1, 2), value), trial=torch.full((1, 2), 0.1 * value))
        assert bool(((table.alpha >= 0) & (table.alpha <= 1)).all())
        assert torch.equal(table.occupied, table.blueprint > 0)
        assert torch.equal(table.params > 0, table.occupied)


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=1, max_size=15))
def test_hosts_in_one_table_live_as_they_would_alone(script: list[list[int]]) -> None:
    together = SlotTable.empty(3, 2)
    alone = [SlotTable.empty(1, 2) for _ in range(3)]
    for choices in script:
        actions = []
        for table, choice in zip(alone, choices, strict=True):
            legal = sorted(joint_actions(masks_of(table)))
            actions.append(legal[choice % len(legal)])
        together = epoch(do(together, *actions))
        alone = [epoch(do(table, action)) for table, action in zip(alone, actions, strict=True)]
        for name, column in together.columns().items():
            rows = torch.cat([table.columns()[name] for table in alone])
            assert torch.equal(column.nan_to_num(9.0), rows.nan_to_num(9.0))


def test_every_op_is_backed_by_a_transition_that_an_action_makes() -> None:
    targets_of_actions = {new for (_, new), mover in TRANSITIONS.items() if Mover.ACTION in mover}
    assert set(OP_TARGETS.values()) == targets_of_actions
    assert set(OP_TARGETS) == set(Op) - {Op.WAIT}
    assert Op.WAIT.value == 0
