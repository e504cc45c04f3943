"""Growth on many architectures: all of them can grow, and most keep a bypass."""

import pytest
from benchmarks.breadth.awkward import AWKWARD
from benchmarks.breadth.handmade import HANDMADE
from benchmarks.breadth.life import live


@pytest.mark.slow
def test_every_architecture_grows_and_half_of_them_keep_a_bypass() -> None:
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    from benchmarks.breadth.transformer_models import TRANSFORMERS

    everything = [*HANDMADE, *TRANSFORMERS, *AWKWARD]
    lives = [live(architecture, number) for number, architecture in enumerate(everything)]
    assert len(lives) >= 111
    assert [life for life in lives if life.outcome != "passed"] == []
    assert sum(life.bypass for life in lives) >= len(lives) / 2


@pytest.mark.parametrize("number", [0, 7, 19, -1, -2, -3, -4])
def test_a_few_architectures_grow(number: int) -> None:
    architecture = [*HANDMADE, *AWKWARD][number]
    life = live(architecture, number % 5)
    assert (life.outcome, life.bypass, life.name) == ("passed", True, architecture.name)
