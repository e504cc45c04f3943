"""The governor: failures are noticed and undone bit for bit, noise is left alone."""

import gc
import math
import resource

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import GraftedModel, take_snapshot
from esper.leyline import Stage
from esper.tolaria import Governor, GovernorSettings
from tests.kasmina.builders import grow_until, make_grafted, run_epoch

GUESS = math.log(3)


def grown() -> GraftedModel:
    model = make_grafted()
    model.germinate("1", "mlp")
    grow_until(model, "1", Stage.BLENDING)
    return model


def tensors(model: GraftedModel) -> list[Tensor]:
    return list(take_snapshot(model).tensors.values())


@pytest.mark.parametrize(
    ("train_loss", "val_loss"),
    [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, 1e6), (-math.inf, 1.0)],
)
def test_a_failed_epoch_is_undone_bit_for_bit(train_loss: float, val_loss: float) -> None:
    model = grown()
    governor = Governor(model, GUESS)
    run_epoch(model)
    assert governor.check(0.9, 0.9) is None
    table, good = model.table.clone(), tensors(model)
    run_epoch(model)
    assert governor.check(train_loss, val_loss)
    assert model.table.equals(table)
    assert all(torch.equal(a, b) for a, b in zip(good, tensors(model), strict=True))


def test_rollback_undoes_what_was_grown_since() -> None:
    model = make_grafted()
    governor = Governor(model, GUESS)
    model.germinate("3", "mlp")
    run_epoch(model)
    governor.check(math.nan, 1.0)
    assert model.slot("3").stage is Stage.DORMANT
    assert model.optimizer is not None
    assert len(model.optimizer.param_groups) == 1


def test_the_usual_noise_is_no_panic() -> None:
    governor = Governor(make_grafted(), GUESS)
    for loss in [1.1, 0.8, 1.0, 0.3, 0.9, 0.2, 0.5, 1.4]:
        assert governor.check(loss, loss) is None
    assert governor.panics == 0


def test_the_third_panic_ends_the_episode() -> None:
    governor = Governor(make_grafted(), GUESS, GovernorSettings(max_panics=3))
    for count in range(1, 4):
        assert not governor.exhausted
        governor.check(math.nan, math.nan)
        assert governor.panics == count
    assert governor.exhausted


@pytest.mark.parametrize(("in_use", "calls"), [(True, 1), (False, 0)])
def test_cached_device_memory_is_given_back_only_where_there_is_a_device(
    in_use: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    Governor(make_grafted(), GUESS).check(1.0, 1.0)
    assert len(emptied) == calls


def test_a_snapshot_holds_weights_and_moments_and_little_else() -> None:
    host = nn.Sequential(nn.Linear(1000, 500), nn.Tanh(), nn.Linear(500, 3))
    model = make_grafted(model=host, at=["1"], example=torch.randn(2, 1000))
    assert model.optimizer is not None
    model(torch.randn(2, 1000)).sum().backward()
    model.optimizer.step()
    snapshot = take_snapshot(model)
    moments = [t for group in snapshot.groups for state in group.states for t in state.values()]
    held = sum(t.numel() * t.element_size() for t in (*snapshot.tensors.values(), *moments))
    assert held == pytest.approx(3 * 4 * sum(p.numel() for p in host.parameters()), rel=0.01)


def test_snapshots_do_not_pile_up() -> None:
    model = make_grafted()
    governor = Governor(model, GUESS)
    for _ in range(200):
        governor.check(1.0, 1.0)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        governor.check(1.0, 1.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1.05 * before
