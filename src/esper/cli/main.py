"""The entry point: parses the command line, runs one command and turns its outcome into an exit code."""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Annotated, NoReturn

import tyro

from esper.cli.bench import Bench
from esper.cli.blueprints import Blueprints
from esper.cli.data import Data
from esper.cli.demo import Demo
from esper.cli.doctor import Doctor
from esper.cli.evaluate import Evaluate
from esper.cli.failures import BAD_INPUT, exit_code_of
from esper.cli.grow import Grow
from esper.cli.parser_errors import in_one_sentence
from esper.cli.sql import Sql
from esper.cli.tasks import Tasks
from esper.cli.train import Train, base_config, full_names
from esper.leyline import InputError

_DEBUG = "--debug"

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


@dataclass(frozen=True, slots=True)
class Esper:
    """Grow neural networks while they train."""

    command: Annotated[Command, tyro.conf.arg(name="")]
    debug: Annotated[bool, tyro.conf.CascadeSubcommandArgs, tyro.conf.FlagCreatePairsOff] = False
    """Show where an error came from, beside the one sentence about it; may stand anywhere on the line."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `esper` and exit: 0 done, 1 failed, 2 bad input, 130 interrupted, 143 terminated."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(exit_code_of(lambda: _parse(arguments).command.run(), debug=_DEBUG in arguments))


def _parse(arguments: list[str]) -> Esper:
    # The options of `train` begin from another config than the default one if a preset, a file or a run is named.
    begin: Esper | None = None
    if "train" in arguments:
        arguments = full_names(arguments)
        begin = Esper(Train(base_config(arguments)))
    options = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.EnumChoicesFromValues)
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            parsed = tyro.cli(Esper, args=arguments, prog="esper", config=options, default=begin)
            assert isinstance(parsed, Esper)
            return parsed
    except SystemExit as stop:
        if stop.code != BAD_INPUT:  # after --help, or by a signal
            raise
        raise InputError(in_one_sentence(complaint.getvalue())) from None
