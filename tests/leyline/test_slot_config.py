"""Slot configs: ordered, hashable, and the same after a trip through plain types."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import InputError, SlotConfig


def test_default_slot_config_is_one_cached_instance_of_three_slots() -> None:
    assert SlotConfig.default() is SlotConfig.default()
    assert SlotConfig.default().slot_ids == ("r0c0", "r0c1", "r0c2")
    assert {SlotConfig.default(): "usable as a key"}[SlotConfig.of_size(3)] == "usable as a key"


def test_slot_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SlotConfig.default().slot_ids = ("r0c0",)  # type: ignore[misc]


@given(st.integers(1, 20))
def test_slot_config_survives_plain_types(num_slots: int) -> None:
    config = SlotConfig.of_size(num_slots)
    assert SlotConfig.from_dict(config.to_dict()) == config
    assert config.num_slots == num_slots


def test_slot_config_survives_a_safe_checkpoint(tmp_path: Path) -> None:
    torch.save({"slot_config": SlotConfig.default().to_dict()}, tmp_path / "checkpoint.pt")
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert SlotConfig.from_dict(loaded["slot_config"]) == SlotConfig.default()


@pytest.mark.parametrize("slot_ids", [(), ("r0c0", "r0c0"), ("r0c1", "r0c0"), ("left",)])
def test_slot_config_refuses_unusable_ids(slot_ids: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        SlotConfig(slot_ids)


def test_slot_config_names_the_valid_ids_when_asked_for_another() -> None:
    assert SlotConfig.default().index("r0c1") == 1
    with pytest.raises(InputError, match="r0c0, r0c1, r0c2"):
        SlotConfig.default().index("r9c9")
    with pytest.raises(InputError, match="slot_ids"):
        SlotConfig.from_dict({"ids": []})
