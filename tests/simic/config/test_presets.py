"""Presets: every task has one, and they differ from the defaults by what they say."""

import pytest

from esper.leyline import InputError
from esper.simic.config import TrainingConfig, preset, preset_names
from esper.simic.training.setup import require_known
from esper.tasks import tasks_of
from tests.simic.builders import config_of


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name: str) -> None:
    config = preset(name)
    # Series of the UCR archive come with an optional package, and are refused in a sentence where it is absent.
    known = tuple(task for task in config.world.tasks if not task.startswith("ucr:"))
    require_known(config_of(config, tasks=known))
    assert (config.learner.num_minibatches or 1) <= config.world.episodes


def test_presets_change_what_they_say_and_nothing_else() -> None:
    digits, pair = preset("digits"), preset("pair")
    assert digits.world.tasks == ("digits",)
    assert digits.learner == TrainingConfig().learner
    assert (pair.rounds, pair.world.envs, pair.world.price, pair.lessons.detail_smoothing) == (34, 64, 0.03, 0.6)
    assert preset("pair-long").world.batches_per_epoch == 100


def test_unknown_presets_get_the_list_of_known_ones() -> None:
    with pytest.raises(InputError, match="unknown preset 'fast'; choose one of: any-host, pair, pair-long, quick"):
        preset("fast")


def test_the_preset_for_any_host_learns_from_all_training_tasks() -> None:
    config = preset("any-host")
    assert config.world.tasks == tasks_of("training")
    assert not set(config.world.tasks) & set(tasks_of("held-out"))
    assert (config.learner.architecture, config.lessons.teacher) == ("pointing", "search")
