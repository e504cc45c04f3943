"""The pages that teach run as printed."""

import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import esper.kasmina.blueprints.registry as registry

DOCS = Path(__file__).parents[1] / "docs"
PACKAGES = {"lightning": ("lightning",), "huggingface": ("transformers", "accelerate")}


def blocks(page: str, kind: str = "") -> list[str]:
    """The Python examples of a page that need no extra, or those that need the extra `kind`."""
    marked = re.findall(r"```python *(\w*)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return [code for word, code in marked if word == kind]


def run(page: str, codes: list[str], names: dict[str, Any]) -> dict[str, Any]:
    for code in codes:
        exec(compile(code, page, "exec", dont_inherit=True), names)
    return names


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("in_folder")
def test_the_tutorial_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("tutorial.md", blocks("tutorial.md"), {"__name__": "__main__"})
    assert "germinated" in capsys.readouterr().out
    assert names["resumed"].history[-1].epoch == 16


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("kind", PACKAGES)
def test_the_tutorial_runs_with_the_extra(kind: str) -> None:
    if any(find_spec(package) is None for package in PACKAGES[kind]):
        pytest.skip(f"the extra {kind} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of those packages
        names = run("tutorial.md", [blocks("tutorial.md")[0], *blocks("tutorial.md", kind)], {"__name__": "__main__"})
    assert len(names["growth"].decisions) == 8


def test_the_blueprint_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    run("add-a-blueprint.md", blocks("add-a-blueprint.md"), {"__name__": "__main__"})


def test_pages_name_only_source_files_that_exist() -> None:
    root = DOCS.parent
    folders = ("src", "lab", "tests", "benchmarks", "examples")
    paths = [f"/{path.relative_to(root)}" for folder in folders for path in (root / folder).rglob("*.py")]
    made = {"grown.py"}  # by the tutorial
    for page in (root / "README.md", root / "CONTRIBUTING.md", *DOCS.glob("*.md")):
        named = set(re.findall(r"[\w/-]+\.py\b", page.read_text())) - made
        gone = [name for name in named if not any(path.endswith(f"/{name}") for path in paths)]
        assert not gone, f"{page.name} names {', '.join(gone)}"
