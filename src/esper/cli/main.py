"""The entry point: parses the command line, runs one command and turns its outcome into an exit code."""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import tyro

from esper.cli.blueprints import Blueprints
from esper.cli.doctor import Doctor
from esper.leyline import EsperError, InputError

_DESCRIPTION = "Grow neural networks while they train."
_DONE, _FAILED, _BAD_INPUT, _INTERRUPTED = 0, 1, 2, 130

Command = Annotated[Blueprints, tyro.conf.subcommand("blueprints")] | Annotated[Doctor, tyro.conf.subcommand("doctor")]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `esper` and exit: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    command = tyro.cli(Command, args=argv, prog="esper", description=_DESCRIPTION)
    sys.exit(_run(command))


def _run(command: Blueprints | Doctor) -> int:
    try:
        return _DONE if command.run() else _FAILED
    except InputError as error:
        sys.stderr.write(f"esper: {error}\n")
        return _BAD_INPUT
    except EsperError as error:
        sys.stderr.write(f"esper: {error}\n")
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
