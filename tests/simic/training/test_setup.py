"""What a run is made of: hosts where the blueprints are those of whoever asks, and one executor for the whole run."""

from pathlib import Path

import pytest

import esper
from esper.leyline import InputError, OtherCatalogueError
from esper.nissa import Hub
from esper.simic.training import RunFolder
from esper.simic.training.setup import EnvRecipe, require_shared_kinds
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


def test_tasks_without_a_common_kind_need_a_policy_that_knows_kinds_by_what_they_do() -> None:
    kinds = {"one": {"norm", "heavy"}, "two": {"norm", "mlp"}, "three": {"mlp", "gated"}}
    with pytest.raises(InputError, match=r"hosts of one and three share no kind of seed: heavy, norm .* gated, mlp"):
        require_shared_kinds(kinds, "flat")
    require_shared_kinds(kinds, "pointing")
    require_shared_kinds({name: kinds[name] for name in ("one", "two")}, "flat")
