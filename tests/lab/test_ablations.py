"""Controllers without part of what they do: what they are shown, and what they do all the same."""

import torch
from torch import Tensor

from esper.tamiyo import Planting, Schedule, run_episodes
from esper.tamiyo.simple import wait
from esper.tolaria import EpisodeSettings, Situation
from esper_lab.ablations import Recorder, Replayed, Shuffled, run_ablations
from tests.worlds import tiny_task


class Watcher:
    """Waits, and remembers the epochs it was shown."""

    name = "watcher"

    def __init__(self) -> None:
        self.shown: list[list[int]] = []

    def reset(self, num_hosts: int, seed: int) -> None:
        self.shown.append([])

    def decide(self, situation: Situation) -> Tensor:
        self.shown[-1].append(int(situation.signals.epoch[0]))
        return wait(situation.table.shape[0])


class ByHost:
    """Plants in the first epoch: in each host another slot."""

    name = "by host"

    def reset(self, num_hosts: int, seed: int) -> None:
        pass

    def decide(self, situation: Situation) -> Tensor:
        actions = wait(situation.table.shape[0])
        if int(situation.signals.epoch[0]) == 0:
            for host in range(len(actions)):
                actions[host] = torch.tensor([host, 2, 0, 1])
        return torch.where(situation.masks.allow(actions)[:, None], actions, 0)


def test_shuffled_shows_every_epoch_once_and_in_another_order() -> None:
    task, recorder, watcher = tiny_task(episode_length=12), Recorder(Watcher()), Watcher()
    run_episodes(task, recorder, [4, 5])
    run_episodes(task, Shuffled(watcher, recorder.recordings), [4, 5])
    assert sorted(watcher.shown[0]) == list(range(12))
    assert watcher.shown[0] != list(range(12))


def test_replayed_does_to_a_host_what_was_done_to_the_next() -> None:
    task, recorder = tiny_task(episode_length=4), Recorder(ByHost())
    run_episodes(task, recorder, [1, 2, 3])
    again = Recorder(Replayed(recorder.recordings))
    run_episodes(task, again, [1, 2, 3])
    first = recorder.recordings[0].actions[0]
    assert len(set(first[:, 0].tolist())) == 3
    assert torch.equal(again.recordings[0].actions[0], first.roll(-1, 0))


def test_a_schedule_that_looks_at_nothing_but_the_epoch_loses_nothing_but_order() -> None:
    task, plan, settings = tiny_task(episode_length=8), Schedule([Planting(1, 0, 3)]), EpisodeSettings()
    ablated = run_ablations(task, plan, [3, 4], settings)
    whole = run_episodes(task, plan, [3, 4], settings)
    assert ablated["actions replayed on other seeds"] == whole
    assert ablated["without merit"] == whole
    assert ablated["observations shuffled in time"] != whole
