"""Command lines: whatever words stand on them, esper does it or says in one sentence why not."""

from pathlib import Path

import pytest

from tests.fuzzing_files import Case, blocks, odd_number, odd_text, run_cases, run_command

pytestmark = pytest.mark.slow

_COMMANDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("bench",): ("--json",),
    ("bench", "growth"): ("--tasks", "--controllers", "--seeds", "--seed", "--json"),
    ("bench", "oracle"): ("--tasks", "--candidates", "--seed", "--report-seeds", "--json"),
    ("bench", "speed"): ("--repeats", "--batch-size", "--quick", "--json"),
    ("blueprints",): ("--family", "--width", "--positions", "--json"),
    ("data",): ("--json",),
    ("data", "get"): (),
    ("data", "list"): ("--json",),
    ("demo",): ("--task", "--controller", "--seed", "--epochs", "--out", "--json"),
    ("doctor",): ("--json",),
    ("evaluate",): (
        "--controller", "--task", "--episodes", "--seed", "--price", "--budget-params", "--executor", "--json",
        "--picture"
    ),
    ("grow",): ("--task", "--controller", "--budget-params", "--seed", "--price", "--out", "--json"),
    ("sql",): ("--format",),
    ("tasks",): ("--json",),
    ("train",): (
        "--task", "--preset", "--config", "--learner.lr", "--rounds", "--envs", "--episode-length", "--seed",
        "--device", "--workers", "--telemetry", "--profile", "--resume", "--json"
    ),
}  # fmt: skip
_STOPPED_BY: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {
    ("bench", "growth"): (("--json", "/proc/x"), ("--tasks", "mnist"), ("--controllers", "never", "nobody")),
    ("bench", "oracle"): (("--json", "/proc/x"), ("--tasks", "mnist"), ("--candidates", "0")),
    ("bench", "speed"): (("--json", "/proc/x"), ("--repeats", "0")),
    ("demo",): (("--out", "/dev/null/x"), ("--task", "mnist"), ("--controller", "nobody")),
    ("evaluate",): (("--json", "/proc/x"), ("--task", "mnist"), ("--controller", "never", "nobody")),
    ("grow",): (("--out", "/dev/null/x"), ("--task", "mnist"), ("--controller", "nobody")),
    ("train",): (("--sink", "none", "--out", "/dev/null/x"),),
}
"""What ends commands that would otherwise compute for minutes, after they have looked at some of the rest."""
_NAMES = (
    "mnist1d", "digits", "tiny-blobs", "mnist1d:seed=7", "mnist1d:seed=-1", "mnist1d:", "ucr:GunPoint", "ucr:", "mnist",
    "never", "random", "heuristic", "loop", "stacked", "auto", "quick", "pair", "csv", "json", "table", "features",
    "cpu", "cuda", "cuda:99", "normal", "debug", "cifar10", "tinystories", "--debug", "--help", "-h",
)  # fmt: skip
_CHOICES = {"--format": ("table", "csv", "json"), "--family": ("all", "conv1d", "conv2d", "features")}


def _places(case: Case) -> tuple[str, ...]:
    """Files and folders of many kinds, and none, in the case's folder."""
    folder = case.folder
    (folder / "folder").mkdir()
    (folder / "file").write_text("{}")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "[red]").mkdir()
    (folder / "[red]" / "events.jsonl").write_text("")
    names = ("folder", "file", "file/x", "loop", "dangling", "none/x", "[red]", "x.png", "x.svg", "x" * 300)
    special = ("/dev/null", "/dev/full", "/proc/x", "/dev/null/x")
    return (*(str(folder / name) for name in names), *special)


def _values(case: Case, option: str, places: tuple[str, ...]) -> list[str]:
    """What follows an option: mostly of the right kind, and mostly as much as it takes."""
    draw = case.draw
    if draw.random() < 0.05:
        return [draw.choice((odd_text(draw), draw.choice(_NAMES))) for _ in range(draw.randrange(3))]
    if option in ("--quick", "--resume", "--help"):
        return []
    if option in ("--json", "--out", "--picture", "--config", "--profile"):
        return [draw.choice((*places, odd_text(draw)))]
    if option == "--controller" and draw.random() < 0.3:
        return [draw.choice(places)]
    if option in _CHOICES:
        return [draw.choice(_CHOICES[option])]
    if option in (
        "--task",
        "--tasks",
        "--controller",
        "--controllers",
        "--executor",
        "--preset",
        "--device",
        "--telemetry",
    ):
        return [draw.choice((odd_text(draw), *_NAMES)) for _ in range(draw.choice((1, 1, 1, 2)))]
    number = odd_number(draw)
    whole = isinstance(number, int) or option == "--price"
    return [str(number) if whole else str(draw.choice((0, 1, 2, 3, -1, draw.randrange(2**66))))]


def _line(case: Case) -> list[str]:
    draw, places = case.draw, _places(case)
    command = draw.choice((*_COMMANDS, *_STOPPED_BY, ("train",), ("train",), ("sql",)))
    words = [*command]
    if command == ("sql",):
        queries = ("select 1", "select * from events", "select * from rounds", odd_text(draw))
        run = str(case.folder / "[red]") if draw.random() < 0.5 else draw.choice((*places, odd_text(draw)))
        words += [run, draw.choice(queries)]
    if command == ("data", "get"):
        words += [draw.choice((*_NAMES, odd_text(draw))) for _ in range(draw.randrange(3))]
    for _ in range(draw.randrange(5)):
        option = draw.choice(_COMMANDS[command] or ("--help",)) if draw.random() < 0.97 else odd_text(draw)
        words.append(option)
        words += _values(case, option, places)
    if draw.random() < 0.05:
        draw.shuffle(words)
    words += draw.choice(_STOPPED_BY.get(command, ((),)))
    return [word for word in words if word != "--debug"]  # which shows tracebacks, as it should


@blocks(1500)
def test_a_line_is_done_or_answered_in_one_sentence(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPER_DATA", "/dev/null/data")  # nothing is downloaded, generated or kept
    monkeypatch.setenv("PATH", str(tmp_path))
    run_cases("command lines", first, tmp_path, lambda case: run_command(case, *_line(case)))
