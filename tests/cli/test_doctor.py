"""`esper doctor` on this machine."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.commands import run


def test_doctor_finds_this_machine_ready(tmp_path: Path) -> None:
    assert run("doctor", "--json", str(tmp_path / "out.json")) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["ready"] is True
    assert {"Python", "torch", "growing", "free disk"} <= {check["what"] for check in report["checks"]}


def test_a_machine_without_numba_is_ready_and_told_what_it_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "esper.tolaria.executors.native", None)
    assert run("doctor", "--json", str(tmp_path / "out.json")) == 0
    found = {check["what"]: check for check in json.loads((tmp_path / "out.json").read_text())["checks"]}
    assert "reinstall numba" in found["native hosts"]["advice"]


def test_a_damaged_shipped_controller_needs_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"cut")
    monkeypatch.setattr("esper.api.shipping._FILE", tmp_path / "cut.safetensors")
    assert run("doctor", "--json", str(tmp_path / "out.json")) == 1
    found = {check["what"]: check for check in json.loads((tmp_path / "out.json").read_text())["checks"]}
    assert "is cut short" in found["shipped controller"]["found"]
    assert found["shipped controller"]["advice"] == "reinstall esper"
