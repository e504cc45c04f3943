"""What a checkpoint of a run holds is checked to the last key before anything is built from it."""

from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.leyline import DamagedFileError
from esper.nissa.state_files import pack_state
from esper.simic.agent.ppo import PPOAgent
from esper.simic.training import RunFolder, TrainingConfig, load_controller
from esper.simic.training.resuming import load_newest
from esper.simic.training.run_folder import RunState
from esper.tamiyo import run_episode
from tests.fuzzing import changed, damaged_bytes, little_memory, mutations, works_or_is_refused
from tests.simic.training.runs import tiny_config
from tests.worlds import slots_of, tiny_task

SLOTS = slots_of(tiny_task())
COMPILED = "config.compile_network: replaced by true"
"""Right, and so it would be compiled: for a minute, with warnings of torch's own."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose checkpoint holds everything that one can hold."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    smallest = {"envs": 2, "rounds": 2, "episode_length": 3, "validation_episodes": 1, "num_minibatches": 1}
    esper.train(tiny_config(value_memory=1, **smallest), folder.path)
    return folder


@pytest.fixture(scope="module")
def state(run: RunFolder) -> dict[str, Any]:
    newest = run.newest()
    assert newest is not None
    loaded: dict[str, Any] = torch.load(newest, weights_only=True)
    return loaded


class Copy:
    """A run folder of its own with one checkpoint, which is written anew for every case."""

    def __init__(self, run: RunFolder, path: Path) -> None:
        self.folder = RunFolder(path)
        self.folder.checkpoints.mkdir(parents=True)
        self.checkpoint = self.folder.checkpoints / "round-000002.pt"
        self.config: TrainingConfig = run.stored_config()

    def resume(self) -> tuple[PPOAgent, RunState] | None:
        return load_newest(self.folder, self.config, SLOTS)


def read_both_ways(case: str, copy: Copy) -> bool:
    """Read the checkpoint for evaluating and for going on; whether the second worked."""
    naming = str(copy.checkpoint)
    controller = works_or_is_refused(case, lambda: load_controller(copy.checkpoint), naming=naming)
    if controller is not None:
        works_or_is_refused(case, lambda: run_episode(tiny_task(episode_length=2), controller, seed=0))
    return works_or_is_refused(case, copy.resume, naming=naming) is not None


def fuzz(state: dict[str, Any], copy: Copy, count: int, seed: int) -> tuple[int, int]:
    """Cases that were read, and how many of them loaded."""
    tried = loaded = 0
    with little_memory():
        for case, mutant in mutations(state, seed, count):
            if isinstance(mutant, dict) and case != COMPILED:
                copy.checkpoint.write_bytes(pack_state(mutant))
                loaded += read_both_ways(case, copy)
                tried += 1
    return tried, loaded


def test_a_checkpoint_with_any_one_thing_changed_loads_or_is_refused_in_a_sentence(
    run: RunFolder, state: dict[str, Any], tmp_path: Path
) -> None:
    tried, loaded = fuzz(state, Copy(run, tmp_path / "copy"), 60, seed=0)
    assert 0 < loaded < tried / 4  # most of it matters


@pytest.mark.slow
def test_sixteen_hundred_changed_checkpoints_load_or_are_refused_in_a_sentence(
    run: RunFolder, state: dict[str, Any], tmp_path: Path
) -> None:
    tried, loaded = fuzz(state, Copy(run, tmp_path / "copy"), 1600, seed=1)
    assert tried >= 1500
    assert 0 < loaded < tried / 4


def test_no_damaged_byte_of_a_checkpoint_goes_unnoticed(run: RunFolder, tmp_path: Path) -> None:
    copy, newest = Copy(run, tmp_path / "copy"), run.newest()
    assert newest is not None
    whole = newest.read_bytes()
    for case, data in damaged_bytes(whole, seed=2, count=500):
        if data != whole:  # a stretch of zeros may be replaced by zeros
            copy.checkpoint.write_bytes(data)
            with pytest.raises(DamagedFileError, match=r"round-000002\.pt"):
                copy.resume()
            assert works_or_is_refused(case, lambda: load_controller(copy.checkpoint)) is None


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("extra", "round"), 3, "extra.round must be a whole number from 0 to 2; got 3"),
        (("extra", "lessons"), -1, "extra.lessons must be"),
        (("extra", "best"), float("nan"), "extra.best must be a number"),
        (("extra", "rng"), torch.zeros(5, dtype=torch.uint8), "extra.rng must have shape"),
        (("extra", "rng"), torch.zeros(5056, dtype=torch.uint8), "no state of torch's generator"),
        (("extra", "history"), [], "extra.history must be a list of 2"),
        (("extra", "history", 0, "round"), 2, "extra.history.0.round must be"),
        (("extra", "history", 1, "gain"), {"other": 0.0}, "extra.history.1.gain must hold one number for each task"),
        (("extra", "baselines"), {"never": {}}, "extra.baselines lacks heuristic"),
        (("extra", "instruments", "gradients", "norm"), None, "both norm and health, or neither"),
        (("normalizer", "var"), torch.zeros(2, dtype=torch.float64), "normalizer.var must have shape"),
        (("config", "lr"), 0.5, "config.lr is 0.5, but the config of the run asks for 0.002"),
        (("round", "num_envs"), 4, "round.num_envs is 4, but the config of the run asks for 2"),
        (("config", "lstm_hidden_dim"), 10**12, "config.lstm_hidden_dim must be a whole number from 1 to"),
        (("counters", "updates"), True, "counters.updates must be a whole number"),
        (("surplus",), 1, "holds 'surplus', which do not belong there"),
    ],
)
def test_what_is_wrong_is_named(
    run: RunFolder, state: dict[str, Any], tmp_path: Path, place: tuple[Any, ...], value: object, message: str
) -> None:
    copy = Copy(run, tmp_path / "copy")
    wrong = state | {"surplus": 1} if place == ("surplus",) else changed(state, place, lambda _: value)
    copy.checkpoint.write_bytes(pack_state(wrong))
    with pytest.raises(DamagedFileError) as error:
        copy.resume()
    assert message in str(error.value)
    assert str(copy.checkpoint) in str(error.value)
    assert "--out" in str(error.value)
