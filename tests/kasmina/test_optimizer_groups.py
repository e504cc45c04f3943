"""The optimiser while a network grows: every parameter in exactly one group, host moments untouched."""

import copy
import random
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from esper.kasmina import GraftedModel, restore_snapshot, take_snapshot
from esper.kasmina.optimizer_groups import SLOT_KEY
from esper.leyline import InputError, Op, Stage
from tests.kasmina.builders import grow_until, make_grafted, make_mlp, run_epoch, train_step

OPTIMIZERS: list[Any] = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]


def check_ownership(model: GraftedModel) -> None:
    """Every parameter in exactly one group, and no optimiser state for anything else."""
    assert model.optimizer is not None
    owned = [id(p) for group in model.optimizer.param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
    assert {id(p) for p in model.optimizer.state} <= set(owned)


def host_state(model: GraftedModel) -> dict[str, Any]:
    assert model.optimizer is not None
    state = {name: model.optimizer.state[p] for name, p in model.host.named_parameters()}
    return copy.deepcopy(state)


def assert_same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_a_seed_brings_its_group_and_takes_it_along(optimizer_class: Any) -> None:
    host = make_mlp()
    model = make_grafted(model=host, optimizer=optimizer_class(host.parameters(), lr=1e-2))
    assert model.optimizer is not None
    train_step(model)
    before = host_state(model)
    model.germinate("1", "mlp")
    check_ownership(model)
    assert_same(host_state(model), before)
    grow_until(model, "1", Stage.HOLDING)
    before = host_state(model)
    model.cull("1")
    check_ownership(model)
    assert len(model.optimizer.param_groups) == 1
    assert_same(host_state(model), before)
    train_step(model)


def test_a_learning_rate_that_is_a_tensor_is_not_shared_with_the_host() -> None:
    host = make_mlp()
    rate = torch.tensor(0.1)
    betas = (torch.tensor(0.9), torch.tensor(0.999))
    optimizer = torch.optim.AdamW(host.parameters(), lr=rate, betas=betas, foreach=False)
    model = make_grafted(model=host, optimizer=optimizer)
    model.germinate("1", "mlp")
    theirs, own = optimizer.param_groups
    assert not any(mine is its for mine, its in zip(own["betas"], theirs["betas"], strict=True))
    torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda _: 1.0, lambda _: 0.1])
    assert (float(theirs["lr"]), float(own["lr"])) == pytest.approx((0.1, 0.01))
    train_step(model)


def test_a_seed_takes_the_settings_of_the_group_that_trains_its_neighbour() -> None:
    host = make_mlp()
    groups = [
        {"params": [*host[0].parameters()], "lr": 1e-3},
        {"params": [*host[2].parameters(), *host[4].parameters()], "lr": 1e-2, "weight_decay": 0.5},
    ]
    model = make_grafted(model=host, optimizer=torch.optim.AdamW(groups), at=["0", "2", "3"])
    assert model.optimizer is not None
    model.optimizer.param_groups[1]["lr"] = 5e-3  # as a schedule would
    for path in ("2", "3", "0"):
        model.germinate(path, "norm")
    settings = {group[SLOT_KEY]: (group["lr"], group["weight_decay"]) for group in model.optimizer.param_groups[2:]}
    assert settings == {"r0c1": (5e-3, 0.5), "r0c2": (5e-3, 0.5), "r0c0": (1e-3, 0.01)}


def test_optimizers_of_named_parameters_get_named_seeds() -> None:
    host = make_mlp()
    model = make_grafted(model=host, optimizer=torch.optim.AdamW(host.named_parameters(), lr=1e-2))
    model.germinate("1", "low_rank")
    assert model.optimizer is not None
    names = model.optimizer.param_groups[1]["param_names"]
    assert names == ["r0c0.scale", "r0c0.down.weight", "r0c0.up.weight", "r0c0.up.bias"]
    run_epoch(model)


def test_a_seed_never_shrinks_the_gradients_of_its_host_when_all_are_clipped() -> None:
    alone, grown = make_grafted(model=make_mlp()), make_grafted()
    alone.host.load_state_dict(grown.host.state_dict())
    grown.germinate("1", "mlp")
    grown.begin_epoch()
    for model in (alone, grown):
        train_step(model)
        model.clip_gradients(1e-3)
    pairs = zip(alone.host.parameters(), grown.host.parameters(), strict=True)
    assert all(a.grad is not None and torch.equal(a.grad, b.grad) for a, b in pairs if b.grad is not None)
    assert torch.nn.utils.get_total_norm(p.grad for p in grown.slots.parameters() if p.grad is not None) <= 1.1e-3


def test_an_optimizer_that_fails_leaves_model_and_table_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_grafted()
    assert model.optimizer is not None

    def fail(group: object) -> None:
        raise RuntimeError("planned")

    monkeypatch.setattr(model.optimizer, "add_param_group", fail)
    with pytest.raises(RuntimeError, match="planned"):
        model.germinate("1", "mlp")
    assert model.slot("1").stage is Stage.DORMANT
    check_ownership(model)


def test_optimizers_that_cannot_follow_growth_are_refused() -> None:
    host = make_mlp()
    with pytest.raises(InputError, match="LBFGS cannot follow growth"):
        make_grafted(model=host, optimizer=torch.optim.LBFGS(host.parameters()))


def test_nothing_holds_on_to_a_culled_seed() -> None:
    model = make_grafted()
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.HOLDING)
    references = [weakref.ref(parameter) for parameter in model.slots[0].parameters()]
    model.cull("1")
    assert all(reference() is None for reference in references)


def random_life(steps: int, seed: int) -> None:
    """Random legal operations, epochs and rollbacks on a small model, its invariants checked after each."""
    dice = random.Random(seed)
    host = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    model = make_grafted(model=host, at=["0", "1"])
    snapshot = take_snapshot(model)
    for _ in range(steps):
        before = take_snapshot(model)
        kind = dice.choices(["act", "epoch", "snapshot", "rollback"], [8, 8, 1, 1])[0]
        if kind == "act":
            masks = model.masks
            op = dice.choice(masks.op[0].nonzero().flatten().tolist())
            slot = dice.choice(masks.slot[0, op].nonzero().flatten().tolist())
            blueprints = masks.blueprint[0, slot].nonzero().flatten().tolist()
            blueprint, blend = (dice.choice(blueprints), dice.randrange(3)) if op == Op.GERMINATE else (0, 0)
            model.act(torch.tensor([[slot, blueprint, blend, op]]))
            after = take_snapshot(model)
            assert all(torch.equal(before.tensors[k], v) for k, v in after.tensors.items() if k.startswith("host."))
            assert_same(after.groups[0].states, before.groups[0].states)
        elif kind == "epoch":
            run_epoch(model, contribution=dice.uniform(-1, 1))
        elif kind == "snapshot":
            snapshot = before
        else:
            restore_snapshot(model, snapshot)
            assert_same(take_snapshot(model).tensors, snapshot.tensors)
        check_ownership(model)
        assert model.optimizer is not None
        planted = {group[SLOT_KEY] for group in model.optimizer.param_groups if SLOT_KEY in group}
        assert planted == {site.slot_id for site in model.sites if model.slot(site.path).occupied}


def test_random_lives_keep_every_parameter_in_exactly_one_group() -> None:
    random_life(steps=400, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_operations_end_without_a_violation(seed: int) -> None:
    random_life(steps=25_000, seed=seed)
