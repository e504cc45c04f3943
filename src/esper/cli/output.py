"""Writing results for people and for scripts."""

import json
from pathlib import Path
from typing import Any

from esper.leyline import InputError


def check_writable(path: Path | None) -> None:
    """Refuse, before any work is done, a result file that could not be written in the end."""
    if path is None:
        return
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); name a file in an existing folder") from None
    if not existed:
        path.unlink()


def check_seed(seed: int) -> None:
    """Refuse a seed that random generators do not take."""
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed must be 0 or more and below 2^63; got {seed}")


def write_json(path: Path | None, data: Any) -> None:
    """Write `data` to `path`, if there is one."""
    if path is not None:
        path.write_text(json.dumps(data, indent=2) + "\n")
