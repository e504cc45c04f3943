"""Merit in someone's own loop: from the passes that are trained anyway, for those who look at it."""

import pytest
import torch
from torch import nn

import esper
from esper.kasmina import blueprints_of
from esper.kasmina.sites import Family
from esper.leyline import Blend
from tests.api.growing.builders import Script, assert_same, germinate, grow, make_data, make_grower, make_mlp, train


def merit_of(grower: esper.Grower) -> torch.Tensor:
    merit = grower.situation.merit
    assert merit is not None
    return merit


def num_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_merit_is_known_of_free_slots_after_the_first_epoch() -> None:
    grower = make_grower(controller=Script([germinate(0, blend=Blend.INSTANT)]))
    assert merit_of(grower).isnan().all()
    train(grower)
    before = torch.get_rng_state()
    grower.step()
    assert_same(torch.get_rng_state(), before)
    merit = merit_of(grower)
    connects = [kind.id - 1 for kind in blueprints_of(Family.FEATURES) if kind.reads == "far"]
    assert merit[0, 0].isnan().all()  # a seed is there by now
    assert (merit[0, 1, connects] > 0).all()


def test_merit_is_that_of_the_last_pass_and_does_not_depend_on_the_scale_of_the_loss() -> None:
    x, y = make_data()
    seen = []
    for factor, first in ((1.0, x), (1000.0, x), (1.0, -x)):
        torch.manual_seed(0)
        model = make_mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        grower = make_grower(model=model, optimizer=optimizer)
        for batch in (first, x):
            (factor * nn.functional.cross_entropy(grower.model(batch), y)).backward()
        optimizer.step()
        grower.step()
        seen.append(merit_of(grower).nan_to_num(0.0))
    torch.testing.assert_close(seen[0], seen[1])
    torch.testing.assert_close(seen[0], seen[2])


@pytest.mark.parametrize(("controller", "watched"), [("heuristic", []), (Script([]), [0, 1, 3])])
def test_the_model_is_watched_in_epochs_1_2_4_and_for_those_alone_who_look(
    controller: object, watched: list[int]
) -> None:
    grower = make_grower(controller=controller, at=["1"], epochs=20, price=1e3)
    plain, counts = num_hooks(make_grower(controller="random", at=["1"]).grafted.host), []
    for _ in range(6):
        counts.append(num_hooks(grower.grafted.host) - plain)
        grow(grower, 1)
    assert [epoch for epoch, count in enumerate(counts) if count > 0] == watched
    grow(grower, 1)
    grower.finish()  # the eighth would be watched
    assert num_hooks(grower.grafted.host) == plain


def test_merit_is_saved() -> None:
    first = make_grower()
    grow(first, 3)
    second = make_grower(model=make_mlp())
    second.load_state_dict(first.state_dict())
    assert_same(merit_of(second), merit_of(first))
    assert not merit_of(first).isnan().all()
    for grower in (first, second):
        torch.manual_seed(1)
        grow(grower, 1)  # the fourth, in which it is measured again
    assert_same(merit_of(second), merit_of(first))
