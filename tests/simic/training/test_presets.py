"""Presets: every task has one, and all of them are valid configs."""

import pytest

from esper.leyline import InputError
from esper.simic.training import TrainingConfig, preset, preset_fields, preset_names
from esper.tolaria import task_names


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_a_valid_config(name: str) -> None:
    config = preset(name)
    assert config.tasks == ((name,) if name in task_names() else config.tasks)
    assert config.to_ppo_kwargs()["num_minibatches"] <= config.envs * len(config.tasks)
    changed = {field for field, value in config.to_dict().items() if value != TrainingConfig().to_dict()[field]}
    assert changed <= set(preset_fields(name))


def test_every_task_has_a_preset_and_so_have_tasks_of_families() -> None:
    assert set(task_names()) <= set(preset_names())
    assert preset("mnist1d:seed=3").tasks == ("mnist1d:seed=3",)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(InputError, match="unknown preset 'mnist2d'"):
        preset("mnist2d")
