"""One copy of a task's data for all processes of a machine: a file that each of them maps into its memory."""

import os
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from esper.tasks.registry import Split, Splits, Task, set_splits

_PREFIX = "esper-data-"


class SharedData:
    """The splits of a task in a file of this process, which is gone with this object, or with the process.

    A copy that was sent to another process only reads: `adopt` makes it that process's data of the task.
    """

    def __init__(self, task: Task) -> None:
        _remove_orphans()
        handle, name = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-")
        self._path = Path(name)
        self._end = weakref.finalize(self, self._path.unlink, missing_ok=True)
        self._layout: list[tuple[tuple[int, ...], str, int]] = []
        splits = task.splits()
        with os.fdopen(handle, "wb") as file:
            for tensor in (tensor for part in splits.parts() for tensor in (part.x, part.y)):
                array = np.ascontiguousarray(tensor.numpy())
                self._layout.append((array.shape, array.dtype.str, file.tell()))
                array.tofile(file)
        self.adopt(task)  # so that there is no second copy here either

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path, "_layout": self._layout}

    def adopt(self, task: Task) -> None:
        """Let `task` use this data in this process."""
        tensors = [self._map(*where) for where in self._layout]
        set_splits(task, Splits(*(Split(x, y) for x, y in zip(tensors[::2], tensors[1::2], strict=True))))

    def _map(self, shape: tuple[int, ...], dtype: str, offset: int) -> Tensor:
        # Copied on write, because torch wants memory that can be written to; nobody does.
        return torch.from_numpy(np.memmap(self._path, dtype, "c", offset, shape))


def _remove_orphans() -> None:
    """Remove files whose processes were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not _runs(int(owner)):
            with suppress(OSError):
                left.unlink()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
