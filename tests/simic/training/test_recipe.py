"""How hosts are made: only where the blueprints are those of whoever asks."""

import pytest

from esper.leyline import OtherCatalogueError
from esper.nissa import Hub
from esper.simic.training.setup import EnvRecipe
from esper.tolaria import EpisodeSettings, Shard
from tests.catalogues import one_more_kind
from tests.worlds import tiny_task


def test_a_worker_that_knows_other_blueprints_says_so_and_makes_no_hosts() -> None:
    with one_more_kind():
        recipe = EnvRecipe(tiny_task(), EpisodeSettings(length=4), 0, "loop", None)
        assert recipe(Shard(0, 1), Hub()).num_envs == 1
    with pytest.raises(OtherCatalogueError, match=r"a worker knows other blueprints .* register them at the top"):
        recipe(Shard(0, 1), Hub())
