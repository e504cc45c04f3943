"""What the parser of the command line complains about in a frame of several lines, as one sentence."""

import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = "╭╮╰╯│─┌┐└┘├┤ "
_OPTION = re.compile(r"--[\w-]+")
_REFUSED = re.compile(r"error parsing [\w.]+: ")
"""What stands before the sentence of a value that was refused when its record was made."""
_MEANT, _FOOTER = "Perhaps you meant", "For full helptext"


def in_one_sentence(complaint: str) -> str:
    """The complaint itself, what could have been meant, and where there is help."""
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
