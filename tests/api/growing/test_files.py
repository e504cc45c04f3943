"""A growth that was killed goes on where it stood, bit for bit."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper.kasmina import Family, take_snapshot
from esper.leyline import InputError, Stage
from esper.nissa.state_files import pack_state
from tests.api.growing.builders import (
    LIFE,
    Script,
    assert_same,
    grow,
    loss_of,
    make_grower,
    make_mlp,
    train,
)
from tests.catalogues import one_more_kind


@pytest.mark.parametrize("controller", ["random", "heuristic"])
@pytest.mark.parametrize("middle", [False, True])
def test_a_killed_growth_goes_on_bit_for_bit(controller: str, middle: bool, tmp_path: Path) -> None:
    def start() -> tuple[esper.Grower, Any]:
        torch.manual_seed(11)
        model = make_mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
        settings = {"controller": controller, "schedulers": [scheduler], "evaluate": loss_of, "measure": "loss"}
        return make_grower(model=model, optimizer=optimizer, **settings), scheduler

    def run(grower: esper.Grower, scheduler: Any, epochs: int) -> list[str]:
        told = []
        for _ in range(epochs):
            train(grower)
            scheduler.step()
            told.append(str(grower.step(loss=0.5)))
        return told

    grower, scheduler = start()
    run(grower, scheduler, 8)
    if middle:
        train(grower, steps=1)
    grower.save(tmp_path / "growth.pt")
    expected = run(grower, scheduler, 8)
    resumed, scheduler = start()
    torch.manual_seed(99)
    resumed.load(tmp_path / "growth.pt")
    assert run(resumed, scheduler, 8) == expected
    one, other = take_snapshot(resumed.grafted), take_snapshot(grower.grafted)
    assert_same(one.tensors, other.tensors)
    assert_same(one.groups[0].states, other.groups[0].states)
    assert one.groups[0].settings == other.groups[0].settings
    assert one.table.equals(other.table)
    assert [str(decision) for decision in resumed.history] == [str(decision) for decision in grower.history]
    assert len(resumed.history) == 16


def test_a_rollback_after_resuming_returns_to_the_same_epoch(tmp_path: Path) -> None:
    scores = iter([0.5] * 5)
    grower = make_grower(controller=Script(LIFE), evaluate=lambda: next(scores))
    grow(grower, 3)
    train(grower)
    grower.save(tmp_path / "growth.pt")
    later = iter([0.5, math.nan])
    resumed = make_grower(controller=Script(LIFE), evaluate=lambda: next(later))
    resumed.load(tmp_path / "growth.pt")
    assert resumed.step().rolled_back is not None
    assert resumed.grafted.slot("1").stage is Stage.BLENDING


def test_files_that_are_no_growth_are_one_clear_error(tmp_path: Path) -> None:
    grower = make_grower()
    with pytest.raises(InputError, match="there is no growth file at"):
        grower.load(tmp_path / "none.pt")
    (tmp_path / "noise.pt").write_bytes(b"noise")
    with pytest.raises(InputError, match="is cut short or is no growth file"):
        grower.load(tmp_path / "noise.pt")
    (tmp_path / "other.pt").write_bytes(pack_state({"weights": 1}))
    with pytest.raises(InputError, match=r"other.pt was not written by"):
        grower.load(tmp_path / "other.pt")
    grower.save(tmp_path / "growth.pt")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["growth.pt", "noise.pt", "other.pt"]
    for other, message in (
        (make_grower(at=["3"]), "has slots at 1, 3; here are 3"),
        (make_grower(controller="never"), "was decided by 'script'; here decides 'never'"),
        (make_grower(model=nn.Sequential(*make_mlp(), nn.Linear(3, 3))), "not of this host"),
    ):
        with pytest.raises(InputError, match=message):
            other.load(tmp_path / "growth.pt")


def altered(state: Any, place: tuple[Any, ...], change: Any) -> Any:
    """A copy of `state` with the value at `place` removed (no change given) or replaced."""
    state = copy.deepcopy(state)
    inner = state
    for key in place[:-1]:
        inner = inner[key]
    if change is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = change
    return state


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (("controller",), None),
        (("random_state",), None),
        (("random_state",), torch.zeros(3, dtype=torch.uint8)),
        (("seeds",), torch.zeros(3, dtype=torch.uint8)),
        (("signals", "score_history"), None),
        (("signals", "epoch"), torch.zeros(1)),
        (("history",), [{"op": 99}]),
        (("guard",), {}),
        (("watch", "sums"), "x"),
        (("good",), {}),
        (("present", "snapshot", "table", "stage"), torch.tensor([[77, 0]])),
        (("present", "snapshot", "table", "alpha"), torch.zeros(1, 3)),
        (("present", "snapshot", "tensors", "host.0.weight"), torch.zeros(2, 2)),
        (("present", "snapshot", "tensors", "slots.0.seed.scale"), None),
        (("good", "snapshot", "groups"), [[None, {}, [], []]]),
        (("good", "snapshot", "groups", 0, 2), [{}]),
        (("present", "schedulers"), [{}]),
        (("controller",), {"wrong": 1}),
    ],
)
def test_a_growth_that_cannot_be_used_changes_nothing(place: tuple[Any, ...], change: Any) -> None:
    saved = make_grower(controller=Script(LIFE))
    grow(saved, 5)
    grower = make_grower(controller=Script(LIFE))
    grow(grower, 2)
    before, dice = grower.state_dict(), torch.get_rng_state()
    with pytest.raises(InputError):
        grower.load_state_dict(altered(saved.state_dict(), place, change))
    assert_same(grower.state_dict()["present"]["snapshot"]["tensors"], before["present"]["snapshot"]["tensors"])
    assert_same(grower.state_dict()["signals"], before["signals"])
    assert torch.equal(torch.get_rng_state(), dice)
    assert grower.state_dict()["history"] == before["history"]
    assert grower.state_dict()["controller"] == before["controller"]
    grow(grower, 6)
    assert grower.grafted.slot("1").stage is Stage.FOSSILIZED  # and it can go on


def test_a_growth_of_another_catalogue_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    saved = make_grower(controller=Script(LIFE))
    grow(saved, 3)
    saved.save(tmp_path / "growth.pt")
    with one_more_kind(Family.CONV2D):  # the model has no place for it
        make_grower(controller=Script(LIFE)).load(tmp_path / "growth.pt")
    with one_more_kind():
        grower = make_grower(controller=Script(LIFE))
        before = grower.state_dict()
        with pytest.raises(InputError, match=r"the saved growth was made with another catalogue .* here it is 'shift'"):
            grower.load(tmp_path / "growth.pt")
        assert_same(grower.state_dict()["present"]["snapshot"]["tensors"], before["present"]["snapshot"]["tensors"])
        grow(grower, 1)
    (tmp_path / "old.pt").write_bytes(pack_state({"kind": "esper growth", "format": 1}))
    with pytest.raises(InputError, match="older version and does not say with which blueprints it was made; grow the"):
        saved.load(tmp_path / "old.pt")
