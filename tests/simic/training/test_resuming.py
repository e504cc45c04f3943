"""Going on with a run: from any state that a kill can leave, with more rounds, elsewhere, and otherwise unchanged."""

import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.leyline import DamagedFileError, InputError, TelemetryEvent
from esper.nissa import JsonLinesSink, check_sinks
from esper.simic.training import (
    InterruptedRunError,
    Phase,
    RunFolder,
    Trainer,
    TrainingConfig,
    load_controller,
    require_ready,
)
from tests.catalogues import one_more_kind
from tests.karn.queries import query
from tests.simic.training.runs import assert_same_run, events, tiny_config
from tests.worlds import slots_of, tiny_task

Stop = Callable[[], bool]


def small_config(**overrides: Any) -> TrainingConfig:
    smallest: dict[str, Any] = {"envs": 2, "rounds": 2, "episode_length": 4, "validation_episodes": 1}
    return tiny_config(**(smallest | {"validate_every": 1} | overrides))


def steady_config(**overrides: Any) -> TrainingConfig:
    """In which nothing depends on the number of rounds."""
    return small_config(**({"lr_schedule": "constant", "entropy_decay": 0.0} | overrides))


def after(steps: int) -> Stop:
    calls = itertools.count()
    return lambda: next(calls) >= steps


def start_and_stop(config: TrainingConfig, out: Path, steps: int = 0) -> RunFolder:
    with pytest.raises(InterruptedRunError):
        esper.train(config, out, should_stop=after(steps))
    return RunFolder(out)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of four rounds."""
    out = tmp_path_factory.mktemp("runs") / "straight"
    esper.train(steady_config(rounds=4), out)
    return out


def copy_of(run: Path, out: Path) -> RunFolder:
    (out / "checkpoints").mkdir(parents=True)
    for path in (*run.iterdir(), *(run / "checkpoints").iterdir()):
        if path.is_file():
            (out / path.relative_to(run)).write_bytes(path.read_bytes())
    return RunFolder(out)


def test_a_run_has_a_checkpoint_before_it_measures_anything(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    names: list[list[str]] = []

    def look(what: str) -> None:
        if what.startswith("measuring"):
            names.append([path.name for path in folder.newest_first()])

    with pytest.raises(InterruptedRunError):
        esper.train(steady_config(rounds=1), folder.path, announce=look, should_stop=after(0))
    assert names == [["round-000000.pt"]]
    esper.train(folder.stored_config(), folder.path, resume=True)
    esper.train(steady_config(rounds=1), tmp_path / "straight")
    assert_same_run(tmp_path / "straight", folder.path)


def test_what_a_checkpoint_takes_for_told_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a kill right after it would lose the record of a round that is never played again."""
    write, save = JsonLinesSink.write, RunFolder.save
    recorded: list[tuple[int, int]] = []

    def write_slowly(sink: JsonLinesSink, event: TelemetryEvent) -> None:
        time.sleep(0.02)
        write(sink, event)

    def look(folder: RunFolder, round_index: int, *rest: Any) -> None:
        recorded.append((round_index, folder.events.read_text().count("round_completed")))
        save(folder, round_index, *rest)

    monkeypatch.setattr(JsonLinesSink, "write", write_slowly)
    monkeypatch.setattr(RunFolder, "save", look)
    esper.train(steady_config(telemetry="minimal"), tmp_path / "run")
    assert recorded == [(0, 0), (1, 1), (2, 2)]


def test_a_run_killed_before_its_first_checkpoint_can_be_resumed_or_begun_anew(tmp_path: Path) -> None:
    """The config is written a moment before the first checkpoint."""
    esper.train(steady_config(rounds=1), tmp_path / "straight")
    told: list[str] = []
    for name, config in (("resumed", None), ("anew", steady_config(rounds=1, seed=0))):
        folder = RunFolder(tmp_path / name)
        with folder.held():
            folder.create(steady_config(rounds=1, seed=0 if config is None else 5))
        stored = folder.stored_config()
        esper.train(config or stored, folder.path, resume=config is None, announce=told.append)
        assert_same_run(tmp_path / "straight", folder.path)
    assert any("no checkpoint was written yet" in line for line in told)


def test_a_run_that_lost_all_its_checkpoints_is_not_begun_anew_in_silence(straight: Path, tmp_path: Path) -> None:
    folder = copy_of(straight, tmp_path / "run")
    for path in folder.newest_first():
        path.unlink()
    with pytest.raises(InputError, match=r"holds no checkpoint, although its run had begun; .*--out"):
        esper.train(folder.stored_config(), folder.path, resume=True)
    with pytest.raises(InputError, match="holds a run already"):
        esper.train(folder.stored_config(), folder.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "warp"}, "unknown device 'warp'; choose one of: cpu"),
        ({"device": "cuda:99"}, "unknown device 'cuda:99'"),
        ({"host_devices": ("cuda:99",), "executor": "loop"}, "unknown device 'cuda:99'"),
        ({"tasks": ("cifar10",)}, "the data of task 'cifar10' is missing"),
        ({"curriculum": (Phase(0.5, tasks=("cifar10",)),)}, "the data of task 'cifar10' is missing"),
    ],
)
def test_what_this_machine_cannot_run_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=message):
        esper.train(small_config(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_neither_sinks_nor_traces_that_cannot_be_written_leave_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown sink 'pigeon'; choose one of: console"):
        esper.train(small_config(), tmp_path / "run", sinks=("console", "pigeon"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="traces cannot be written"):
        esper.train(small_config(), tmp_path / "run", profile=tmp_path / "file" / "traces")
    assert not (tmp_path / "run").exists()
    check_sinks(["console"])


def test_checking_a_machine_draws_no_random_numbers() -> None:
    slots, before = slots_of(tiny_task()), torch.get_rng_state()
    assert require_ready(small_config()) == slots
    assert torch.equal(torch.get_rng_state(), before)


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_is_taken(
    straight: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy_of(straight, tmp_path / "run")
    newest, before, *_ = folder.newest_first()
    newest.write_bytes(newest.read_bytes()[:-100])
    before.write_bytes(b"")
    folder.summary.unlink()
    esper.train(folder.stored_config(), folder.path, resume=True)
    assert_same_run(straight, folder.path)
    warnings = [record.message for record in caplog.records if "checkpoint" in record.message]
    assert [str(path) in line for path, line in zip((newest, before), warnings, strict=True)] == [True, True]
    assert all("the one before it is taken instead" in line for line in warnings)


def test_without_any_whole_checkpoint_there_is_one_error_with_the_remedy(straight: Path, tmp_path: Path) -> None:
    folder = copy_of(straight, tmp_path / "run")
    for path in folder.newest_first():
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DamagedFileError, match=r"none of the 3 checkpoints can be used; .* with --out"):
        esper.train(folder.stored_config(), folder.path, resume=True)


def test_saving_after_a_fall_back_removes_the_damaged_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.held():
        for number in (3, 4, 5):
            folder.save(number, b"", keep=3)
        folder.save(3, b"whole", keep=1)
    assert [path.name for path in folder.newest_first()] == ["round-000003.pt"]


def test_more_rounds_extend_a_run_that_was_over(straight: Path, tmp_path: Path) -> None:
    """Where nothing depends on the number of rounds, the longer run is the one that was asked for at once."""
    out = tmp_path / "run"
    esper.train(steady_config(rounds=2), out)
    summary = esper.train(steady_config(rounds=4), out, resume=True)
    assert summary.rounds == RunFolder(out).stored_config().rounds == 4
    assert_same_run(straight, out)
    assert query(out, "select count(*) from rounds") == [(4,)]
    # And the whole again, with the same call.
    esper.train(steady_config(rounds=4), out, resume=True)
    assert_same_run(straight, out)


def test_a_run_that_is_extended_is_no_longer_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    esper.train(small_config(rounds=1), folder.path)
    with pytest.raises(InterruptedRunError):
        esper.train(small_config(rounds=3), folder.path, resume=True, should_stop=after(2))
    assert folder.read_summary() is None
    assert folder.stored_config().rounds == 3
    assert len(esper.train(folder.stored_config(), folder.path, resume=True).history) == 3


def test_learning_rate_and_entropy_bonus_follow_the_new_number_of_rounds(tmp_path: Path) -> None:
    config = small_config(rounds=2, entropy_decay=1.0, entropy_coef=0.01, validate_every=0)
    esper.train(config, tmp_path / "run")
    longer = small_config(rounds=8, entropy_decay=1.0, entropy_coef=0.01, validate_every=0)
    trainer = Trainer(longer, RunFolder(tmp_path / "run"), resume=True)
    try:
        trainer._set_learning_rate()
        assert trainer.agent.optimizer.param_groups[0]["lr"] == pytest.approx(longer.learner.lr * (1 - 0.9 * 2 / 8))
        assert trainer.agent.get_entropy_coef() == pytest.approx(0.01 * (1 - 2 / 8))
    finally:
        trainer.world.close()


def test_an_extended_run_does_not_go_back_to_a_phase_that_is_over(tmp_path: Path) -> None:
    phases = (Phase(until=0.5, budget=0),)
    busy = {"op_bias": (-5.0, 0.0, 0.0, 0.0), "curriculum": phases, "validate_every": 0}
    esper.train(small_config(rounds=2, **busy), tmp_path / "run")
    history = esper.train(small_config(rounds=6, **busy), tmp_path / "run", resume=True).history
    assert history[0]["ops"]["GERMINATE"] == 0
    assert all(entry["ops"]["GERMINATE"] > 0 for entry in history[1:])  # by its share, round 3 would be in the phase


def test_where_a_run_computes_and_what_it_records_may_change(tmp_path: Path) -> None:
    esper.train(steady_config(), tmp_path / "straight")
    folder = start_and_stop(steady_config(telemetry="off", device="auto"), tmp_path / "run", steps=20)
    assert not folder.events.read_text()
    esper.train(steady_config(telemetry="minimal", device="cpu"), folder.path, resume=True, sinks=("console",))
    assert_same_run(tmp_path / "straight", folder.path)
    assert {event["type"] for event in events(folder.path)} >= {"run_started", "round_completed"}
    stored = folder.stored_config()
    assert (stored.telemetry.level, stored.learner.device) == ("minimal", "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "seed (stored 0, given 7)"),
        ({"lr": 0.1, "envs": 3}, "world.envs (stored 2, given 3), learner.lr (stored 0.002, given 0.1)"),
        ({"executor": "stacked"}, "world.executor (stored 'native', given 'stacked')"),
        ({"rounds": 3}, "rounds is 4 in the stored run and can only become more; got 3"),
    ],
)
def test_anything_else_that_differs_is_refused_by_name(straight: Path, change: dict[str, Any], message: str) -> None:
    before = {path: path.read_bytes() for path in straight.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as error:
        esper.train(steady_config(**({"rounds": 4} | change)), straight, resume=True)
    assert message in str(error.value)
    assert "leave" in str(error.value)
    assert {path: path.read_bytes() for path in straight.rglob("*") if path.is_file()} == before


def test_a_field_inside_a_group_is_named_too(straight: Path) -> None:
    stored = RunFolder(straight).stored_config().to_dict()
    given = TrainingConfig.from_dict(stored | {"reward": stored["reward"] | {"holding_cost": 0.5}})
    with pytest.raises(InputError, match=r"reward.holding_cost \(stored 0.002, given 0.5\)"):
        esper.train(given, straight, resume=True)


def test_an_executor_that_was_left_open_is_the_one_that_was_chosen(straight: Path) -> None:
    assert RunFolder(straight).stored_config().world.executor == "native"
    esper.train(steady_config(rounds=4, executor="auto"), straight, resume=True)
    assert RunFolder(straight).stored_config().world.executor == "native"


def test_a_folder_in_use_is_refused_and_nothing_in_it_is_touched(straight: Path, tmp_path: Path) -> None:
    folder = copy_of(straight, tmp_path / "run")
    with folder.held():
        config = folder.stored_config()
        before = sorted((path, path.read_bytes()) for path in folder.path.rglob("*") if path.is_file())
        with pytest.raises(InputError, match=f"is in use by process {os.getpid()};"):
            esper.train(config, folder.path, resume=True)
        assert sorted((path, path.read_bytes()) for path in folder.path.rglob("*") if path.is_file()) == before
        # Whoever only reads may do so.
        assert query(folder.path, "select count(*) from rounds") == [(4,)]
        esper.evaluate(str(folder.path), config.world.tasks[0], [0], executor="loop")


def test_what_killed_writers_left_is_removed_by_whoever_holds_the_folder(straight: Path, tmp_path: Path) -> None:
    folder = copy_of(straight, tmp_path / "run")
    for place in (folder.path, folder.checkpoints):
        (place / ".left.abc.part").write_bytes(b"half")
    (folder.path / "mine.part").write_text("no temporary file of ours")
    esper.train(folder.stored_config(), folder.path, resume=True)
    assert not [path for path in folder.path.rglob(".*") if path.name != ".lock"]
    assert (folder.path / "mine.part").exists()


def test_a_config_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_config().save(tmp_path / "config.json")
    before = (tmp_path / "config.json").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        small_config(rounds=9).save(tmp_path / "config.json")
    assert (tmp_path / "config.json").read_bytes() == before
    assert json.loads(before)["rounds"] == 2


def test_a_run_of_another_catalogue_is_refused_before_anything_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = steady_config(executor="loop")  # 'native' does not know the operation of the new kind
    esper.train(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    files = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    with one_more_kind(), pytest.raises(InputError) as error:
        esper.train(replace(config, rounds=6), folder.path, resume=True)
    assert "here it is 'shift'); register the same names under the same ids" in str(error.value)
    assert str(error.value).endswith("or train a controller with the present blueprints")
    assert {path: path.read_bytes() for path in files} == files
    assert not caplog.records
    with one_more_kind(), pytest.raises(InputError, match=r"best.pt was made with another catalogue"):
        load_controller(folder.path)
