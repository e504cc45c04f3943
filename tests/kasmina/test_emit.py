"""Code that rebuilds a grown network, where Esper cannot be imported too."""

import copy
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Site, emit_source, fold
from esper.kasmina.export.fold import Folded, KeptSeed, insert_kept
from esper.kasmina.sites import Family, SiteShape
from tests.kasmina.structures import WIDTH, Loop, layers, read, returned
from tests.kasmina.test_fold import KINDS, grown, networks


@pytest.mark.parametrize(("family", "blueprint"), KINDS)
def test_emitted_code_rebuilds_it_without_esper(family: Family, blueprint: str) -> None:
    model, path, x = networks()[family]
    original = copy.deepcopy(model)
    folded = fold(grown(model, {path: blueprint}, x), x)
    source = emit_source(folded, "weights.pt")
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(source, "emitted", "exec", dont_inherit=True), names)
    assert "esper." not in source
    rebuilt = names["grow"](original)
    rebuilt.load_state_dict(folded.network.state_dict())
    torch.testing.assert_close(rebuilt(x), folded.network(x), rtol=0, atol=0)


def assert_runs_without_esper(script: str, folder: Path) -> None:
    """Run `script` in a process of its own in which any import of Esper fails."""
    barred = 'import sys\nsys.modules["esper"] = None\n'
    done = subprocess.run([sys.executable, "-c", barred + script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_emitted_code_runs_where_esper_cannot_be_imported(tmp_path: Path) -> None:
    model, path, x = networks()[Family.CONV2D]
    folded = fold(grown(model, {path: "depthwise"}, x), x)
    (tmp_path / "grown.py").write_text(emit_source(folded, "grown.pt"))
    torch.save(folded.network.state_dict(), tmp_path / "grown.pt")
    torch.save({"x": x, "y": folded.network(x).detach()}, tmp_path / "pair.pt")
    script = """
import torch
from torch import nn
from grown import grow
model = grow(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)))
model.load_state_dict(torch.load("grown.pt", weights_only=True))
pair = torch.load("pair.pt", weights_only=True)
assert torch.allclose(model(pair["x"]), pair["y"], atol=1e-6)
"""
    assert_runs_without_esper(script, tmp_path)


def test_no_name_of_a_file_becomes_code() -> None:
    model, path, x = networks()[Family.FEATURES]
    name = 'w""";raise SystemExit("executed");""".pt'
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit_source(fold(grown(model, {path: "mlp"}, x), x), name), "emitted", "exec"), names)
    assert names["WEIGHTS"] == name


def test_a_network_rebuilt_by_emitted_code_is_pickled_without_esper(tmp_path: Path) -> None:
    model, path, x = networks()[Family.FEATURES]
    folded = fold(grown(model, {path: "mlp"}, x), x)
    (tmp_path / "grown.py").write_text(emit_source(folded, "grown.pt"))
    make, load = (
        """
import torch
from torch import nn
from grown import grow
torch.save(grow(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))), "whole.pt")
""",
        """
import torch
assert torch.load("whole.pt", weights_only=False)(torch.randn(4, 5, 6)).shape == (4, 5, 3)
""",
    )
    for script in (make, load):
        assert_runs_without_esper(script, tmp_path)


class FeatureBranch(nn.Module):
    """A seed as blueprints make them, from the shape of its site."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(site.width, 4), nn.Linear(4, site.width)

    def forward(self, source: Tensor) -> Tensor:
        result: Tensor = self.out(self.hidden(source).relu())
        return result


def kept(path: str, source: Any, alpha: float = 1.0) -> KeptSeed:
    shape = SiteShape(Family.FEATURES, WIDTH)
    return KeptSeed(Site(path, "r0c0", shape, torch.float32), FeatureBranch(shape), alpha, source)


KEPT: dict[str, tuple[Callable[[], nn.Module], list[tuple[str, Any]]]] = {
    "layers": (layers, [("3", read("1")), ("4", returned("2")), ("0", None)]),
    "Loop": (Loop, [("blocks.2", read("", "x")), ("blocks.3", returned("blocks.0", changed=True)), ("blocks.1", None)]),
}


def folded(name: str, *, nest: bool) -> Folded:
    """A network of `KEPT` with its seeds, the second of which counts half."""
    make, places = KEPT[name]
    seeds = {path: kept(path, source, alpha) for (path, source), alpha in zip(places, (1, 0.5, 1), strict=True)}
    network = make()
    insert_kept(network, seeds, nest=nest)
    return Folded(network, seeds, nest)


@pytest.mark.parametrize("nest", [True, False])
@pytest.mark.parametrize("name", KEPT)
def test_emitted_code_rebuilds_bypasses(name: str, nest: bool) -> None:
    export = folded(name, nest=nest)
    source = emit_source(export, "grown.pt")
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(source, "emitted", "exec", dont_inherit=True), names)
    assert "esper." not in source
    rebuilt = names["grow"](KEPT[name][0]())
    rebuilt.load_state_dict(export.network.state_dict())
    x = torch.randn(5, WIDTH)
    torch.testing.assert_close(rebuilt(x), export.network(x), rtol=0, atol=0)


def test_emitted_bypasses_run_where_esper_cannot_be_imported(tmp_path: Path) -> None:
    export, x = folded("Loop", nest=True), torch.randn(5, WIDTH)
    (tmp_path / "grown.py").write_text(emit_source(export, "grown.pt"))
    (tmp_path / "host.py").write_text(
        f"import torch\nfrom torch import Tensor, nn\nWIDTH = {WIDTH}\n{inspect.getsource(Loop)}"
    )
    torch.save(export.network.state_dict(), tmp_path / "grown.pt")
    torch.save({"x": x, "y": export.network(x).detach()}, tmp_path / "pair.pt")
    script = """
import pickle
import torch
from grown import grow
from host import Loop
model = grow(Loop())
model.load_state_dict(torch.load("grown.pt", weights_only=True))
pair = torch.load("pair.pt", weights_only=True)
assert torch.equal(model(pair["x"]), pair["y"])
assert torch.equal(pickle.loads(pickle.dumps(model))(pair["x"]), pair["y"])
"""
    assert_runs_without_esper(script, tmp_path)
