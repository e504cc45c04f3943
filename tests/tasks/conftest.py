"""An empty data folder for every test of a loader."""

from pathlib import Path

import pytest


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `$ESPER_DATA` names, empty."""
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    return tmp_path
