"""A curriculum: phases that a run goes through before its own world."""

from pathlib import Path
from typing import Any

import pytest

import esper
from esper.leyline import InputError
from esper.simic.training import InterruptedRunError, Phase, Trainer, TrainingConfig
from tests.simic.training.runs import assert_same_run, tiny_config

PHASES = (Phase(until=0.25, budget=0), Phase(until=0.6, price=0.5))


def test_a_round_has_the_settings_of_its_phase() -> None:
    config = tiny_config(curriculum=PHASES, price=0.03, budget=300)
    assert [config.phase_in(round_index) for round_index in range(4)] == [0, 1, 1, 2]
    seen = [(phase.budget, phase.price) for phase in map(config.world.in_phase, range(3))]
    assert seen == [(0, 0.03), (300, 0.5), (300, 0.03)]
    assert config.world.in_phase(2).curriculum == ()


def test_a_share_that_is_a_whole_number_of_rounds_ends_there() -> None:
    config = tiny_config(curriculum=(Phase(until=0.07, budget=0),), rounds=100)
    assert 0.07 * 100 > 7  # as computed
    assert [config.phase_in(6), config.phase_in(7)] == [0, 1]


def test_a_budget_of_nothing_grows_nothing_until_its_phase_is_over() -> None:
    config = tiny_config(curriculum=PHASES[:1], op_bias=(-5.0, 0.0, 0.0, 0.0), episode_length=12)
    history = Trainer(config).run().history
    assert history[0]["ops"]["GERMINATE"] == 0
    assert all(entry["ops"]["GERMINATE"] > 0 for entry in history[1:])


@pytest.mark.parametrize("steps", [3, 14, 30])
def test_a_run_resumes_bit_for_bit_in_any_phase(tmp_path: Path, steps: int) -> None:
    config = tiny_config(curriculum=PHASES, validate_every=0)
    esper.train(config, tmp_path / "straight")
    calls = iter(range(10_000))  # the first 16 are the steps of the two baselines
    with pytest.raises(InterruptedRunError):
        esper.train(config, tmp_path / "cut", should_stop=lambda: next(calls) >= 16 + steps)
    esper.train(config, tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "straight", tmp_path / "cut")


def test_phases_survive_json() -> None:
    config = tiny_config(curriculum=(*PHASES, Phase(0.7, tasks=("digits",), price=(0.01, 0.1))))
    assert TrainingConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{"budget": 3}], r"curriculum\[0\].until has no default"),
        ([{"until": 1.5}], r"world.curriculum.until must be in \(0, 1\); got 1.5"),
        ([{"until": 0.5}, {"until": 0.2}], r"curriculum\[1\].until must be in \(0.5, 1\); got 0.2"),
        ([{"until": 0.5, "tasks": ["digits", "mnist1d"]}], r"curriculum\[0\].tasks must name 1 tasks"),
        ([{"until": 0.5, "budget": "much"}], r"world.curriculum.budget must be int"),
        ([{"until": 0.5, "speed": 1}], r"unknown config field 'world.curriculum\[0\].speed'"),
        (["early"], r"curriculum\[0\] must hold fields \(until, tasks, price, budget\); got 'early'"),
    ],
)
def test_a_wrong_phase_is_named(phases: list[Any], message: str) -> None:
    data = tiny_config().to_dict()
    with pytest.raises(InputError, match=message):
        TrainingConfig.from_dict(data | {"world": data["world"] | {"curriculum": phases}})
