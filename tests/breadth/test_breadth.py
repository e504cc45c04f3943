"""Growth on many architectures: nearly all can grow, and what cannot says so."""

import pytest
from benchmarks.breadth.handmade import HANDMADE
from benchmarks.breadth.life import live


@pytest.mark.slow
def test_nearly_every_architecture_grows_and_the_others_are_refused() -> None:
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    from benchmarks.breadth.transformer_models import TRANSFORMERS

    lives = [live(architecture, number) for number, architecture in enumerate([*HANDMADE, *TRANSFORMERS])]
    assert len(lives) >= 60
    assert [life for life in lives if life.outcome == "failed"] == []
    assert sum(life.outcome == "passed" for life in lives) >= 0.95 * len(lives)


@pytest.mark.parametrize("number", [0, 7, 19])
def test_a_few_architectures_grow(number: int) -> None:
    life = live(HANDMADE[number], number)
    assert (life.outcome, life.name) == ("passed", HANDMADE[number].name)
