"""The distribution over joint actions is what enumerating them gives, and the lifecycle accepts what is drawn."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import UNLIMITED, Catalogue, Family, SiteShape, SlotTable, act, action_masks, begin_epoch, end_epoch
from esper.leyline import HEAD_NAMES, InvalidStateMachineError, Op, SlotConfig
from esper.simic.control import (
    ActionSpec,
    MaskedCategorical,
    Masks,
    draw_actions,
    esper_action_spec,
    joint_entropy,
    joint_kl,
    relevant_heads,
    select_logits,
    select_masks,
)
from esper.simic.control.action_masks import require_legal
from tests.kasmina.builders import evidence_for
from tests.simic.builders import BANDIT_SPEC, ESPER_SPEC, enumerate_log_probs, joint_actions, random_masks

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def random_logits(
    spec: ActionSpec, batch: int, dtype: torch.dtype = torch.float32, *, conditional: bool = False
) -> Tensor:
    rows = (spec.given_width,) if conditional else ()
    return 2.0 * torch.randn(batch, len(spec.heads), *rows, spec.width, dtype=dtype)


def joint_log_prob(spec: ActionSpec, logits: Tensor, masks: Masks, actions: Tensor) -> Tensor:
    chosen = MaskedCategorical(select_logits(spec, logits, actions), select_masks(spec, masks, actions))
    return chosen.log_prob(actions).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spec", [ESPER_SPEC, BANDIT_SPEC], ids=["esper", "other"])
@pytest.mark.parametrize("conditional", [False, True])
def test_joint_distribution_equals_enumeration_over_ten_thousand_mask_patterns(
    spec: ActionSpec, dtype: torch.dtype, conditional: bool
) -> None:
    torch.manual_seed(0)
    batch = 10_000
    masks = random_masks(spec, batch)
    logits, other = (random_logits(spec, batch, dtype, conditional=conditional) for _ in range(2))
    actions, log_p = enumerate_log_probs(spec, logits, masks)
    _, log_q = enumerate_log_probs(spec, other, masks)
    close = partial(torch.testing.assert_close, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

    legal = log_p.isfinite()
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(batch, dtype=torch.float64))
    for column, action in enumerate(actions):
        rows = legal[:, column].nonzero().flatten()
        if len(rows):
            picked = {name: mask[rows] for name, mask in masks.items()}
            ours = joint_log_prob(spec, logits[rows], picked, action.expand(len(rows), -1))
            close(ours.double(), log_p[rows, column])

    p = log_p.exp()
    entropy = -torch.where(legal, p * log_p, 0.0).sum(-1)
    kl = torch.where(legal, p * (log_p - log_q), 0.0).sum(-1)
    close(joint_entropy(spec, logits, masks).double(), entropy)
    close(joint_kl(spec, logits, other, masks).double(), kl)


@given(num_slots=st.integers(1, 6), density=st.floats(0.05, 1.0), seed=st.integers(0, 2**31), conditional=st.booleans())
def test_drawn_actions_are_legal_for_any_mask(num_slots: int, density: float, seed: int, conditional: bool) -> None:
    spec = esper_action_spec(SlotConfig.of_size(num_slots))
    torch.manual_seed(seed)
    masks = random_masks(spec, 8, density)
    logits = 25.0 * random_logits(spec, 8, conditional=conditional)
    for deterministic in (False, True):
        actions = draw_actions(spec, logits, masks, deterministic=deterministic)
        selected = select_masks(spec, masks, actions)
        assert selected.gather(-1, actions.unsqueeze(-1)).all()
        assert (actions[~relevant_heads(spec, actions)] == 0).all()


def test_a_million_draws_hold_no_illegal_action() -> None:
    torch.manual_seed(1)
    patterns, repeats = 1_000, 1_000
    masks = random_masks(ESPER_SPEC, patterns, density=0.4)
    logits = 5.0 * torch.randn(patterns, 4, ESPER_SPEC.width)
    illegal = 0
    for _ in range(repeats):
        actions = draw_actions(ESPER_SPEC, logits, masks)
        illegal += int((~select_masks(ESPER_SPEC, masks, actions).gather(-1, actions.unsqueeze(-1))).sum())
    assert illegal == 0


@pytest.mark.parametrize("conditional", [False, True])
def test_frequencies_of_drawn_actions_pass_a_chi_square_test(conditional: bool) -> None:
    torch.manual_seed(2)
    draws = 200_000
    masks, logits = random_masks(ESPER_SPEC, 1), 0.5 * random_logits(ESPER_SPEC, 1, conditional=conditional)
    actions, log_p = enumerate_log_probs(ESPER_SPEC, logits, masks)
    many = {name: mask.expand(draws, *mask.shape[1:]) for name, mask in masks.items()}
    drawn = draw_actions(ESPER_SPEC, logits.expand(draws, *logits.shape[1:]), many)
    counts = torch.tensor([int((drawn == action).all(-1).sum()) for action in actions], dtype=torch.float64)
    expected = draws * log_p[0].exp()
    likely = expected > 5
    statistic = float(((counts - expected).square() / expected)[likely].sum())
    freedom = int(likely.sum()) - 1
    # Wilson-Hilferty: three standard deviations above the mean of the chi-square distribution.
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3 * math.sqrt(2 / (9 * freedom))) ** 3
    assert counts[~log_p[0].isfinite()].sum() == 0


@pytest.mark.parametrize("conditional", [False, True])
def test_log_probabilities_entropies_and_divergences_pass_gradcheck(conditional: bool) -> None:
    torch.manual_seed(3)
    masks = random_masks(ESPER_SPEC, 3)
    logits = random_logits(ESPER_SPEC, 3, torch.float64, conditional=conditional).requires_grad_()
    other = random_logits(ESPER_SPEC, 3, torch.float64, conditional=conditional).requires_grad_()
    actions = draw_actions(ESPER_SPEC, logits, masks)
    assert torch.autograd.gradcheck(lambda x: joint_log_prob(ESPER_SPEC, x, masks, actions), (logits,))
    assert torch.autograd.gradcheck(lambda x: joint_entropy(ESPER_SPEC, x, masks), (logits,))
    assert torch.autograd.gradcheck(lambda x, y: joint_kl(ESPER_SPEC, x, y, masks), (logits, other))


def test_heads_that_do_not_matter_count_exactly_nothing() -> None:
    logits = torch.randn(5, 4, ESPER_SPEC.width, requires_grad=True)
    masks = ESPER_SPEC.all_legal((5,))
    actions = torch.zeros(5, 4, dtype=torch.long)
    actions[:, ESPER_SPEC.decider_index] = torch.tensor([Op.WAIT, Op.WAIT, Op.FOSSILIZE, Op.CULL, Op.GERMINATE])
    distribution = MaskedCategorical(logits, select_masks(ESPER_SPEC, masks, actions))
    idle = ~relevant_heads(ESPER_SPEC, actions)
    log_probs, entropies = distribution.log_prob(actions), distribution.normalized_entropy()
    assert (log_probs[idle] == 0).all()
    assert (entropies[idle] == 0).all()
    (log_probs.sum() + entropies.sum()).backward()
    assert logits.grad is not None
    assert (logits.grad[idle] == 0).all()
    assert (logits.grad[~idle] != 0).any(-1).all()


def test_a_fully_masked_head_is_an_error_that_names_environment_head_and_step() -> None:
    masks = ESPER_SPEC.all_legal((3,))
    masks["op"][1] = torch.tensor([False, True, False, False])
    masks["slot"][1, Op.GERMINATE] = False
    actions = draw_actions(ESPER_SPEC, torch.zeros(3, 4, ESPER_SPEC.width), masks)
    with pytest.raises(InvalidStateMachineError, match="'slot' in environment 1 at step 7"):
        require_legal(ESPER_SPEC, select_masks(ESPER_SPEC, masks, actions), step=7)


def test_empty_rows_that_cannot_be_reached_are_fine() -> None:
    masks = ESPER_SPEC.all_legal((2,))
    masks["op"][:] = torch.tensor([True, False, False, False])
    for name in ("slot", "blueprint", "blend"):
        masks[name][:] = False
    actions = draw_actions(ESPER_SPEC, torch.randn(2, 4, ESPER_SPEC.width), masks)
    require_legal(ESPER_SPEC, select_masks(ESPER_SPEC, masks, actions))
    assert (actions == 0).all()


def test_enumeration_counts_what_a_person_would_count() -> None:
    slots, blueprints, blends = (ESPER_SPEC.head(name).size for name in ("slot", "blueprint", "blend"))
    assert len(list(joint_actions(ESPER_SPEC))) == 1 + slots * blueprints * blends + slots + slots
    assert len(list(itertools.islice(joint_actions(BANDIT_SPEC), 100))) == 1 + 3 + 3 * 4


def test_drawn_actions_are_legal_through_whole_lives_of_seeds() -> None:
    hosts, catalogue = 64, Catalogue.of([SiteShape(Family.CONV1D, 4, (9,)), SiteShape(Family.FEATURES, 8)])
    spec = esper_action_spec(SlotConfig.of_size(2))
    table, budget = SlotTable.empty(hosts, 2), torch.full((hosts,), UNLIMITED)
    seen = torch.zeros(0, dtype=torch.long)
    for _ in range(40):
        epochs_left = torch.randint(8, (hosts,))  # some have no time for any blend, some for instant seeds alone
        masks = action_masks(table, catalogue, budget, epochs_left)
        logits = 3.0 * torch.randn(hosts, len(spec.heads), spec.width)
        actions = draw_actions(spec, logits, {name: getattr(masks, name) for name in HEAD_NAMES})
        assert masks.allow(actions).all()
        seen = torch.cat([seen, actions[:, spec.decider_index]]).unique()
        table = begin_epoch(act(table, actions, catalogue, budget, torch.full((hosts,), 0.4))[0])[0]
        table = end_epoch(table, evidence_for(table))[0]
    assert seen.tolist() == [0, 1, 2, 3]
