"""Runs that are killed, again and again, at any moment: every one can be resumed, and none of it shows in the end."""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from esper.cli import main
from esper.simic.training import RunFolder, Trainer
from tests.karn.queries import query
from tests.simic.training.runs import assert_same_run
from tests.simic.training.zygote import Zygote
from tests.worlds import TINY

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SAVED_AND_STOPPED = {signal.SIGTERM: 143, signal.SIGINT: 130}
TINY_RUN = ("--task", TINY, "--rounds", "3", "--envs", "2", "--episode-length", "6")
TINY_SETTINGS = (
    *("--world.executor", "loop", "--validation-episodes", "1", "--validate-every", "0"),
    *("--learner.lstm-hidden-dim", "16", "--lessons.passes", "5"),
)
ENDLESS = ("--rounds", "1000")
# Workers do not know the tasks of tests.
POOLED_RUN = ("--task", "digits", "--rounds", "2", "--envs", "2", "--episode-length", "3", "--workers", "2")
POOLED_SETTINGS = (*TINY_SETTINGS, "--teacher", "None")


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("zygote") / "log.txt") as made:
        yield made


class Victim:
    """A run in a folder that is started, killed and resumed until it is over."""

    def __init__(self, zygote: Zygote, out: Path, *options: str) -> None:
        self._zygote, self._out, self._options = zygote, out, options
        self.kills = 0

    def go_on(self) -> tuple[str, ...]:
        """The command that begins the run, or goes on with it."""
        # Killed before its config was written, a run has not begun.
        begun = (self._out / "config.json").exists()
        return ("train", "--out", str(self._out), *(("--resume",) if begun else self._options))

    def kill_after(self, delay: float, number: signal.Signals, *, worker: bool = False) -> bool:
        """Let it run for `delay` seconds and kill it; true if it was over before."""
        running = self._zygote.start(*self.go_on())
        time.sleep(delay)
        lost = worker and running.kill_worker()
        running.kill(number)
        code = self._zygote.wait(running)
        if code == 0:
            return True
        # Before it listens to signals, a command dies of them like any other; one whose workers do not start fails.
        failed = lost and code == 1 and "could not be started" in self._told()
        assert failed or code in (-number, SAVED_AND_STOPPED.get(number), 128 + number), f"code {code}: {self._told()}"
        self.kills += 1
        return False

    def finish(self) -> None:
        """Let it run to its end."""
        assert self._zygote.run(*self.go_on()) == 0, self._told()

    def _told(self) -> str:
        return self._zygote.log.read_text()[-2000:]


def assert_nothing_shows(killed: Path, straight: Path) -> None:
    assert_same_run(straight, killed)
    summaries = [json.loads((out / "summary.json").read_text()) for out in (straight, killed)]
    assert summaries[0] == summaries[1]
    count = "select count(*), count(distinct round) from rounds"
    assert query(killed, count) == query(straight, count)
    left = {path.name for folder in (killed, killed / "checkpoints") for path in folder.glob(".*")}
    assert left == {".lock"}
    assert RunFolder(killed).stored_config() == RunFolder(straight).stored_config()


def kill_until(total: int, zygote: Zygote, tmp_path: Path, *options: str, worker: bool = False, seed: int = 0) -> None:
    """Whole runs, each killed at random moments until it gets to its end, until there were `total` kills."""
    start = time.monotonic()
    Victim(zygote, tmp_path / "straight", *options).finish()
    longest = time.monotonic() - start
    dice, kills, trial = random.Random(seed), 0, 0
    while kills < total:
        victim = Victim(zygote, tmp_path / f"killed-{trial}", *options)
        # Mostly early moments, or runs would be over before they were killed often.
        while not victim.kill_after(longest * dice.random() ** 2, dice.choice(SIGNALS), worker=worker):
            pass
        assert_nothing_shows(tmp_path / f"killed-{trial}", tmp_path / "straight")
        kills, trial = kills + victim.kills, trial + 1


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), SAVED_AND_STOPPED.items())
def test_a_command_that_is_told_to_stop_saves_and_exits_as_shells_expect(
    zygote: Zygote, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    folder = RunFolder(tmp_path / "run")
    running = zygote.start("train", "--out", str(folder.path), *TINY_RUN, *ENDLESS, *TINY_SETTINGS)
    wait_for(lambda: (folder.checkpoints / "round-000001.pt").exists())
    assert running.kill(number)
    assert zygote.wait(running) == code
    assert f"resume with: esper train --out {folder.path} --resume\n" in zygote.log.read_text()
    trainer = Trainer(folder.stored_config(), folder, resume=True)
    trainer.world.close()
    assert trainer.state.round >= 1
    assert len(trainer.state.history) == trainer.state.round


def test_a_second_command_in_the_folder_of_a_run_is_refused_in_one_sentence(
    zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    options = ("train", "--out", str(folder.path), *TINY_RUN, *ENDLESS, *TINY_SETTINGS)
    running = zygote.start(*options)
    wait_for(lambda: folder.newest() is not None)
    for again, message in (
        (("train", "--out", str(folder.path), "--resume"), f"is in use by process {running.pid};"),
        (options, "holds a run already"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(list(again))
        error = capsys.readouterr().err
        assert (stop.value.code, error.count("\n")) == (2, 1)
        assert message in error
    running.kill(signal.SIGKILL)
    assert zygote.wait(running) == -signal.SIGKILL


@pytest.mark.slow
def test_ninety_kills_at_random_moments_change_nothing(zygote: Zygote, tmp_path: Path) -> None:
    kill_until(90, zygote, tmp_path, *TINY_RUN, *TINY_SETTINGS)


@pytest.mark.slow
def test_a_dozen_kills_of_runs_together_with_one_of_their_workers_change_nothing(
    zygote: Zygote, tmp_path: Path
) -> None:
    kill_until(12, zygote, tmp_path, *POOLED_RUN, *POOLED_SETTINGS, worker=True, seed=1)


@pytest.mark.slow
def test_a_run_survives_its_workers(zygote: Zygote, tmp_path: Path) -> None:
    """What a lost worker played is lost and said to be lost; the run goes on."""
    out = tmp_path / "run"
    running = zygote.start("train", "--out", str(out), *POOLED_RUN, *POOLED_SETTINGS)
    killed = 0
    for _ in range(600):
        time.sleep(0.1)
        if RunFolder(out).newest() is not None and killed < 2:
            killed += running.kill_worker()
        if killed == 2 or (out / "summary.json").exists():
            break
    assert zygote.wait(running) == 0, zygote.log.read_text()[-2000:]
    assert len(json.loads((out / "summary.json").read_text())["history"]) == 2
    assert killed
