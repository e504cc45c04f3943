"""Writing files so that a crash, a kill or a full disk leaves either the old file or the new one, never half of one."""

import glob
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PARTIAL_SUFFIX = ".part"
_SHOWN = 40
"""Characters of a file's name that its temporary file repeats, so that no file system finds that name too long."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file beside `path`, then put it in place. Raises `OSError` as `open` does."""
    # mkstemp makes a new file under a name that nobody can have planted a link at.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:_SHOWN]}.", suffix=PARTIAL_SUFFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """That of the file to be replaced, or what `open` would give a new one; mkstemp lets only its owner read."""
    with suppress(FileNotFoundError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def remove_partial_files(folder: Path, prefix: str = "", *, older_than: float = 0.0) -> None:
    """Remove what killed writers left in `folder` of files whose names begin with `prefix`.

    `older_than` spares files that were changed in the last so many seconds: others may be writing them.
    """
    newest = time.time() - older_than
    for left in folder.glob(f".{glob.escape(prefix)}*{PARTIAL_SUFFIX}"):
        with suppress(FileNotFoundError):
            if left.lstat().st_mtime <= newest:
                left.unlink()
