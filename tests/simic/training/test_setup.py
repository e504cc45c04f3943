"""What a run is made of: hosts where the blueprints are those of whoever asks, and one executor for the whole run."""

from pathlib import Path

import pytest

import esper
from esper.leyline import OtherCatalogueError
from esper.nissa import Hub
from esper.simic.training import RunFolder
from esper.simic.training.setup import EnvRecipe
from esper.tolaria import EpisodeSettings, Shard
from tests.catalogues import one_more_kind
from tests.simic.training.runs import tiny_config
from tests.worlds import tiny_task


def test_a_worker_that_knows_other_blueprints_says_so_and_makes_no_hosts() -> None:
    with one_more_kind():
        recipe = EnvRecipe(tiny_task(), EpisodeSettings(length=4), 0, "loop", None)
        assert recipe(Shard(0, 1), Hub()).num_envs == 1
    with pytest.raises(OtherCatalogueError, match=r"a worker knows other blueprints .* register them at the top"):
        recipe(Shard(0, 1), Hub())


def test_the_executor_is_settled_once_for_the_whole_run(tmp_path: Path) -> None:
    esper.train(tiny_config(executor="auto", rounds=1), tmp_path / "run")
    assert RunFolder(tmp_path / "run").stored_config().world.executor in ("loop", "stacked", "native")
