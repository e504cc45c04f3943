"""What a controller is worth without part of what it does: without order in time, or without looking at all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.tamiyo import Controller, run_episodes
from esper.tamiyo.simple import wait
from esper.tasks import Task
from esper.tolaria import EpisodeResult, EpisodeSettings, Situation


@dataclass(frozen=True, slots=True)
class Recording:
    """What a controller saw, and what it did, in each step of N hosts side by side."""

    situations: list[Situation]
    actions: list[Tensor]


class Recorder:
    """Decides as another controller does, and keeps all of it; `recordings` has one entry for every `reset`."""

    def __init__(self, controller: Controller) -> None:
        self.name = controller.name
        self._controller = controller
        self.recordings: list[Recording] = []

    def reset(self, num_hosts: int, seed: int) -> None:
        self._controller.reset(num_hosts, seed)
        self.recordings.append(Recording([], []))

    def decide(self, situation: Situation) -> Tensor:
        actions = self._controller.decide(situation)
        self.recordings[-1].situations.append(situation)
        self.recordings[-1].actions.append(actions)
        return actions


class _Again:
    """Goes through recordings a second time, `reset` by `reset`."""

    name = "again"

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._left = list(recordings)

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # the same hosts in the same order
        self._recording, self._step = self._left.pop(0), -1


class Shuffled(_Again):
    """A controller that is shown what it saw before in another order of epochs; only what is legal is of now."""

    def __init__(self, controller: Controller, recordings: Sequence[Recording]) -> None:
        super().__init__(recordings)
        self._controller = controller

    def reset(self, num_hosts: int, seed: int) -> None:
        super().reset(num_hosts, seed)
        self._controller.reset(num_hosts, seed)
        steps = len(self._recording.situations)
        self._order = torch.randperm(steps, generator=torch.Generator().manual_seed(seed)).tolist()

    def decide(self, situation: Situation) -> Tensor:
        self._step += 1
        shown = self._recording.situations[self._order[self._step]]
        actions = self._controller.decide(replace(shown, masks=situation.masks))
        return _legal(actions, situation)


class Replayed(_Again):
    """Does to every host what was done to the next one, whatever comes of it; what is not legal is left out."""

    def decide(self, situation: Situation) -> Tensor:
        self._step += 1
        return _legal(self._recording.actions[self._step].roll(-1, 0), situation)


def _legal(actions: Tensor, situation: Situation) -> Tensor:
    return torch.where(situation.masks.allow(actions)[:, None], actions, wait(len(actions)))


def run_ablations(
    task: Task, controller: Controller, seeds: Sequence[int], settings: EpisodeSettings
) -> dict[str, list[EpisodeResult]]:
    """Per ablation, an episode of each seed."""
    recorder = Recorder(controller)
    run_episodes(task, recorder, seeds, settings)
    shuffled = Shuffled(controller, recorder.recordings)
    replayed = Replayed(recorder.recordings)
    return {
        "observations shuffled in time": run_episodes(task, shuffled, seeds, settings),
        "actions replayed on other seeds": run_episodes(task, replayed, seeds, settings),
        "without merit": run_episodes(task, controller, seeds, replace(settings, merit=False)),
    }
