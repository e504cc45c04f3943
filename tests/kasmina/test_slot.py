"""A seed at alpha 0 learns without touching its host, and alpha decides how much of it is heard."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from esper.kasmina import GraftedModel, take_snapshot
from esper.kasmina.growth import Isolation
from esper.leyline import InputError, Stage
from tests.kasmina.builders import grow_until, make_batch, make_grafted, make_mlp, run_epoch, train_step

ISOLATIONS: tuple[Isolation, ...] = ("straight-through", "shadow")


def host_gradients(model: GraftedModel) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.host.named_parameters() if p.grad is not None}


def seed_parameters(model: GraftedModel, index: int = 0) -> list[Tensor]:
    return [p.detach().clone() for p in model.slots[index].parameters()]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_training_seed_leaves_host_output_and_gradients_bit_equal(isolation: Isolation) -> None:
    plain = make_mlp()
    grown = make_grafted(model=copy.deepcopy(plain), isolation=isolation)
    alone = make_grafted(model=plain)
    grown.germinate("1", "mlp")
    grown.begin_epoch()
    x, _ = make_batch()
    for step in range(10):
        assert train_step(grown, seed=step) == train_step(alone, seed=step)
        expected = host_gradients(alone)
        assert all(torch.equal(g, expected[name]) for name, g in host_gradients(grown).items())
        assert torch.equal(grown(x), alone(x))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_training_seed_learns(isolation: Isolation) -> None:
    model = make_grafted(isolation=isolation)
    model.germinate("1", "mlp")
    model.begin_epoch()
    before = seed_parameters(model)
    train_step(model)
    train_step(model)
    assert all(not torch.equal(old, new) for old, new in zip(before, seed_parameters(model), strict=True))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_instant_seed_leaves_the_output_as_it_is_and_learns_with_its_host_from_the_first_step(
    isolation: Isolation,
) -> None:
    plain = make_mlp()
    x, _ = make_batch()
    expected = copy.deepcopy(plain)(x)
    model = make_grafted(model=plain, isolation=isolation)
    model.germinate("1", "mlp", blend="instant")
    model.begin_epoch()
    assert (model.slot("1").stage, model.slot("1").alpha) == (Stage.GERMINATED, 1.0)
    assert torch.equal(model(x), expected)
    before = seed_parameters(model)
    train_step(model)
    train_step(model)
    assert all(not torch.equal(old, new) for old, new in zip(before, seed_parameters(model), strict=True))
    with_seed = model(x)
    with model.override_alpha("1", 0.0):
        assert not torch.equal(model(x), with_seed)
    model.end_epoch(score=0.5, loss=1.0, contributions={"1": 0.1})
    assert model.slot("1").stage is Stage.HOLDING


def test_only_a_seed_that_starts_at_alpha_zero_is_born_awake() -> None:
    def scale(blend: str) -> Tensor:
        model = make_grafted()
        model.germinate("1", "mlp", blend=blend)
        return model.slots[0].get_parameter("seed.scale")

    assert [bool(scale(blend).eq(1).all()) for blend in ("linear", "sigmoid", "gated")] == [True] * 3
    assert not scale("instant").any()
    from_the_start = make_grafted()
    from_the_start.plant_fossils({"1": "mlp"})
    assert not from_the_start.slots[0].get_parameter("seed.scale").any()


def test_an_instant_seed_without_gradients_cannot_be_judged() -> None:
    model = make_grafted()
    model.germinate("1", "mlp", blend="instant")
    model.begin_epoch()
    with pytest.raises(InputError, match="no gradients to judge it by"):
        model.end_epoch(score=0.5, loss=1.0, contributions={"1": 0.1})


def test_a_shadow_trained_seed_lowers_the_loss_it_would_have_in_place() -> None:
    model = make_grafted(isolation="shadow")
    for parameter in model.host.parameters():
        parameter.requires_grad_(False)
    model.germinate("1", "mlp")
    model.begin_epoch()
    x, y = make_batch()
    assert model.optimizer is not None
    losses = []
    for _ in range(50):
        model.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model.shadow("1", x), y)
        loss.backward()
        model.optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_shadow_pass_changes_no_running_statistics() -> None:
    host = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = make_grafted(model=host, at=["0"], isolation="shadow")
    model.germinate("0", "gated")
    model.begin_epoch()
    before = copy.deepcopy(host.state_dict())
    model.shadow("0", make_batch()[0])
    assert all(torch.equal(before[name], tensor) for name, tensor in host.state_dict().items())


def test_a_shadow_pass_leaves_the_dropout_of_the_host_alone() -> None:
    def losses(shadow: bool) -> list[float]:
        torch.manual_seed(0)
        host = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        model = make_grafted(model=host, at=["0"], isolation="shadow" if shadow else "straight-through")
        if shadow:
            model.germinate("0", "mlp")
            model.begin_epoch()
        return [train_step(model, seed=step) for step in range(4)]

    assert losses(shadow=True) == losses(shadow=False)


class _NoTransfer(TorchDispatchMode):
    """Refuses to bring a tensor's value to Python."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_the_forward_pass_never_waits_for_a_value(stage: Stage) -> None:
    model = make_grafted()
    model.germinate("1", "mlp")
    grow_until(model, "1", stage)
    with _NoTransfer():  # type: ignore[no-untyped-call]
        model(make_batch()[0])


def test_a_seed_gone_non_finite_does_not_reach_the_host() -> None:
    model = make_grafted()
    x, _ = make_batch()
    expected = model(x)
    model.germinate("1", "mlp")
    model.begin_epoch()
    with torch.no_grad():
        for parameter in model.slots[0].parameters():
            parameter.fill_(torch.nan)
    assert torch.equal(model(x), expected)
    half = torch.zeros(len(x))
    with model.override_alpha("1", half):
        assert torch.equal(model(x), expected)


def test_the_host_may_write_into_a_slots_output_in_place() -> None:
    host = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    model = make_grafted(model=host, at=["0"])
    model.germinate("0", "mlp")
    for _ in range(6):
        run_epoch(model)
    assert model.slot("0").stage is Stage.HOLDING


def test_alpha_weighs_the_residual_and_one_is_the_host_with_its_seed() -> None:
    model = make_grafted()
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    x, _ = make_batch()
    layers = list(model.host.children())
    h = torch.tanh(layers[0](x))
    delta = model.slots[0].seed(h)  # type: ignore[operator]
    for alpha in (0.0, 0.25, 1.0):
        expected = layers[4](layers[3](layers[2](h + alpha * delta)))
        with model.override_alpha("1", alpha):
            torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model(x), layers[4](layers[3](layers[2](h + delta))))


def test_forcing_alpha_to_zero_gives_the_host_bit_for_bit() -> None:
    model = make_grafted()
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    x, _ = make_batch()
    bare = nn.Sequential(*copy.deepcopy(list(model.host.children())))
    bare[1]._forward_hooks.clear()
    bare[3]._forward_hooks.clear()
    with model.override_alpha("1", 0.0):
        assert torch.equal(model(x), bare(x))
    assert not torch.equal(model(x), bare(x))


def test_each_sample_can_have_its_own_alpha() -> None:
    model = make_grafted()
    model.germinate("3", "mlp")
    grow_until(model, "3", Stage.HOLDING)
    x, _ = make_batch()
    with_seed = model(x)
    with model.override_alpha("3", 0.0):
        without = model(x)
    choice = torch.arange(len(x)) % 2
    with model.override_alpha("3", choice.float()):
        mixed = model(x)
    torch.testing.assert_close(mixed, torch.where(choice[:, None] == 1, with_seed, without))


def test_a_seed_gone_non_finite_does_not_reach_samples_that_run_without_it() -> None:
    model = make_grafted()
    model.germinate("3", "mlp")
    grow_until(model, "3", Stage.HOLDING)
    x, _ = make_batch()
    with model.override_alpha("3", 0.0):
        without = model(x)
    with torch.no_grad():
        for parameter in model.slots[1].parameters():
            parameter.fill_(torch.nan)
    choice = torch.arange(len(x)) % 2
    with model.override_alpha("3", choice.float()):
        mixed = model(x)
    assert torch.equal(mixed[choice == 0], without[choice == 0])
    assert mixed[choice == 1].isnan().all()


def test_a_forced_alpha_is_released_even_after_an_error() -> None:
    model = make_grafted()
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    x, _ = make_batch()
    expected = model(x)
    with pytest.raises(RuntimeError, match="planned"), model.override_alpha("1", 0.0):
        raise RuntimeError("planned")
    assert torch.equal(model(x), expected)


def test_two_models_stepped_in_turn_live_as_they_would_apart() -> None:
    def life(model: GraftedModel) -> list[Tensor]:
        return list(take_snapshot(model).tensors.values())

    torch.manual_seed(1)
    first, second = make_mlp(), make_mlp()
    settings = [{"generator": torch.Generator().manual_seed(seed)} for seed in (1, 2, 1, 2)]
    apart = [make_grafted(model=copy.deepcopy(m), **s) for m, s in zip((first, second), settings[:2], strict=True)]
    in_turn = [make_grafted(model=copy.deepcopy(m), **s) for m, s in zip((first, second), settings[2:], strict=True)]
    for model in apart:
        model.germinate("1", "gated")
        for _ in range(4):
            run_epoch(model)
    for model in in_turn:
        model.germinate("1", "gated")
    for _ in range(4):
        for model in in_turn:
            run_epoch(model)
    for a, b in zip(apart, in_turn, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(life(a), life(b), strict=True))


def test_the_autocast_dtype_of_the_host_survives_a_seed() -> None:
    model = make_grafted()
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.BLENDING)
    x, _ = make_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
