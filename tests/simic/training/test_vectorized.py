"""Many hosts at once: of several tasks, in several processes, and one run all the same."""

from pathlib import Path

import esper
from tests.simic.training.runs import assert_same_run, events, tiny_config
from tests.worlds import TINY


def test_events_of_hosts_tell_where_and_when(straight: Path, tmp_path: Path) -> None:
    pooled = tiny_config(tasks=("digits", "mnist1d"), workers=2, rounds=2, episode_length=2)
    esper.train(pooled, tmp_path / "pool")
    for folder, tasks, rounds in ((straight, (TINY,), 4), (tmp_path / "pool", pooled.world.tasks, 2)):
        starts = [event for event in events(folder) if event["type"] == "episode_started"]
        hosts = [(task, 4 * index + host) for index, task in enumerate(tasks) for host in range(4)]
        assert [(event["payload"]["task"], event["env_id"]) for event in starts] == hosts * rounds
        assert [event["round"] for event in starts[:: len(hosts)]] == [*range(1, rounds + 1)]
        assert len({event["payload"]["seed"] for event in starts}) == len(starts)


def test_hosts_in_workers_give_the_same_run(tmp_path: Path) -> None:
    shared = {"tasks": ("digits",), "envs": 2, "rounds": 1, "episode_length": 4, "validation_episodes": 1}
    for workers in (1, 2):
        esper.train(tiny_config(workers=workers, **shared), tmp_path / str(workers))
    assert_same_run(tmp_path / "1", tmp_path / "2")
