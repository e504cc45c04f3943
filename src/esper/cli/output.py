"""Writing results for people and for scripts."""

import json
from pathlib import Path
from typing import Any

from esper.leyline import InputError


def check_writable(path: Path | None) -> None:
    """Refuse, before any work is done, a result file that could not be written in the end."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise InputError(f"--json {path}: not a file in an existing folder; name one")


def write_json(path: Path | None, data: Any) -> None:
    """Write `data` to `path`, if there is one."""
    if path is not None:
        path.write_text(json.dumps(data, indent=2) + "\n")
