"""The folder of a run: it holds one run, and no write destroys what was written before."""

import os
from pathlib import Path

import pytest

import esper
from esper.leyline import EsperError, InputError
from esper.simic.agent.checkpoint import pack_checkpoint
from esper.simic.training import RunFolder, Trainer, load_controller
from tests.simic.training.runs import tiny_config


def test_only_the_newest_checkpoints_and_the_best_stay(straight: Path) -> None:
    names = sorted(path.name for path in (straight / "checkpoints").iterdir())
    assert names == ["best.pt", "round-000002.pt", "round-000003.pt", "round-000004.pt"]


def test_a_folder_with_a_run_is_not_overwritten(straight: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a run already; go on with --resume"):
        esper.train(tiny_config(), straight)
    with pytest.raises(InputError, match="holds no run to resume"):
        RunFolder(tmp_path).stored_config()
    with pytest.raises(InputError, match="holds no checkpoint"):
        load_controller(tmp_path)


def test_a_failed_checkpoint_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    trainer = Trainer(tiny_config())
    packed = pack_checkpoint(trainer.agent)
    with folder.held():
        folder.create(tiny_config())
        folder.save(1, packed, keep=3)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(EsperError, match=r"No space left on device.*earlier ones are untouched"):
            folder.save(2, packed, keep=1)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["round-000001.pt"]
    load_controller(folder.checkpoints / "round-000001.pt")
