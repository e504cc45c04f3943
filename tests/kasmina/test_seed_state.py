"""The ordinary ways to save a model carry what was grown on it; what cannot take it says so."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import GraftedModel, fold
from esper.leyline import InputError, Stage
from tests.kasmina.builders import grow_until, make_batch, make_grafted, make_mlp, run_epoch, train_step

X, _ = make_batch()


class Holder(nn.Module):
    """Someone's module with a growing network inside."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(self.before(x))
        return result


def grown(stage: Stage = Stage.HOLDING, **settings: Any) -> GraftedModel:
    model = make_grafted(**settings)
    model.germinate("1", "mlp")
    grow_until(model, "1", stage)
    return model


def saved(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    torch.save(state, folder / "weights.pt")
    loaded: dict[str, Any] = torch.load(folder / "weights.pt", weights_only=True)
    return loaded


@pytest.mark.parametrize("of", [lambda model: model, lambda model: model.host])
def test_the_keys_are_those_of_the_plain_model_until_something_is_planted(of: Callable[[Any], nn.Module]) -> None:
    model = make_grafted()
    plain = list(make_mlp().state_dict())
    assert list(of(model).state_dict()) == plain
    model.germinate("1", "mlp")
    keys = [key for key in of(model).state_dict() if key not in plain]
    assert all(key.startswith("esper_seeds.") for key in keys)
    assert {"esper_seeds.1.mlp.slot.stage", "esper_seeds.1.mlp.slot.alpha"} <= set(keys)
    assert "esper_seeds.1.mlp.weights.hidden.weight" in keys
    model.begin_epoch()
    grow_until(model, "1", Stage.HOLDING)
    model.cull("1")
    assert list(of(model).state_dict()) == plain


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_a_fresh_grafted_model_loads_seeds_with_their_stage_and_alpha(tmp_path: Path, stage: Stage) -> None:
    model = grown(stage)
    fresh = make_grafted()
    fresh.load_state_dict(saved(model.state_dict(), tmp_path))
    assert torch.equal(fresh(X), model(X))
    for mine, theirs in zip(fresh.table.columns().values(), model.table.columns().values(), strict=True):
        torch.testing.assert_close(mine[:, :1], theirs[:, :1], rtol=0, atol=0, equal_nan=True)
    run_epoch(fresh)
    train_step(fresh)
    seed = fresh.slots[0].get_submodule("seed")
    assert fresh.optimizer is not None
    owned = {id(p) for group in fresh.optimizer.param_groups for p in group["params"]}
    assert all(id(p) in owned for p in seed.parameters())


def test_an_instant_seed_is_saved_and_loaded_in_its_first_epoch(tmp_path: Path) -> None:
    model, fresh = make_grafted(), make_grafted()
    model.germinate("1", "mlp", blend="instant")
    model.begin_epoch()
    train_step(model)
    fresh.load_state_dict(saved(model.state_dict(), tmp_path))
    assert (fresh.slot("1").stage, fresh.slot("1").alpha) == (Stage.GERMINATED, 1.0)
    assert torch.equal(fresh(X), model(X))
    run_epoch(fresh)
    assert fresh.slot("1").stage is Stage.HOLDING


@pytest.mark.parametrize("inside", ["the grafted model", "its host"])
def test_a_module_that_holds_a_growing_network_saves_and_loads_it(tmp_path: Path, inside: str) -> None:
    model, fresh = grown(), make_grafted()
    ours, theirs = (Holder(each if inside == "the grafted model" else each.host) for each in (model, fresh))
    assert list(theirs.state_dict()) == list(Holder(make_mlp()).state_dict())
    theirs.load_state_dict(saved(ours.state_dict(), tmp_path))
    assert torch.equal(theirs(X), ours(X))
    assert fresh.slot("1").stage is Stage.HOLDING


def test_the_plain_class_refuses_a_grown_state_and_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"grower\.export\(\).*Grower\.load"):
        make_mlp().load_state_dict(grown().host.state_dict())


def test_a_state_from_before_the_growth_takes_the_seeds_away() -> None:
    model = make_grafted()
    before, expected = copy.deepcopy(model.state_dict()), model(X)
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    model.load_state_dict(before)
    assert torch.equal(model(X), expected)
    assert model.slot("1").stage is Stage.DORMANT
    assert len(list(model.parameters())) == len(list(make_mlp().parameters()))


def test_a_part_of_a_state_leaves_seeds_alone_and_says_so() -> None:
    model = grown()
    with pytest.warns(UserWarning, match="without seeds: those of the model stay"):
        model.load_state_dict({"0.bias": torch.ones(8)}, strict=False)
    assert model.slot("1").stage is Stage.HOLDING


def test_loading_over_other_seeds_replaces_them() -> None:
    model, other = grown(), make_grafted()
    other.germinate("1", "norm")
    grow_until(other, "1", Stage.HOLDING)
    other.germinate("3", "gated")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(X), model(X))
    assert [other.slot(path).blueprint for path in ("1", "3")] == ["mlp", None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("esper_seeds.1.mlp.slot.alpha"), "has the columns"),
        (lambda state: state.update({"esper_seeds.1.mlp.slot.alpha": torch.tensor(7.0)}), "must be 0 to 1; got"),
        (lambda state: state.update({"esper_seeds.1.mlp.slot.stage": torch.tensor(99)}), "'stage' .* must be 0 to 7"),
        (lambda state: state.update({"esper_seeds.1.mlp.slot.stage": torch.tensor(0)}), "for empty slots"),
        (lambda state: state.update({"esper_seeds.1.mlp.slot.blueprint": torch.tensor(2)}), "has two kinds"),
        (lambda state: state.pop("esper_seeds.1.mlp.weights.scale"), "is no mlp of width 8: scale differ"),
        (lambda state: state.update({"esper_seeds.1.mlp.weights.scale": torch.ones(9)}), "is no mlp of width 8"),
        (lambda state: state.update({"esper_seeds.1.norm.slot.alpha": torch.tensor(1.0)}), "not how a seed is saved"),
        (
            lambda state: state.update({"esper_seeds.1.soup.slot.alpha": torch.tensor(1.0)}),
            "unknown features blueprint",
        ),
        (lambda state: state.update({"esper_seeds.8/1.mlp.slot.alpha": torch.tensor(1.0)}), r"a seed behind '8\.1'"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    state = {name: tensor.clone() for name, tensor in grown().state_dict().items()}
    change(state)
    model = make_grafted()
    model.germinate("3", "norm")
    before, table = copy.deepcopy(model.state_dict()), model.table.clone()
    with pytest.raises(InputError, match=message):
        model.load_state_dict(state)
    assert model.table.equals(table)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_an_export_carries_nothing_of_this() -> None:
    model = grown()
    model.fossilize("1")
    network = fold(model, X).network
    assert not any("esper_seeds" in key for key in network.state_dict())
    assert not network._state_dict_hooks
    assert not network._load_state_dict_pre_hooks


def test_a_copy_of_the_host_alone_saves_its_own_seeds() -> None:
    model = grown()
    twin = copy.deepcopy(model.host)
    model.cull("1")
    fresh = make_grafted()
    fresh.load_state_dict(twin.state_dict())
    assert torch.equal(fresh(X), twin(X))
    assert fresh.slot("1").stage is Stage.HOLDING


def averaged(model: nn.Module) -> Any:
    return torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))


@pytest.mark.parametrize("of", [lambda model: model, lambda model: model.host])
def test_an_average_of_weights_that_does_not_grow_along_says_so(of: Callable[[Any], nn.Module]) -> None:
    model = make_grafted()
    average = averaged(of(model))
    average.update_parameters(of(model))
    average(X)  # nothing has grown yet
    model.germinate("1", "norm")
    average.update_parameters(of(model))
    with pytest.warns(UserWarning, match=r"grower\.mirror\(copy\)"):
        average(X)


def test_a_copy_that_is_kept_as_it_is_does_not_warn() -> None:
    model = make_grafted()
    best = copy.deepcopy(model)
    expected = model(X)
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    assert torch.equal(best(X), expected)


@pytest.mark.parametrize("planted_first", [True, False])
def test_a_mirror_grows_along_and_can_be_averaged(planted_first: bool) -> None:
    model = make_grafted()
    if planted_first:
        model.germinate("1", "mlp")
    average = averaged(model)
    model.mirror(average)
    if not planted_first:
        model.germinate("1", "mlp")
    for _ in range(8):
        run_epoch(model)
        average.update_parameters(model)
    with model.override_alpha("1", 0.0):
        without = model(X)
    assert not torch.allclose(average(X), without)
    for _ in range(40):  # no more training: the average closes in on the model
        average.update_parameters(model)
    torch.testing.assert_close(average(X), model(X))
    model.cull("1")
    average.update_parameters(model)
    torch.testing.assert_close(average(X), model(X))


def test_only_copies_made_from_the_grafted_model_can_be_mirrors() -> None:
    model = make_grafted()
    with pytest.raises(InputError, match="seeds are not part of this module; make the copy"):
        model.mirror(averaged(model.host))
    with pytest.raises(InputError, match="is the model itself"):
        model.mirror(model)
    with pytest.raises(InputError, match="slots behind 3"):
        model.mirror(make_grafted(at=["3"]))
