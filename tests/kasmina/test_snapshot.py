"""Snapshots: rollback restores model, seeds, table and optimiser bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import GraftedModel, Snapshot, restore_snapshot, take_snapshot
from esper.kasmina.snapshot import _place
from esper.leyline import InputError, Stage
from tests.kasmina.builders import grow_until, make_batch, make_grafted, make_mlp, run_epoch, train_step


def assert_equal(first: Snapshot, second: Snapshot) -> None:
    assert first.table.equals(second.table)
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    assert [group.slot_id for group in first.groups] == [group.slot_id for group in second.groups]
    for a, b in zip(first.groups, second.groups, strict=True):
        assert a.settings == b.settings
        torch.testing.assert_close(a.states, b.states, rtol=0, atol=0)


def grown_model(**overrides: Any) -> GraftedModel:
    model = make_grafted(**overrides)
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    model.germinate("3", "gated")
    run_epoch(model)
    return model


def only_train(model: GraftedModel) -> None:
    for step in range(5):
        train_step(model, seed=step)


def cull_and_regrow(model: GraftedModel) -> None:
    model.cull("1")
    for _ in range(3):
        run_epoch(model)
    model.germinate("1", "low_rank")
    run_epoch(model)


def lose_everything(model: GraftedModel) -> None:
    model.cull("1")
    grow_until(model, "3", Stage.HOLDING)
    model.cull("3")


def break_everything(model: GraftedModel) -> None:
    train_step(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)


@pytest.mark.parametrize("happening", [only_train, cull_and_regrow, lose_everything, break_everything])
def test_rollback_is_bit_exact_whatever_happened_in_between(happening: Any) -> None:
    model = grown_model()
    snapshot = take_snapshot(model)
    happening(model)
    restore_snapshot(model, snapshot)
    assert_equal(take_snapshot(model), snapshot)


@pytest.mark.parametrize("gradient", [0.0, 1.0], ids=["culled", "holding"])
def test_an_instant_seed_in_its_first_epoch_is_restored_whatever_became_of_it(gradient: float) -> None:
    model = make_grafted()
    model.germinate("1", "mlp", blend="instant")
    model.begin_epoch()
    train_step(model)
    snapshot = take_snapshot(model)
    train_step(model, seed=1)
    expected = take_snapshot(model)
    model.end_epoch(score=0.5, loss=1.0, contributions={"1": 0.1}, seed_gradients={"1": gradient})
    assert model.slot("1").stage is (Stage.HOLDING if gradient else Stage.CULLED)
    restore_snapshot(model, snapshot)
    assert_equal(take_snapshot(model), snapshot)
    assert (model.slot("1").stage, model.slot("1").alpha) == (Stage.GERMINATED, 1.0)
    train_step(model, seed=1)
    assert_equal(take_snapshot(model), expected)


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_training_after_a_rollback_goes_as_it_would_have_without(optimizer_class: Any) -> None:
    host = make_mlp()
    options = {"momentum": 0.9} if optimizer_class is torch.optim.SGD else {}
    model = grown_model(model=host, optimizer=optimizer_class(host.parameters(), lr=1e-2, **options))
    snapshot = take_snapshot(model)

    def go_on() -> list[Tensor]:
        only_train(model)
        return list(take_snapshot(model).tensors.values())

    first = go_on()
    lose_everything(model)
    restore_snapshot(model, snapshot)
    assert all(torch.equal(a, b) for a, b in zip(first, go_on(), strict=True))


def test_a_learning_rate_that_is_a_tensor_stays_that_tensor() -> None:
    host = make_mlp()
    rate = torch.tensor(0.1)
    model = make_grafted(model=host, optimizer=torch.optim.AdamW(host.parameters(), lr=rate, foreach=False))
    snapshot = take_snapshot(model)
    rate.fill_(0.5)
    restore_snapshot(model, snapshot)
    assert model.optimizer is not None
    assert model.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)


@pytest.mark.parametrize(("fused", "device"), [(True, "meta"), (False, "cpu")])
def test_step_counts_are_restored_where_the_optimizer_reads_them(fused: bool, device: str) -> None:
    parameter = torch.empty(2, device="meta")
    assert _place(torch.tensor(3.0), None, parameter, counts_beside=fused).device.type == device


def test_a_snapshot_is_detached_and_shares_no_memory() -> None:
    model = grown_model()
    snapshot = take_snapshot(model)
    frozen = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    only_train(model)
    restore_snapshot(model, snapshot)
    only_train(model)
    assert all(torch.equal(frozen[name], tensor) for name, tensor in snapshot.tensors.items())
    assert all(not t.requires_grad and t.device.type == "cpu" for t in snapshot.tensors.values())


def test_rollback_keeps_the_tensors_that_still_exist() -> None:
    model = grown_model()
    host_parameter = next(model.host.parameters())
    snapshot = take_snapshot(model)
    cull_and_regrow(model)
    restore_snapshot(model, snapshot)
    assert next(model.host.parameters()) is host_parameter
    assert host_parameter.grad is None


def test_rollback_draws_no_random_numbers() -> None:
    model = grown_model(generator=torch.Generator().manual_seed(3))
    snapshot = take_snapshot(model)
    cull_and_regrow(model)
    own, everyones = model.generator.get_state(), torch.get_rng_state()
    restore_snapshot(model, snapshot)
    assert torch.equal(model.generator.get_state(), own)
    assert torch.equal(torch.get_rng_state(), everyones)


class Counting(nn.Module):
    """A model with a buffer that grows with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, x[:1, 0]])
        result: Tensor = self.linear(x)
        return result


def test_buffers_that_changed_their_shape_come_back() -> None:
    host = Counting()
    model = make_grafted(model=host, at=["linear"])
    assert host.seen.shape == (1,)  # the probe did not count
    snapshot = take_snapshot(model)
    model(make_batch()[0])
    restore_snapshot(model, snapshot)
    assert torch.equal(host.seen, torch.zeros(1))


def test_tensor_learning_rates_come_back() -> None:
    host = make_mlp()
    model = grown_model(model=host, optimizer=torch.optim.Adam(host.parameters(), lr=torch.tensor(0.1), foreach=False))
    assert model.optimizer is not None
    assert model.optimizer.param_groups[1]["lr"] is not model.optimizer.param_groups[0]["lr"]
    snapshot = take_snapshot(model)
    model.optimizer.param_groups[0]["lr"].fill_(0.01)
    restore_snapshot(model, snapshot)
    assert float(model.optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)


def test_a_snapshot_that_does_not_fit_is_refused_before_anything_changes() -> None:
    model, other = grown_model(), make_grafted(model=nn.Sequential(nn.Linear(6, 4), nn.Tanh()), at=["1"])
    before = take_snapshot(model)
    with pytest.raises(InputError, match="not of this host"):
        restore_snapshot(model, take_snapshot(other))
    assert_equal(take_snapshot(model), before)
    assert model.optimizer is not None
    model.optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
    with pytest.raises(InputError, match="groups have changed"):
        restore_snapshot(model, before)


def test_a_model_without_optimizer_rolls_back_too() -> None:
    model = grown_model()
    model.optimizer = None
    x, _ = make_batch()
    expected = model(x)
    snapshot = take_snapshot(model)
    model.cull("1")
    restore_snapshot(model, snapshot)
    assert torch.equal(model(x), expected)
