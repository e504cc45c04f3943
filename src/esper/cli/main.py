"""The entry point: parses the command line, runs one command and turns its outcome into an exit code."""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn, Protocol

import tyro

from esper.cli.bench import Bench
from esper.cli.blueprints import Blueprints
from esper.cli.data import Data
from esper.cli.demo import Demo
from esper.cli.doctor import Doctor
from esper.cli.evaluate import Evaluate
from esper.cli.grow import Grow
from esper.cli.sql import Sql
from esper.cli.tasks import Tasks
from esper.cli.train import Train
from esper.leyline import EsperError, InputError

_DESCRIPTION = "Grow neural networks while they train."
_DONE, _FAILED, _BAD_INPUT, _INTERRUPTED = 0, 1, 2, 130

Command = (
    Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Blueprints, tyro.conf.subcommand("blueprints")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Grow, tyro.conf.subcommand("grow")]
    | Annotated[Sql, tyro.conf.subcommand("sql")]
    | Annotated[Tasks, tyro.conf.subcommand("tasks")]
    | Annotated[Train, tyro.conf.subcommand("train")]
)


class _Runnable(Protocol):
    def run(self) -> bool:
        """Do it; false means that it was done and found wanting."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `esper` and exit: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    sys.exit(_run(tyro.cli(Command, args=argv, prog="esper", description=_DESCRIPTION, config=config)))


def _run(command: _Runnable) -> int:
    try:
        return _DONE if command.run() else _FAILED
    except EsperError as error:
        sys.stderr.write(f"esper: {error}\n")
        return _BAD_INPUT if isinstance(error, InputError) else _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
