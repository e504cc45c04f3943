"""Actions as Gymnasium spaces: every legal action has a number, and the masks name exactly the legal ones."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete

import esper
from esper.api.gym import ActionCoding, GrowthGymEnv, joint_actions, joint_mask
from esper.kasmina import (
    UNLIMITED,
    ActionMasks,
    Catalogue,
    Family,
    SiteShape,
    SlotTable,
    action_masks,
    num_blueprints,
)
from esper.leyline import NUM_BLENDS, NUM_OPS, InputError, Op
from esper.tamiyo import Random
from tests.catalogues import one_more_kind
from tests.worlds import slots_of, tiny_task

SLOTS = slots_of(tiny_task())
EVERYTHING = torch.cartesian_prod(*(torch.arange(size) for size in (SLOTS, num_blueprints(), NUM_BLENDS, NUM_OPS)))


def masks_of_a_life(budget: int = 10_000) -> list[ActionMasks]:
    """The masks of two hosts through an episode of random growth."""
    env = esper.make_env(tiny_task(), envs=2, seed=4, executor="loop", budget=budget)
    _, masks = env.reset()
    dice = Random()
    dice.reset(2, 1)
    seen = [masks]
    while not env.population.done:
        seen.append(env.step(dice.decide(env.situation)).masks)
    return seen


def test_joint_actions_differ_and_begin_with_wait() -> None:
    actions = joint_actions(SLOTS)
    assert len(actions) == 1 + SLOTS * num_blueprints() * NUM_BLENDS + 2 * SLOTS
    assert len(actions.unique(dim=0)) == len(actions)
    assert actions[0].tolist() == [0, 0, 0, Op.WAIT]


@pytest.mark.parametrize("budget", [10_000, 60])
def test_the_joint_mask_is_what_the_core_allows(budget: int) -> None:
    for masks in masks_of_a_life(budget):
        expected = torch.stack([masks.allow(action.expand(2, 4)) for action in joint_actions(SLOTS)], 1)
        assert torch.equal(joint_mask(masks), expected)
        legal = sum(int(masks.allow(action.expand(2, 4))[0]) for action in EVERYTHING)
        assert legal == int(joint_mask(masks)[0].sum())  # and there are no others


def test_hosts_with_little_time_are_offered_the_blends_that_they_have_time_for() -> None:
    catalogue = Catalogue.of([SiteShape(Family.FEATURES, 8)] * SLOTS)
    epochs_left = torch.tensor([0, 1, 2, 5, 6])
    masks = action_masks(SlotTable.empty(5, SLOTS), catalogue, torch.full((5,), UNLIMITED), epochs_left)
    expected = torch.stack([masks.allow(action.expand(5, 4)) for action in joint_actions(SLOTS)], 1)
    assert torch.equal(joint_mask(masks), expected)
    assert joint_mask(masks).any(1).all()
    heads = ActionCoding(SLOTS, flat=False).learner_mask(masks)
    blends = heads[:, SLOTS + num_blueprints() : -NUM_OPS]
    assert blends.tolist() == [[True, False, False, False]] * 2 + [[False] * 3 + [True]] * 2 + [[True] * 4]


def test_every_flat_action_is_the_row_of_its_number() -> None:
    coding = ActionCoding(SLOTS, flat=True)
    for masks in masks_of_a_life()[:6]:
        legal = joint_mask(masks)
        for index in range(len(joint_actions(SLOTS))):
            heads, illegal = coding.decode(np.array([index, 0]), masks)
            assert bool(illegal[0]) is not bool(legal[0, index])
            assert torch.equal(heads[0], joint_actions(SLOTS)[index] * legal[0, index])


def test_heads_that_do_not_matter_are_ignored() -> None:
    (masks, *_) = masks_of_a_life()
    heads, illegal = ActionCoding(SLOTS, flat=False).decode(np.array([[2, 4, 2, Op.WAIT], [1, 2, 1, Op.CULL]]), masks)
    assert illegal.tolist() == [False, True]  # there is nothing to cull
    assert heads.tolist() == [[0, 0, 0, Op.WAIT]] * 2


def test_actions_outside_the_space_are_illegal_and_wrong_shapes_raise() -> None:
    (masks, *_) = masks_of_a_life()
    _, illegal = ActionCoding(SLOTS, flat=True).decode(np.array([-1, 10**6]), masks)
    assert illegal.all()
    _, illegal = ActionCoding(SLOTS, flat=False).decode(np.array([[9, 0, 0, Op.CULL], [0, 0, 0, 7]]), masks)
    assert illegal.all()
    with pytest.raises(InputError, match=r"shape \(2, 4\)"):
        ActionCoding(SLOTS, flat=False).decode(np.array([0, 0]), masks)


def test_masks_of_separate_heads_allow_every_legal_action() -> None:
    for masks in masks_of_a_life():
        rows = ActionCoding(SLOTS, flat=False).learner_mask(masks)
        heads = np.split(rows, np.cumsum([SLOTS, num_blueprints(), NUM_BLENDS]), axis=1)
        for action, legal in zip(joint_actions(SLOTS).tolist(), joint_mask(masks)[0].tolist(), strict=True):
            assert not legal or all(mask[0, value] for mask, value in zip(heads, action, strict=True))


def test_every_separate_head_has_a_choice_when_nothing_can_germinate() -> None:
    for masks in masks_of_a_life(budget=0):
        rows = ActionCoding(SLOTS, flat=False).learner_mask(masks)
        assert all(
            head.any(1).all() for head in np.split(rows, np.cumsum([SLOTS, num_blueprints(), NUM_BLENDS]), axis=1)
        )


def test_spaces_and_masks_follow_the_catalogue() -> None:
    with one_more_kind() as kind:
        env = GrowthGymEnv(tiny_task(), executor="loop", episode_length=2)
        observation, info = env.reset(seed=0)
        assert env.action_space == MultiDiscrete([SLOTS, num_blueprints(), NUM_BLENDS, NUM_OPS])
        assert len(info["action_mask"]) == len(joint_actions(SLOTS))
        assert observation.shape == env.observation_space.shape
        *_, info = env.step(np.array([1, kind.id - 1, 0, Op.GERMINATE]))
        assert not info["illegal_action"]
