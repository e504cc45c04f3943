"""Data in one file for all processes: the same numbers, loaded once, and nothing is left behind."""

import gc
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import esper
from esper.tasks import SharedData, Splits, Task
from tests.worlds import load_blobs, tiny_task

_LOG = "ESPER_TEST_LOADS"


def load_and_tell() -> Splits:
    """What `load_blobs` loads; every process that loads it leaves a line."""
    with Path(os.environ[_LOG]).open("a") as log:
        log.write(f"{os.getpid()}\n")
    return load_blobs()


def load_again() -> Splits:
    return load_blobs()


def tensors(task: Task) -> list[torch.Tensor]:
    return [tensor for part in task.splits().parts() for tensor in (part.x, part.y)]


def test_workers_read_the_data_that_their_parent_has_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "loads"
    monkeypatch.setenv(_LOG, str(log))
    task = replace(tiny_task(), name="told", load=load_and_tell)
    with_workers = esper.make_env(task, envs=4, episode_length=3, executor="loop", workers=2)
    try:
        there, _ = with_workers.reset()
        here, _ = esper.make_env(task, envs=4, episode_length=3, executor="loop").reset()
    finally:
        with_workers.close()
    assert torch.equal(there, here)
    assert log.read_text() == f"{os.getpid()}\n"


def test_another_process_gets_the_same_numbers_and_the_file_goes_with_its_owner() -> None:
    task = replace(tiny_task(), load=load_again)
    expected = [tensor.clone() for tensor in tensors(task)]
    shared = SharedData(task)
    path = shared._path
    copy = pickle.loads(pickle.dumps(shared))
    other = replace(tiny_task(), load=lambda: load_blobs())
    copy.adopt(other)
    assert all(torch.equal(a, b) for a, b in zip(tensors(other), expected, strict=True))
    del copy
    gc.collect()
    assert path.exists()
    del shared
    gc.collect()
    assert not path.exists()
    # Whoever has mapped it can go on reading.
    assert all(torch.equal(a, b) for a, b in zip(tensors(other), expected, strict=True))


def test_files_of_killed_processes_are_removed_and_those_of_others_stay() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = Path(tempfile.gettempdir())
    orphan, alive = (folder / f"esper-data-{process}-test" for process in (ended.pid, os.getppid()))
    for path in (orphan, alive):
        path.touch()
    try:
        SharedData(tiny_task())
        assert not orphan.exists()
        assert alive.exists()
    finally:
        alive.unlink()
