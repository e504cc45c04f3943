"""How far a reader has to walk: the files of the package that run a function in one training round, and in one update.

    python -m benchmarks.walk                  # as people train
    python -m benchmarks.walk --telemetry.level off    # with other options of `esper train`

The round is the first of `esper train` on a tiny task, in one process and without lessons: from its start, when all is
set up, to its checkpoint. The files through which the command gets there count too. The update is counted twice: in
that round, where telemetry watches it, and by itself.
"""

import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

import torch

import esper
from esper.cli import main as run_command
from esper.simic.agent import PPOAgent
from esper.simic.training import Trainer
from esper_lab.player import Player
from esper_lab.trials import BANDIT, agent_for

PACKAGE = Path(esper.__file__).parent
OPTIONS = ["--task", "digits", "--rounds", "2", "--envs", "4", "--episode-length", "6", "--workers", "1"]
OPTIONS += ["--teacher", "None", "--validation-episodes", "1", "--validate-every", "0", "--world.executor", "native"]
OPTIONS += ["--world.batches-per-epoch", "2"]


def code_of(function: Callable[..., Any]) -> CodeType:
    """Of the function itself, whatever decorates it."""
    code = inspect.unwrap(function).__code__
    assert isinstance(code, CodeType)
    return code


@cache
def file_of(code: CodeType) -> str | None:
    """Where a function of the package is written; None for other code."""
    path = Path(code.co_filename)
    # Modules and classes run when they are imported: their code is not optimised, that of functions is.
    if not code.co_flags & inspect.CO_OPTIMIZED or not path.is_relative_to(PACKAGE):
        return None
    return path.relative_to(PACKAGE).as_posix()


@dataclass(slots=True)
class Stretch:
    """The files that functions ran in from the first call of `begin` to the next return of `end`."""

    begin: CodeType
    end: CodeType
    widely: bool = False
    """Whether callers and other threads count too; what the latter do is chance, unless the end waits for them."""
    files: set[str | None] = field(default_factory=set)
    _thread: int | None = None
    _over: bool = False

    def notice(self, frame: FrameType, event: str) -> None:
        """Take a call or a return into account."""
        code, thread = frame.f_code, threading.get_ident()
        if code is self.begin and self._thread is None:
            self._thread = thread
            self.files |= {file_of(caller.f_code) for caller, _ in walk_stack(frame) if self.widely}
        if self._thread is None or self._over:
            return
        if event == "call" and (self.widely or thread == self._thread):
            self.files.add(file_of(code))
        self._over = event == "return" and code is self.end

    def found(self) -> list[str]:
        """The files, in order."""
        return sorted(file for file in self.files if file is not None)


@contextmanager
def watching(*stretches: Stretch) -> Iterator[None]:
    """Show every call and return of Python code, in this thread and new ones, to `stretches`."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "return"):
            for stretch in stretches:
                stretch.notice(frame, event)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk_round(options: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The files of the first round of `esper train` with these `options`, and of the update in it."""
    update = code_of(PPOAgent.update)
    whole = Stretch(code_of(Trainer._play_round), code_of(Trainer._checkpoint), widely=True)
    learning = Stretch(update, update)
    with tempfile.TemporaryDirectory() as folder, watching(whole, learning):
        try:
            run_command(["train", "--out", f"{folder}/run", *OPTIONS, *options])
        except SystemExit as end:
            if end.code:
                raise
    return whole.found(), learning.found()


def walk_update() -> list[str]:
    """The files of one update of a plain agent."""
    torch.manual_seed(0)
    world = BANDIT.make_world(0)
    agent = agent_for(world, BANDIT.options)
    Player(agent, world).fill_buffer()
    update = code_of(PPOAgent.update)
    stretch = Stretch(update, update)
    with watching(stretch):
        agent.update()
    return stretch.found()


def main() -> None:
    """Print the files and how many they are."""
    whole, learning = walk_round(sys.argv[1:])
    for name, files in (("training round", whole), ("update in it", learning), ("update by itself", walk_update())):
        print(f"one {name}: {len(files)} files")
        print("".join(f"    {file}\n" for file in files), end="")


if __name__ == "__main__":
    main()
