"""Configs: whatever JSON, or what once was JSON, a file holds, it is a config or one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from esper.simic.training import TrainingConfig
from tests.fuzzing_files import (
    Case,
    blocks,
    damaged,
    deep_json,
    fails_in_one_sentence,
    odd_json,
    odd_text,
    run_cases,
    run_command,
)

pytestmark = pytest.mark.slow


def _some_fields(case: Case) -> str:
    """The default config with a few fields, perhaps inner ones, changed, gone or under another name."""
    config: dict[str, Any] = TrainingConfig().to_dict()
    for _ in range(case.draw.randrange(1, 4)):
        group = case.draw.choice([config, *(part for part in config.values() if isinstance(part, dict))])
        name = case.draw.choice(list(group) or ["x"])
        match case.draw.randrange(6):
            case 0:
                group.pop(name, None)
            case 1:
                group[odd_text(case.draw)] = odd_json(case.draw)
            case 2:
                config["world"] = {"curriculum": [{"until": odd_json(case.draw, 0), name: odd_json(case.draw, 1)}]}
            case _:
                group[name] = odd_json(case.draw)
    return json.dumps(config)


def _text(case: Case) -> bytes:
    whole = json.dumps(TrainingConfig().to_dict(), indent=2)
    match case.draw.randrange(8):
        case 0:
            return damaged(case.draw, whole.encode())
        case 1:
            return json.dumps(odd_json(case.draw, 4)).encode()
        case 2:
            return ('{"seed": ' + deep_json(case.draw) + "}").encode()
        case 3:
            return case.draw.choice((odd_text(case.draw), deep_json(case.draw))).encode(errors="surrogateescape")
        case _:
            return _some_fields(case).encode()


def _load(path: Path) -> None:
    config = TrainingConfig.load(path)
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    config.to_anomaly_kwargs()


def _one_config(case: Case) -> None:
    path = case.folder / "config.json"
    path.write_bytes(_text(case))
    said = fails_in_one_sentence(case, lambda: _load(path))
    if case.number % 4 == 0:  # the same from the command line, which could not write its run anyway
        code, _, shown = run_command(case, "train", "--config", str(path), "--sink", "none", "--out", "/dev/null/x")
        assert code == 2, f"{case}: {shown}"
        assert said is None or shown.startswith("esper: "), f"{case}: {said!r} became {shown!r}"


@blocks(1600)
def test_a_config_loads_or_is_one_sentence(first: int, tmp_path: Path) -> None:
    run_cases("configs", first, tmp_path, _one_config)
