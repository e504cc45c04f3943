"""`esper doctor` on this machine."""

import json
from pathlib import Path

from tests.cli.commands import run


def test_doctor_finds_this_machine_ready(tmp_path: Path) -> None:
    assert run("doctor", "--json", str(tmp_path / "out.json")) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["ready"] is True
    assert {"Python", "torch", "growing", "free disk"} <= {check["what"] for check in report["checks"]}
