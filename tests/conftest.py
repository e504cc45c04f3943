"""Settings for every test: one torch thread, a fixed seed, a hypothesis profile without deadlines."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("esper", deadline=None, max_examples=100)
settings.load_profile("esper")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
