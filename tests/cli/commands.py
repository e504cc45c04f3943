"""The command line in this process, for tests."""

import pytest

from esper.cli import main


def run(*arguments: str) -> int:
    """Run `esper` with these arguments; its exit code."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)
