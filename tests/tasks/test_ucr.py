"""UCR series: read from the files that aeon carries, without importing it."""

import importlib.util
from pathlib import Path

import pytest
import torch

from esper.leyline import InputError
from esper.tasks import find_task, ucr


def _series_file(num: int, channels: int = 1, length: int = 12, header: str = "@equalLength true") -> str:
    lines = ["# a comment", "@problemName Some", header, "@classLabel true low high", "@data"]
    for row in range(num):
        values = ",".join(str(row % 2 + 0.1 * place) for place in range(length))
        lines.append(":".join([values] * channels + [("low", "high")[row % 2]]))
    return "\n".join(lines) + "\n"


@pytest.fixture
def aeon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the folder of an installed aeon."""
    monkeypatch.setattr(ucr, "_folder", lambda: tmp_path)
    monkeypatch.setattr("esper.tasks.registry._RESOLVED", {})
    return tmp_path


def _write(folder: Path, name: str, train: str, test: str) -> None:
    (folder / name).mkdir()
    (folder / name / f"{name}_TRAIN.ts").write_text(train)
    (folder / name / f"{name}_TEST.ts").write_text(test)


@pytest.mark.parametrize("channels", [1, 3])
def test_series_load_with_their_classes_and_official_test_split(channels: int, aeon: Path) -> None:
    _write(aeon, "Some", _series_file(20, channels), _series_file(7, channels))
    task = find_task("ucr:Some")
    splits = task.splits()
    shapes = [tuple(part.x.shape) for part in (splits.train, splits.val, splits.test)]
    assert shapes == [(16, channels, 12), (4, channels, 12), (7, channels, 12)]
    assert splits.test.y.tolist() == [0, 1, 0, 1, 0, 1, 0]
    torch.testing.assert_close(splits.train.x.mean((0, 2)), torch.zeros(channels), atol=1e-5, rtol=0)
    assert task.classes == 2
    assert task.build_host()(splits.val.x).shape == (4, 2)
    assert find_task("ucr:Some") is task


def test_without_aeon_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ucr, "_folder", lambda: None)
    with pytest.raises(InputError, match=r"ucr:GunPoint.*pip install 'esper\[ucr\]'$"):
        find_task("ucr:GunPoint")


def test_unknown_sets_and_those_of_unequal_length_are_not_offered(aeon: Path) -> None:
    _write(aeon, "Fine", _series_file(4), _series_file(4))
    _write(aeon, "Ragged", _series_file(4, header="@equalLength false"), _series_file(4))
    with pytest.raises(InputError, match=r"unknown UCR set 'Ragged'; choose one of: Fine$"):
        find_task("ucr:Ragged")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_series_file(4)[:-20], "could not convert|expected sequence|not in tuple"),
        (_series_file(4).replace("0.1,", "?,", 1), "could not convert"),
        (_series_file(4, channels=2), "2, 12.* with 1 channels announced"),
        ("@data\n", "of shape"),
        (_series_file(4).replace("0.1,", "nan,", 1), "1 of its series hold NaN or infinity"),
        (_series_file(4).replace("0.1,", "1e39,", 1), "1 of its series hold NaN or infinity"),
        (_series_file(4, length=13), "its series are of 13 values, and those of Some_TRAIN.ts of 12"),
    ],
    ids=["cut short", "a gap", "other channels", "empty", "NaN", "infinity", "other length"],
)
def test_a_damaged_file_is_named(content: str, reason: str, aeon: Path) -> None:
    _write(aeon, "Some", _series_file(20), content)
    with pytest.raises(InputError, match=f"Some_TEST.ts cannot be used .*({reason})"):
        find_task("ucr:Some").load()


@pytest.mark.parametrize(
    "header",
    [
        "@",
        "@ ",
        "@classLabel",
        "@equalLength",
        "@classLabel true a a",
        "@classLabel true " + "x " * 2000,
        "@data @data",
    ],
)
def test_an_odd_header_makes_a_set_that_is_not_offered_or_fine(header: str, aeon: Path) -> None:
    _write(aeon, "Fine", _series_file(4), _series_file(4))
    _write(aeon, "Odd", _series_file(4).replace("@data", f"{header}\n@data"), _series_file(4))
    if header.strip() == "@" or header == "@equalLength" or "@data" in header:
        assert find_task("ucr:Odd").classes == 2
    else:
        with pytest.raises(InputError, match=r"unknown UCR set 'Odd'; choose one of: Fine$"):
            find_task("ucr:Odd")


def test_a_file_that_is_no_text_is_named_and_hides_no_other(aeon: Path) -> None:
    _write(aeon, "Fine", _series_file(4), _series_file(4))
    _write(aeon, "Odd", _series_file(4), _series_file(4))
    (aeon / "Odd" / "Odd_TRAIN.ts").write_bytes(b"\xff\xfe\x00")
    assert find_task("ucr:Fine").classes == 2
    with pytest.raises(InputError, match=r"Odd_TRAIN.ts cannot be used"):
        find_task("ucr:Odd")
    with pytest.raises(InputError, match=r"choose one of: Fine$"):
        find_task("ucr:None")


def test_a_single_series_cannot_be_held_out(aeon: Path) -> None:
    _write(aeon, "Some", _series_file(1), _series_file(4))
    with pytest.raises(InputError, match=r"Some_TRAIN.ts cannot be used \(1 series of 12 values are too few"):
        find_task("ucr:Some").load()


@pytest.mark.slow
def test_ucr_series_load() -> None:
    if importlib.util.find_spec("aeon") is None:
        pytest.skip("aeon is not installed: pip install 'esper[ucr]'")
    splits = find_task("ucr:GunPoint").load()
    assert [tuple(part.x.shape) for part in (splits.train, splits.val, splits.test)] == [
        (40, 1, 150),
        (10, 1, 150),
        (150, 1, 150),
    ]
