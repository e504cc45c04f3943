"""Grafting slots onto modules: nothing changes until a seed grows, and nothing that worked stops working."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Family, GraftedModel, find_blueprint, graft
from esper.leyline import Blend, IllegalActionError, InputError, SlotConfig, Stage
from tests.kasmina.builders import grow_until, make_batch, make_grafted, make_mlp, run_epoch, train_step


def test_empty_slots_compute_exactly_the_model() -> None:
    model = make_mlp()
    x, _ = make_batch()
    expected = model(x)
    grafted = graft(model, at=["1", "3"], example=x)
    assert torch.equal(grafted(x), expected)
    assert torch.equal(model(x), expected)
    assert grafted.host is model
    assert grafted.slot_config == SlotConfig.of_size(2)


def test_names_of_the_host_stay_through_growth() -> None:
    model = make_mlp()
    names = [name for name, _ in model.named_modules()]
    grafted = make_grafted(model=model)
    grafted.germinate("1", "mlp")
    grow_until(grafted, "1", Stage.HOLDING)
    assert [name for name, _ in model.named_modules()] == names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": -1}, "budget must be"),
        ({"budget": 1.5}, "budget must be"),
        ({"isolation": "straight_through"}, "choose one of: straight-through, shadow"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_grafted(**settings)


def test_a_model_that_has_grown_is_not_grafted_again() -> None:
    model = make_grafted()
    make_grafted(model=model.host, at=["3"]).germinate("3", "mlp")
    with pytest.raises(InputError, match="has grown already, behind 3"):
        make_grafted(model=model.host)
    x, _ = make_batch()
    assert not model.host.get_submodule("1")._forward_hooks
    assert torch.equal(model(x), model.host(x))


@pytest.mark.parametrize("frozen", [True, False])
def test_an_affine_seed_is_not_planted_where_a_linear_layer_could_learn_the_same(frozen: bool) -> None:
    model = make_mlp()
    model[0].requires_grad_(not frozen)
    grafted = make_grafted(model=model, at=["0", "1"])
    low_rank = find_blueprint(Family.FEATURES, "low_rank").id - 1
    assert grafted.catalogue.fits[:, low_rank].tolist() == [frozen, True]


def test_a_seed_has_the_dtype_of_the_tensor_it_works_on() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.bfloat16()

    host = nn.Sequential(nn.Linear(6, 8), Half(), nn.Linear(8, 3).bfloat16())
    model = make_grafted(model=host, at=["1"])
    model.germinate("1", "mlp")
    run_epoch(model)
    assert {p.dtype for p in model.slots.parameters()} == {torch.bfloat16}


def test_growing_under_inference_mode_makes_seeds_that_can_learn() -> None:
    model = make_grafted()
    with torch.inference_mode():
        model.germinate("1", "mlp")
    run_epoch(model)
    assert model.slot("1").stage is Stage.TRAINING


def test_germinating_draws_nothing_from_the_global_random_state() -> None:
    model = make_grafted()
    state = torch.get_rng_state()
    model.germinate("1", "mlp")
    assert torch.equal(torch.get_rng_state(), state)


def test_an_optimizer_that_trains_something_else_is_refused() -> None:
    other = torch.optim.SGD(make_mlp().parameters(), lr=0.1)
    with pytest.raises(InputError, match="no parameter of this model"):
        make_grafted(optimizer=other)


def test_unknown_slots_blueprints_and_blends_list_the_valid_names() -> None:
    model = make_grafted()
    with pytest.raises(InputError, match="unknown slot 'head'; choose one of: 1, 3"):
        model.germinate("head", "mlp")
    with pytest.raises(InputError, match="choose one of: norm, low_rank, gated, mlp, attention"):
        model.germinate("1", "dense")
    with pytest.raises(InputError, match="choose one of: linear, sigmoid, gated, instant"):
        model.germinate("1", "mlp", blend="quadratic")


def test_a_life_from_germination_to_permanence() -> None:
    model = make_grafted()
    view = model.slot("1")
    assert (view.stage, view.blueprint, view.occupied, model.available_slots) == (Stage.DORMANT, None, False, 2)
    model.germinate("1", "mlp")
    assert (view.stage, view.blueprint, view.blueprint_id, model.available_slots) == (Stage.GERMINATED, "mlp", 4, 1)
    with pytest.raises(IllegalActionError):
        model.germinate("r0c0", "norm")
    with pytest.raises(IllegalActionError):
        model.fossilize("1")
    grow_until(model, "1", Stage.HOLDING, contribution=0.2)
    assert (view.alpha, view.epochs_in_stage) == (1.0, 0)
    assert view.contribution == pytest.approx(0.2)
    x, _ = make_batch()
    before = model(x)
    model.fossilize("1")
    assert view.stage is Stage.FOSSILIZED
    assert torch.equal(model(x), before)
    run_epoch(model)
    assert (view.alpha, model.available_slots) == (1.0, 1)


def test_culling_returns_the_host_function_and_after_cool_down_the_slot() -> None:
    model = make_grafted()
    x, _ = make_batch()
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    with model.override_alpha("1", 0.0):
        host_only = model(x)
    model.cull("1")
    assert torch.equal(model(x), host_only)
    assert not list(model.slots.parameters())
    run_epoch(model)
    assert (model.slot("1").stage, model.available_slots) == (Stage.EMBARGOED, 1)
    run_epoch(model)
    assert model.available_slots == 2


def test_the_budget_is_what_all_seeds_may_add_together() -> None:
    price = int(make_grafted().catalogue.params[0, 3])
    model = make_grafted(budget=price + 20)
    model.germinate("1", "mlp")
    with pytest.raises(IllegalActionError, match="20 of the budget are left"):
        model.germinate("3", "mlp")
    with pytest.raises(IllegalActionError, match="'attention' does not fit behind '3'"):
        model.germinate("3", "attention")
    model.germinate("3", "norm", Blend.GATED)
    assert int(model.table.added_params) <= price + 20


def test_seeds_without_gradients_are_an_error_that_says_what_to_do() -> None:
    model = make_grafted()
    model.germinate("1", "mlp")
    model.begin_epoch()
    with pytest.raises(InputError, match="before zero_grad"):
        model.end_epoch(score=0.5, loss=1.0, contributions={})
    model.end_epoch(score=0.5, loss=1.0, contributions={}, seed_gradients={"1": 0.3})
    assert model.slot("1").epochs_in_stage == 1


def test_a_generator_alone_decides_how_seeds_start() -> None:
    def start(global_seed: int) -> list[Tensor]:
        torch.manual_seed(global_seed)
        model = make_grafted(generator=torch.Generator().manual_seed(7))
        model.germinate("1", "mlp")
        return list(model.slots.parameters())

    assert all(torch.equal(a, b) for a, b in zip(start(1), start(2), strict=True))


def held_model() -> GraftedModel:
    model = make_grafted()
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    return model


def test_a_deep_copy_is_a_model_of_its_own() -> None:
    model = held_model()
    x, _ = make_batch()
    twin = copy.deepcopy(model)
    expected = model(x)
    assert torch.equal(twin(x), expected)
    model.cull("1")
    assert torch.equal(twin(x), expected)
    assert twin.optimizer is None
    twin.optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    train_step(twin)
    assert not torch.equal(twin(x), expected)
    assert twin.slot("1").stage is Stage.HOLDING


def test_a_pickled_model_comes_back_with_its_slots() -> None:
    model = held_model()
    x, _ = make_batch()
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(x), model(x))
    assert twin.slot("1").stage is Stage.HOLDING


@pytest.mark.parametrize("move", [lambda m: m.double(), lambda m: m.to(torch.float64)])
def test_moving_the_model_moves_its_seeds_and_those_to_come(move: Callable[[GraftedModel], GraftedModel]) -> None:
    model = move(held_model())
    model.germinate("3", "norm")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model(make_batch()[0].double()).dtype == torch.float64
    assert model.eval().slots[0].training is False


def test_a_compiled_model_follows_growth() -> None:
    model = make_grafted()
    x, _ = make_batch()
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(x), model(x))
    model.germinate("1", "mlp")
    for _ in range(6):
        run_epoch(model)
        assert torch.equal(compiled(x), model(x))
    model.cull("1")
    assert torch.equal(compiled(x), model(x))


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
def test_a_nested_tensor_in_evaluation_is_refused_with_what_to_do() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True)
    x, mask = torch.randn(4, 5, 8), torch.zeros(4, 5, dtype=torch.bool)
    mask[0, 3:] = True
    grafted = graft(model, at=["layers.0"], example=x)  # without a mask, so the probe sees plain tensors
    grafted.plant_fossils({"layers.0": "mlp"})
    grafted.eval()
    with torch.no_grad(), pytest.raises(InputError, match="enable_nested_tensor=False"):
        grafted(x, src_key_padding_mask=mask)


def test_a_submodule_that_returns_something_else_later_is_named() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.both = False

        def forward(self, x: Tensor) -> Any:
            return (self.layer(x), x) if self.both else self.layer(x)

    moody = Moody()
    grafted = graft(nn.Sequential(moody), at=["0"], example=torch.randn(2, 6))
    grafted.plant_fossils({"0": "mlp"})
    moody.both = True
    with pytest.raises(InputError, match="Moody returned a tuple to a slot that was grafted onto one plain tensor"):
        grafted(torch.randn(2, 6))


def test_attributes_of_the_host_can_be_reached_through_the_grafted_model() -> None:
    model = make_grafted()
    assert model.extend == model.host.extend
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = model.nothing_like_it
