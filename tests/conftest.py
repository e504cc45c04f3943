"""Settings for every test: one torch thread, a fixed seed, a hypothesis profile without deadlines."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from esper.tolaria import compute
from tests.second_device import SECOND, SecondDevice

settings.register_profile("esper", deadline=None, max_examples=100)
settings.load_profile("esper")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def second_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondDevice]:
    """A machine that has the second device, entered for the whole test."""
    monkeypatch.setattr(compute, "present_devices", lambda: ["cpu", str(SECOND)])
    with SecondDevice() as device:
        yield device
