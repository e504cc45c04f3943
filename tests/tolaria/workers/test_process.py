"""Workers as processes: they compute the same, may be killed, and leave nothing behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

import esper
from esper.leyline import InputError, WorkerError
from esper.tolaria import Environment, WorkerPool
from esper.tolaria.workers import Command, ProcessTransport, Request, process
from tests.worlds import tiny_task

WAIT = torch.zeros((3, 4), dtype=torch.int64)
LIMIT = 60.0
"""Seconds after which a test that hangs kills its workers, and so itself fails."""


def workers() -> list[BaseProcess]:
    return sorted(
        (child for child in multiprocessing.active_children() if child.name == "esper-worker"),
        key=lambda child: child.pid or 0,
    )


def kill_workers() -> None:
    for child in workers():
        child.kill()


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    watchdog = threading.Timer(LIMIT, kill_workers)
    watchdog.daemon = True
    watchdog.start()
    yield
    watchdog.cancel()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """A shell that starts tests in the background lets them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    made = esper.make_env(tiny_task(), envs=3, episode_length=5, seed=3, executor="loop", workers=2)
    assert isinstance(made, WorkerPool)
    yield made
    made.close()


def one() -> Environment:
    return esper.make_env(tiny_task(), envs=3, episode_length=5, seed=3, executor="loop")


def test_processes_compute_what_one_environment_does_bit_for_bit(pool: WorkerPool) -> None:
    alone = one()
    assert torch.equal(alone.reset()[0], pool.reset()[0])
    for _ in range(3):
        expected, given = alone.step(WAIT), pool.step(WAIT)
        assert torch.equal(expected.observations, given.observations)
        assert torch.equal(expected.rewards, given.rewards)
    state = pool.state_dict()
    after = pool.step(WAIT).observations
    pool.load_state_dict(state)
    assert torch.equal(pool.step(WAIT).observations, after)


def test_errors_in_a_process_come_back_and_it_lives_on(pool: WorkerPool) -> None:
    before = [child.pid for child in workers()]
    state = pool.state_dict()
    state["workers"].reverse()
    with pytest.raises(InputError, match="the saved population has 2 hosts; this one has 1"):
        pool.load_state_dict(state)
    pool.reset()
    pool.step(WAIT)
    assert [child.pid for child in workers()] == before


def test_a_killed_process_is_noticed_and_replaced(pool: WorkerPool) -> None:
    pool.reset()
    pool.step(WAIT)
    victim = workers()[0].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    step = pool.step(WAIT)
    assert int(step.info.dropped.sum()) in (1, 2)
    assert pool.dropped_episodes == int(step.info.dropped.sum())
    assert len(workers()) == 2
    assert victim not in [child.pid for child in workers()]
    epochs = pool.step(WAIT).info.outcome.after.signals.epoch
    assert torch.equal(epochs, torch.where(step.info.dropped, 1, 3))


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_can_be_survived_by_closing_and_nothing_is_left(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_FAREWELL_SECONDS", 0.5)
    pool.reset()
    stopped = workers()[-1].pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        pool.step(WAIT)
    pool.close()
    assert workers() == []


def test_a_process_that_does_not_answer_is_given_up() -> None:
    others = workers()  # of the pool, where that is still there
    transport = ProcessTransport(timeout=0.05)
    (stopped,) = (child.pid for child in workers() if child not in others)
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    request = Request(0, Command.RESULTS)
    start = time.monotonic()
    transport.send(request)
    with pytest.raises(WorkerError, match=r"did not answer within 0\.05 seconds"):
        transport.receive(request)
    assert time.monotonic() - start < LIMIT / 2
    transport.close()
    assert workers() == others


_ENDLESS = """
import time, esper
from tests.worlds import tiny_task
env = esper.make_env(tiny_task(), envs=2, executor="loop", workers=2)
print("ready", flush=True)
time.sleep(600)
"""


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    folder = {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", _ENDLESS], env=os.environ | folder, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
        # It ends with the last process that could write to it.
        assert parent.communicate(timeout=LIMIT)[0] == b""
    # Data of a task stay until the next process that shares some.
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("esper-data-")] == []
