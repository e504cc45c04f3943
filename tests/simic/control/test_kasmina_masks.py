"""What the learner draws under kasmina's masks, the lifecycle accepts."""

import torch

from esper.kasmina import UNLIMITED, Catalogue, Family, SiteShape, SlotTable, act, action_masks, begin_epoch, end_epoch
from esper.leyline import HEAD_NAMES, SlotConfig
from esper.simic.control import draw_actions, esper_action_spec
from tests.kasmina.builders import evidence_for


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
