"""A run folder has one owner at a time; a dead owner is none."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from esper.leyline import InputError
from esper.simic.training import run_folder
from esper.simic.training.run_folder import locked

HOLD = """
import runpy, sys, time
from pathlib import Path
locked = runpy.run_path(sys.argv[1])["locked"]  # its package would import torch, which takes seconds
with locked(Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_owner_is_refused_and_told_who_is_the_first(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with (
        locked(lock),
        pytest.raises(InputError, match=rf"{tmp_path} is in use by process {os.getpid()}; .*--out"),
        locked(lock),
    ):
        pass
    with locked(lock):
        pass


def test_the_lock_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, run_folder.__file__, str(lock)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"in use by process {holder.pid};"), locked(lock):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert lock.read_text() == str(holder.pid)
    with locked(lock):
        assert lock.read_text() == str(os.getpid())


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="cannot be written"), locked(tmp_path / ".lock"):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_folder_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"), locked(tmp_path / "gone" / ".lock"):
        pass
