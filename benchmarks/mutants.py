"""Planted faults that tests must notice: each is put into a copy of the source, and the tests that are about it run.

    python -m benchmarks.mutants                  # all of them, a few minutes
    python -m benchmarks.mutants --only entropy   # those with "entropy" in their name
    python -m benchmarks.mutants --list

The faults are in `mutants.toml`. One that no test notices, or that keeps the tests from running at all, is a failure.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
LIST = Path(__file__).with_suffix(".toml")
_TIME_LIMIT = 120.0
"""Seconds for the tests of one fault: some faults make a loop endless."""
_PASSED, _FAILED, _STOPPED = 0, 1, -1
"""What pytest returns if all tests passed, or one failed; anything else means that they did not run to their end."""
_PROCESSES = multiprocessing.get_context("forkserver")
_PRELOADED = ["torch", "torch._dynamo", "gymnasium"]
"""What every process begins with, because importing it takes most of the time of a quick test."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault."""

    name: str
    file: str
    """Below `src/esper`."""
    text: str
    """What stands there, exactly once."""
    put: str
    """What is planted instead."""
    tests: list[str]
    """Ids of the tests that must notice, as pytest takes them; only these are run."""

    def plant(self, source: Path) -> None:
        """Change the file in `source`, a copy of `src`."""
        path = source / "esper" / self.file
        code = path.read_text()
        if code.count(self.text) != 1:
            raise SystemExit(f"{self.name}: {self.file} holds the text {code.count(self.text)} times; it must be once")
        path.write_text(code.replace(self.text, self.put))


def load_mutants() -> list[Mutant]:
    """All faults of the list."""
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text())["mutant"]]


def run_tests(tests: Sequence[str], source: Path, time_limit: float | None) -> tuple[int, str]:
    """Run `tests` on the package in `source`; returns pytest's exit code and the end of what it said."""
    log = source.parent / "log"
    process = _PROCESSES.Process(target=_run_pytest, args=(list(tests), source, log))
    process.start()
    process.join(time_limit)
    if process.exitcode is None:
        process.kill()
        process.join()
        return _STOPPED, f"no end in {time_limit:.0f} s"
    return process.exitcode, "\n".join(log.read_text().splitlines()[-15:])


def _run_pytest(tests: list[str], source: Path, log: Path) -> None:
    """In a process of its own, which has torch already, but nothing of the package."""
    with log.open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(source), "HYPOTHESIS_STORAGE_DIRECTORY": str(source.parent / "hypothesis")}
    sys.path.insert(0, str(source))
    sys.dont_write_bytecode = True  # what is compiled from a fault must not outlive it
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
    package = sys.modules.get("esper")
    if package is not None and not Path(str(package.__file__)).is_relative_to(source):
        print(f"the tests ran on {package.__file__} instead of {source}")
        sys.exit(_STOPPED)
    sys.exit(int(code))


def judge(mutant: Mutant, source: Path) -> tuple[str, str]:
    """Plant, run, and take the fault out again: "killed", "survived" or "broken", and what pytest said."""
    original = SOURCE / "esper" / mutant.file
    mutant.plant(source)
    try:
        code, said = run_tests(mutant.tests, source, _TIME_LIMIT)
    finally:
        shutil.copy2(original, source / "esper" / mutant.file)
    return {_PASSED: "survived", _FAILED: "killed"}.get(code, "broken"), said


def run(mutants: Sequence[Mutant]) -> bool:
    """Print one line per fault; returns whether all were killed."""
    _PROCESSES.set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(SOURCE, Path(folder) / "src"))
        tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        print(f"{len(tests)} tests without a fault ...", flush=True)
        code, said = run_tests(tests, source, None)
        if code != _PASSED:
            print(f"they must pass first:\n{said}")
            return False
        start, failures = time.perf_counter(), []
        for number, mutant in enumerate(mutants, 1):
            began = time.perf_counter()
            verdict, said = judge(mutant, source)
            seconds = time.perf_counter() - began
            print(f"{number:3d}/{len(mutants)}  {verdict:8s}  {seconds:5.1f} s  {mutant.name}", flush=True)
            if verdict != "killed":
                failures.append((mutant, verdict, said))
        print(f"{len(mutants) - len(failures)} of {len(mutants)} killed in {time.perf_counter() - start:.0f} s")
    for mutant, verdict, said in failures:
        details = f":\n{said}" if verdict == "broken" else f" {', '.join(mutant.tests)}"
        print(f"\n{mutant.name} ({mutant.file}) {verdict}{details}")
    return not failures


def main() -> None:
    """Pick the faults that were asked for, and run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="faults whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    given = parser.parse_args()
    mutants = [mutant for mutant in load_mutants() if given.only in mutant.name]
    if not mutants:
        parser.error(f"no fault has {given.only!r} in its name; --list shows them all")
    if given.list:
        print("\n".join(f"{mutant.file:40s}  {mutant.name}" for mutant in mutants))
        return
    sys.exit(0 if run(mutants) else 1)


if __name__ == "__main__":
    main()
