"""The entry point: parses the command line, runs one command and turns its outcome into an exit code."""

import io
import re
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
from esper.cli.sql import Sql
from esper.cli.tasks import Tasks
from esper.cli.train import Train, base_config, full_names
from esper.leyline import InputError

_DEBUG = "--debug"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = "╭╮╰╯│─┌┐└┘├┤ "
_OPTION = re.compile(r"--[\w-]+")
_REFUSED = re.compile(r"error parsing [\w.]+: ")
"""What stands before the sentence about a value that was refused when its record was made."""
_MEANT, _FOOTER = "Perhaps you meant", "For full helptext"


@dataclass(frozen=True, slots=True)
class Esper:
    """Grow neural networks while they train."""

    command: Annotated[
        Bench | Blueprints | Data | Demo | Doctor | Evaluate | Grow | Sql | Tasks | Train, tyro.conf.arg(name="")
    ]
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


def in_one_sentence(complaint: str) -> str:
    """What the parser says in a frame of several lines: what is wrong, what could have been meant, where help is."""
    _, *sections = _sections(complaint) or [[]]
    said, hints, footer = [], [], ""
    for section in sections:
        text = " ".join(section)
        if text.startswith(_MEANT):
            hints = [found.group() for line in section if (found := _OPTION.match(line))]
        elif text.startswith(_FOOTER):
            footer = text.removeprefix(_FOOTER).strip(" ,")
        elif not text.startswith("Argument helptext"):
            said.append(_REFUSED.sub("", text[0].lower() + text[1:].rstrip(".")))
    if hints:
        said.append(f"perhaps you meant {', '.join(dict.fromkeys(hints))}")
    return "; ".join([*said, footer]) if footer else " ".join(complaint.split())


def _sections(complaint: str) -> list[list[str]]:
    """The lines of a frame without the frame: its title, and what stands between rules."""
    sections: list[list[str]] = [[]]
    for line in _COLOURS.sub("", complaint).splitlines():
        text = line.strip(_FRAME)
        if line.strip("│ ") and not text.strip("-"):
            sections.append([])
        elif text:
            sections[-1].append(text)
            if "╭" in line:  # the title is part of the frame
                sections.append([])
    return [section for section in sections if section]
