"""Pictures are written whole, in the kinds that are promised, whatever names they show."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from esper.karn import check_picture, draw_learning
from esper.karn.pictures import PICTURE_SUFFIXES, save_picture
from esper.leyline import InputError


@pytest.mark.parametrize("suffix", PICTURE_SUFFIXES)
def test_every_kind_that_is_promised_can_be_drawn(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"p{suffix}"
    check_picture(path)
    save_picture(Figure(), path)
    assert path.stat().st_size > 0


@pytest.mark.parametrize("name", ["p.foo", "p", "p.txt", ".png", "p.pgf"])
def test_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no name for a picture"):
        check_picture(Path(name))


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    interval = (0.0, -0.1, 0.1)
    draw_learning(tmp_path / "p.png", compared={r"t$\x$": {"never": interval, r"$\frac$": interval}}, yardstick="never")
    assert (tmp_path / "p.png").exists()
