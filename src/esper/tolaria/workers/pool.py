"""The pool: one environment whose hosts run in several workers."""

import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import ActionMasks, check_actions
from esper.leyline import InputError, WorkerError
from esper.nissa import Hub
from esper.tolaria.environment import Environment, Step
from esper.tolaria.records import EpisodeResult, Situation, join, share_out
from esper.tolaria.workers.process import ProcessTransport, Transport
from esper.tolaria.workers.worker import Command, EnvFactory, Reply, Request, View, to_bytes

DEFAULT_TIMEOUT = 600.0
"""Seconds after which a worker that does not answer is given up."""
Question = tuple[Command, tuple[Any, ...]]
_LOG = logging.getLogger(__name__)


class WorkerPool(Environment):
    """N hosts in several workers, with the interface and, for the same seeds, the episodes of one `GrowthEnv`.

    A worker that dies or does not answer is replaced, and its hosts begin new episodes. The step in which that shows,
    or the next one, marks them in `info.dropped [N]`: nothing happened to them in it, their episodes so far are to be
    thrown away, and what is observed is the beginning of others.

    An interrupt inside a call leaves workers between two steps: close the pool, or load a state.
    """

    def __init__(
        self,
        make: EnvFactory,
        num_hosts: int,
        workers: int,
        seed: int = 0,
        *,
        hub: Hub | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        start: Callable[[float], Transport] = ProcessTransport,
    ) -> None:
        if not 1 <= workers <= num_hosts:
            raise InputError(f"workers must be 1 to the number of hosts, {num_hosts}; got {workers}")
        super().__init__(num_hosts, seed)
        self._make = make  # what it owns lives as long as the workers, which may read it
        self._factory = _packed(make)
        self._hub = hub or Hub()
        self._timeout = timeout
        self._start = start
        self._ids = count()
        self._shards = share_out(num_hosts, workers)
        self._ended = torch.ones(num_hosts, dtype=torch.bool)
        self._lost: set[int] = set()
        """Workers that were replaced since the last step."""
        self._workers: list[Transport] = []
        self._views: list[View] = []
        try:
            self._workers += [start(timeout) for _ in self._shards]
            self._views += self._open_all()
        except BaseException:
            self.close()
            raise

    @property
    def situation(self) -> Situation:
        return join([view.situation for view in self._views])

    @property
    def observations(self) -> Tensor:
        return join([view.observations for view in self._views])

    def reset(
        self, seeds: Sequence[int] | None = None, *, hosts: Sequence[int] | None = None
    ) -> tuple[Tensor, ActionMasks]:
        chosen = list(range(self.num_envs) if hosts is None else hosts)
        given = self._next_seeds(chosen) if seeds is None else list(seeds)
        if len(given) != len(chosen):
            raise InputError(f"{len(chosen)} hosts need as many seeds; got {len(given)}")
        self._ended[chosen] = True  # what was running is over because the caller says so, and is not dropped
        # Every worker that has one of these hosts gets their seeds, counted in its own shard.
        questions: dict[int, Question] = {}
        for worker, shard in enumerate(self._shards):
            mine = [(seed, host - shard.first_host) for seed, host in zip(given, chosen, strict=True) if host in shard]
            if mine:
                questions[worker] = (Command.RESET, (*zip(*mine, strict=True), self._hub.least))
        for worker, view in self._ask_surely(questions).items():
            self._views[worker] = view
            # A shard that began anew as a whole has nothing left that was lost.
            if len(questions[worker][1][1]) == self._shards[worker].num_hosts:
                self._lost.discard(worker)
        self._ended[chosen] = False
        self._episodes[chosen] += 1
        return self.observations, self.situation.masks

    def step(self, actions: Tensor) -> Step:
        if self._ended.all():
            raise InputError("this episode is over; start another")
        situation = self.situation
        # Here and not in the workers, of which some would have taken their step before another refuses.
        check_actions(situation.table, torch.where(self._ended[:, None], 0, actions), situation.masks)
        shares = [(actions[shard.hosts],) for shard in self._shards]
        answers = self._ask({worker: (self._kind_of_step(worker), share) for worker, share in enumerate(shares)})
        lost = [worker for worker in range(len(shares)) if worker not in answers]
        # Those in the place of lost workers have only just begun, and say so.
        answers |= self._ask_surely({worker: (Command.IDLE, shares[worker]) for worker in lost})
        steps: list[Step] = [answers[worker] for worker in range(len(shares))]
        self._views = [View(step.observations, step.info.outcome.after) for step in steps]
        joined = join(steps)
        self._ended |= joined.terminated | joined.truncated
        return joined._replace(info=replace(joined.info, dropped=self._take_dropped()))

    def results(self) -> list[EpisodeResult]:
        if not self._ended.all():
            raise InputError("results are known once every episode is over")
        answers = self._ask(dict.fromkeys(range(len(self._shards)), (Command.RESULTS, ())))
        if len(answers) < len(self._shards):
            raise WorkerError("a worker was lost, and the networks that its hosts ended with are lost with it")
        return [result for worker in sorted(answers) for result in answers[worker]]

    def state_dict(self) -> dict[str, Any]:
        answers = self._ask_surely(dict.fromkeys(range(len(self._shards)), (Command.STATE_DICT, ())))
        return {
            "workers": [answers[worker] for worker in sorted(answers)],
            "episodes": self._episodes.clone(),
            "ended": self._ended.clone(),
            "seed": self.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["workers"]) != len(self._shards) or len(state["ended"]) != self.num_envs:
            raise InputError(
                f"the saved state is of {len(state['workers'])} workers with {len(state['ended'])} hosts; "
                f"here are {len(self._shards)} with {self.num_envs}"
            )
        questions = {worker: (Command.LOAD_STATE_DICT, (share,)) for worker, share in enumerate(state["workers"])}
        answers = self._ask_surely(questions)
        self._views = [answers[worker] for worker in sorted(answers)]
        self._episodes, self._ended = state["episodes"].clone(), state["ended"].clone()
        self.seed = state["seed"]
        self._lost.clear()

    def close(self) -> None:
        while self._workers:
            self._workers.pop().close()

    def _kind_of_step(self, worker: int) -> Command:
        """A shard whose hosts all wait, or that began anew since the last step, does not take part in this one."""
        waits = bool(self._ended[self._shards[worker].hosts].all())
        return Command.IDLE if waits or worker in self._lost else Command.STEP

    def _take_dropped(self) -> Tensor:
        dropped = torch.zeros(self.num_envs, dtype=torch.bool)
        for worker in self._lost:
            dropped[self._shards[worker].hosts] = True
        self._lost.clear()
        return dropped

    def _open_all(self) -> list[View]:
        answers, losses = self._exchange({worker: self._opening(worker) for worker in range(len(self._shards))})
        if losses:
            raise WorkerError(
                f"worker {min(losses)} could not be started: {losses[min(losses)]}. "
                "Workers import the script that starts them, so it has to do so under `if __name__ == '__main__':`"
            )
        return [answers[worker] for worker in sorted(answers)]

    def _opening(self, worker: int) -> Question:
        least = self._hub.least if self._hub.listening else None
        return Command.OPEN, (self._factory, self._shards[worker], least)

    def _replace(self, worker: int, why: WorkerError) -> None:
        """A new worker, whose hosts begin new episodes, for one that is lost."""
        places = self._shards[worker].hosts
        unfinished = int((~self._ended[places]).sum())
        self.dropped_episodes += unfinished
        _LOG.warning(
            "worker %d is lost: %s; it is replaced, and %d unfinished episodes are dropped", worker, why, unfinished
        )
        self._workers[worker].close()
        self._workers[worker] = self._start(self._timeout)
        seeds = self._next_seeds(range(self.num_envs)[places])
        # It opens its hosts and begins their next episodes; what fails now fails for good.
        for question in (self._opening(worker), (Command.RESET, (seeds, None, self._hub.least))):
            answers, losses = self._exchange({worker: question})
            if losses:
                raise WorkerError(f"worker {worker} was lost, and so was the one in its place: {losses[worker]}")
            self._views[worker] = answers[worker]
        self._episodes[places] += 1
        self._ended[places] = False
        self._lost.add(worker)

    def _ask(self, questions: Mapping[int, Question]) -> dict[int, Any]:
        """The answers by worker; those of lost ones, which have been replaced since, are absent."""
        answers, losses = self._exchange(questions)
        for worker, why in losses.items():
            self._replace(worker, why)
        return answers

    def _ask_surely(self, questions: Mapping[int, Question]) -> dict[int, Any]:
        """The answers by worker; where one was lost, of the one in its place."""
        answers = self._ask(questions)
        lost = {worker: question for worker, question in questions.items() if worker not in answers}
        answers |= self._ask(lost)
        if len(answers) < len(questions):
            raise WorkerError(f"worker {min(lost)} was lost, and so was the one in its place")
        return answers

    def _exchange(self, questions: Mapping[int, Question]) -> tuple[dict[int, Any], dict[int, WorkerError]]:
        """Ask several workers at once, and wait for all; an error in one is raised when all have answered."""
        if questions and not self._workers:
            raise InputError("the workers are closed")
        sent: dict[int, Request] = {}
        replies: dict[int, Reply] = {}
        losses: dict[int, WorkerError] = {}
        # All are asked before any is waited for, so that they work side by side.
        for worker, (command, arguments) in questions.items():
            request = Request(next(self._ids), command, arguments)
            try:
                self._workers[worker].send(request)
                sent[worker] = request
            except WorkerError as error:
                losses[worker] = error
        for worker, request in sent.items():
            try:
                replies[worker] = self._workers[worker].receive(request)
            except WorkerError as error:
                losses[worker] = error
        for worker, reply in replies.items():
            numbered = self._hub.bind(first_host=self._shards[worker].first_host)
            for event in reply.events:
                numbered.emit(event)
        # Only now, or the replies of the others would be left in their pipes.
        for reply in replies.values():
            if reply.error is not None:
                raise reply.error
        return {worker: reply.value for worker, reply in replies.items()}, losses


def _packed(make: EnvFactory) -> bytes:
    try:
        return to_bytes(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(f"what workers are to run cannot be sent to them: {error}") from error
