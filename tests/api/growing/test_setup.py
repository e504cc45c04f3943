"""What cannot be used is refused with a sentence, at once; nothing is silently not done."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from esper.kasmina import graft
from esper.leyline import IllegalActionError, InputError, Stage
from tests.api.growing.builders import (
    LIFE,
    Script,
    cull,
    grow,
    make_data,
    make_grower,
    make_mlp,
)


@pytest.mark.parametrize("evaluate", [0.5, lambda a, b: 0.5])
def test_an_evaluate_that_cannot_be_called_is_refused(evaluate: Any) -> None:
    with pytest.raises(InputError, match="evaluate must"):
        make_grower(evaluate=evaluate)


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="holds no parameter of this model"):
        make_grower(optimizer=torch.optim.SGD(make_mlp().parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"controller": "wizard"}, "unknown controller 'wizard'"),
        ({"controller": 7}, "a controller has the methods reset and decide"),
        ({"epochs": 0}, "epochs must be"),
        ({"measure": "error"}, "choose one of: score, loss"),
        ({"price": -0.1}, "price must be a number of 0 or more; got -0.1"),
        ({"flop_price": -0.1}, "flop_price must be a number of 0 or more; got -0.1"),
        ({"flop_price": math.nan}, "flop_price must be a number of 0 or more; got nan"),
        ({"flop_price": "1"}, "flop_price must be a number of 0 or more; got '1'"),
        ({"flop_price": 1.0, "example": torch.randn(2, 5)}, "counted on the example: .*; omit flop_price"),
        ({"at": "1"}, "`at` must list submodule names"),
        ({"at": []}, "`at` must list one or more"),
        ({"model": lambda x: x, "optimizer": 1}, "model must be a torch.nn.Module; got function"),
        ({"example": torch.randn(2, 5)}, "could not run on the example"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_grower(**settings)


def test_a_controller_that_breaks_the_rules_is_an_error_and_changes_nothing() -> None:
    grower = make_grower(controller=Script([cull(0)]))
    with pytest.raises(IllegalActionError, match="CULL"):
        grow(grower, 1)
    assert not grower.grafted.slot("1").occupied


def grown_model() -> nn.Module:
    grower = make_grower(controller=Script(LIFE))
    grow(grower, 1)
    return grower.grafted.host


def test_models_that_cannot_grow_are_refused() -> None:
    compiled_in_place = make_mlp()
    compiled_in_place.compile(backend="eager")
    for model, message in (
        (nn.DataParallel(make_mlp()), "DataParallel copies the model"),
        (torch.compile(make_mlp(), backend="eager"), "compiled before it was grown"),
        (compiled_in_place, "compiled before it was grown"),
        (graft(make_mlp(), at=["1"], example=make_data()[0]), "carries slots already"),
        (grown_model(), "has grown already, behind 1: go on with its grower, start again"),
        (nn.Sequential(nn.LazyLinear(8), nn.Tanh()), "0.weight, 0.bias of this model have no shape yet; run a batch"),
    ):
        with pytest.raises(InputError, match=message):
            make_grower(model=model)


def test_a_grower_can_be_made_again_while_nothing_has_grown() -> None:
    """As when the cell of a notebook is run twice."""
    model = make_mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = make_grower(model=model, optimizer=optimizer)
    grow(first, 1)
    again = make_grower(model=model, optimizer=optimizer, controller=Script(LIFE), at=["3"])
    grow(again, 7)
    assert again.grafted.slot("3").stage is Stage.FOSSILIZED
    with pytest.raises(InputError, match="another grower was made of this model"):
        first.step()
    assert first._watch.steps == 0  # nobody counts, measures or warns for it any more
    x, _ = make_data()
    torch.testing.assert_close(again.export()(x), again.model(x), rtol=0, atol=1e-5)
