"""Fixtures of several test files."""

import pytest
import torch

from tests.second_device import SECOND, SecondDevice


@pytest.fixture
def drawing(second_device: SecondDevice, monkeypatch: pytest.MonkeyPatch) -> SecondDevice:
    """The second device as torch's accelerator, whose generator it asks for."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: SECOND)
    monkeypatch.setattr(torch, "get_device_module", lambda _: second_device)
    return second_device
