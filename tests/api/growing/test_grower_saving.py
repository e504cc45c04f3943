"""The ways in which people save models carry what was grown, or say that they do not."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper.leyline import Stage
from tests.api.growing.builders import LIFE, Script, accuracy, grow, make_data, make_grower, make_mlp, train

X, _ = make_data()


def grown(epochs: int) -> esper.Grower:
    grower = make_grower(controller=Script(LIFE))
    grow(grower, epochs)
    return grower


@pytest.mark.parametrize("epochs", [1, 4, 6, 8])
@pytest.mark.parametrize("whose", ["the model that was given", "the model of the grower"])
def test_a_saved_state_gives_the_same_score_in_another_process(tmp_path: Path, epochs: int, whose: str) -> None:
    grower, again = grown(epochs), make_grower()
    models = [each.grafted.host if whose == "the model that was given" else each.model for each in (grower, again)]
    torch.save(models[0].state_dict(), tmp_path / "best.pt")
    models[1].load_state_dict(torch.load(tmp_path / "best.pt", weights_only=True))
    assert torch.equal(again.model(X), grower.model(X))
    assert accuracy(again.model) == accuracy(grower.model)
    assert again.grafted.slot("1").stage is grower.grafted.slot("1").stage
    grow(again, 2)  # and it can be trained on


def test_the_plain_class_refuses_what_was_grown_and_takes_what_was_exported() -> None:
    grower = grown(8)
    with pytest.raises(RuntimeError, match=r"grower\.export\(\).*Grower\.load"):
        make_mlp().load_state_dict(grower.model.state_dict())
    plain = grower.export()
    twin = copy.deepcopy(plain)
    twin.load_state_dict(plain.state_dict())
    torch.testing.assert_close(twin(X), grower.model(X), rtol=0, atol=1e-5)


def test_early_stopping_by_a_copy_or_by_a_state_gives_back_the_best_epoch() -> None:
    grower = grown(5)
    kept, state, best = copy.deepcopy(grower.model), copy.deepcopy(grower.model.state_dict()), grower.model(X)
    grow(grower, 4)
    assert not torch.equal(grower.model(X), best)
    assert torch.equal(kept(X), best)
    grower.model.load_state_dict(state)
    assert torch.equal(grower.model(X), best)
    with pytest.warns(UserWarning, match="still on trial"):
        grower.export()


def test_an_average_of_weights_grows_along_from_the_first_seed_to_the_last() -> None:
    grower = make_grower(controller=Script(LIFE))
    average: Any = torch.optim.swa_utils.AveragedModel(
        grower.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    grower.mirror(average)
    for _ in range(8):
        train(grower)
        average.update_parameters(grower.model)
        grower.step()
    assert average.module.slot("1").stage is Stage.FOSSILIZED
    seeds = [model.get_submodule("slots.0.seed") for model in (grower.grafted, average.module)]
    for mine, theirs in zip(*(seed.parameters() for seed in seeds), strict=True):
        assert not torch.equal(mine, theirs)  # an average, not a copy
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0.2)
    state = average.state_dict()
    assert any(key.startswith("module.esper_seeds.1.mlp.") for key in state)


def test_a_model_inside_of_a_module_is_saved_with_it(tmp_path: Path) -> None:
    grower, again = grown(6), make_grower(controller=Script(LIFE))
    holders = [nn.ModuleDict({"net": each.model, "head": nn.Linear(3, 3)}) for each in (grower, again)]
    torch.save(holders[0].state_dict(), tmp_path / "all.pt")
    holders[1].load_state_dict(torch.load(tmp_path / "all.pt", weights_only=True))
    assert torch.equal(again.model(X), grower.model(X))
