"""Writing pictures: which kinds there are, and all of a file or nothing."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from esper.leyline import InputError, write_atomically

PICTURE_SUFFIXES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
_DOTS_PER_INCH = 130


def check_picture(path: Path) -> None:
    """Refuse, before anything is computed, a name that no kind of picture has."""
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise InputError(f"{path} is no name for a picture; it must end in one of: {', '.join(PICTURE_SUFFIXES)}")


def save_picture(figure: Figure, path: Path) -> None:
    """Write `figure` to `path` in the format that its suffix names."""
    check_picture(path)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower().removeprefix("."), dpi=_DOTS_PER_INCH)
    write_atomically(path.resolve(), drawn.getvalue())


def plain_label(text: str) -> str:
    """`text` for a label: matplotlib takes what stands between dollars for mathematics, and fails on what is none."""
    return text.replace("$", r"\$")
