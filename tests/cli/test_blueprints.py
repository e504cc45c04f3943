"""`esper blueprints`: every kind with its price."""

import json
from pathlib import Path

import pytest

from esper.kasmina import Family, blueprints_of
from tests.cli.commands import run


def test_blueprints_prices_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--width", "12", "--positions", "19", "--around", "3000")
    assert run("blueprints", *sizes, "--json", str(tmp_path / "out.json")) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["blueprints"]
    assert len(rows) == sum(len(blueprints_of(family)) for family in Family)
    prices = {(row["family"], row["name"]): row["params"] for row in rows}
    assert prices["conv1d", "heavy"] == 1488
    for family in Family:
        assert prices[family, "far_narrow"] == pytest.approx(3000 / 6, rel=0.25)
        assert prices[family, "near_wide"] == pytest.approx(3000 / 3, rel=0.25)
    assert "channel_attention" in capsys.readouterr().out


def test_blueprints_shows_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("blueprints", "--family", "features", "--positions", "1") == 0
    assert "does not fit" in capsys.readouterr().out
