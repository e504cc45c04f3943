"""Growth files and states of growing models: whatever is in them, they load, or are refused and change nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.nissa.state_files import pack_state
from tests.api.growing.builders import LIFE, Script, assert_same, grow, make_grower
from tests.fuzzing import damaged_bytes, mutations, works_or_is_refused

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def grown(epochs: int) -> esper.Grower:
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    grower = make_grower(model=model, optimizer=optimizer, schedulers=[scheduler], controller=Script(LIFE))
    grow(grower, epochs)
    return grower


def fingerprint(grower: esper.Grower) -> Any:
    """The tensors that may not change when a load is refused: weights, seeds, table, moments, signals."""
    state = grower.state_dict()
    snapshot = state["present"]["snapshot"]
    return [snapshot["tensors"], snapshot["table"], [group[2] for group in snapshot["groups"]], state["signals"]]


def load(grower: esper.Grower, path: Path) -> bool:
    grower.load(path)
    return True


def test_altered_growth_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    saved = {"kind": "esper growth", "format": 1, **grown(5).state_dict()}
    grower, path = grown(2), tmp_path / "growth.pt"
    before, unchanged = grower.state_dict(), fingerprint(grower)
    for case, state in mutations(saved, seed=0, count=1500):
        path.write_bytes(pack_state(state if isinstance(state, dict) else {"state": state}))
        loaded = works_or_is_refused(case, lambda: load(grower, path))
        if loaded is None:
            assert_same(fingerprint(grower), unchanged)
        else:
            grower.load_state_dict(before)
    grow(grower, 1)


def test_damaged_growth_files_are_never_loaded(tmp_path: Path) -> None:
    saved, grower, path = grown(5), grown(2), tmp_path / "growth.pt"
    saved.save(path)
    whole, unchanged = path.read_bytes(), fingerprint(grower)
    for case, data in damaged_bytes(whole, seed=0, count=700):
        if data == whole:
            continue
        path.write_bytes(data)
        assert works_or_is_refused(case, lambda: load(grower, path), naming="growth.pt") is None, case
    assert_same(fingerprint(grower), unchanged)


def test_altered_states_of_models_are_refused_and_plant_nothing() -> None:
    saved = dict(grown(5).model.state_dict())
    seeds = [key for key in saved if key.startswith("esper_seeds.")]
    grower = grown(1)
    before = grower.state_dict()
    for case, state in mutations(saved, seed=0, count=800):
        try:
            works_or_is_refused(case, lambda state=state: grower.model.load_state_dict(state))  # type: ignore[misc]
        except AssertionError as error:  # torch has its own words for what belongs to the host
            own = not any(key in case for key in seeds)
            if not own or not isinstance(error.__cause__, RuntimeError | TypeError | AttributeError):
                raise
        grower.load_state_dict(before)
