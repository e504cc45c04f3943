"""Exports of a growth: the plain module, a program, an ONNX model, code with weights."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.leyline import InputError
from tests.api.growing.builders import LIFE, Script, fossilize, germinate, grow, make_data, make_grower, make_mlp

ONNX = importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxscript")
FAMILIES: dict[str, tuple[Any, str, Any]] = {
    "features": (make_mlp, "1", lambda: make_data()[0]),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
        "0",
        lambda: torch.randn(4, 5, 6),
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3)),
        "0",
        lambda: torch.randn(4, 3, 12),
    ),
    "conv2d": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
        "0",
        lambda: torch.randn(4, 3, 9, 9),
    ),
}


def grown(family: str) -> tuple[esper.Grower, Tensor]:
    """A grower of this family with one kept seed that matters."""
    build, path, batch = FAMILIES[family]
    model, x = build(), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    controller = Script([germinate(0, 3), *LIFE[1:6], fossilize(0)])
    grower = make_grower(
        model=model, optimizer=optimizer, example=x, at=[path], evaluate=lambda: 0.5, controller=controller
    )
    for _ in range(7):
        for _ in range(3):
            optimizer.zero_grad()
            (grower.model(x) ** 2).mean().backward()
            optimizer.step()
        grower.step()
    return grower, x


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plain_module_and_its_program_compute_what_the_grown_one_does(family: str, tmp_path: Path) -> None:
    grower, x = grown(family)
    plain = grower.export(tmp_path / "grown.pt2")
    expected = grower.model(x)
    torch.testing.assert_close(plain(x), expected, rtol=0, atol=1e-5)
    program = torch.export.load(tmp_path / "grown.pt2").module()
    torch.testing.assert_close(program(x), expected, rtol=0, atol=1e-5)
    more = torch.cat([x, x, x])
    torch.testing.assert_close(program(more), plain(more), rtol=0, atol=1e-5)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in grower.grafted.parameters())


@pytest.mark.skipif(not ONNX, reason="the extra onnx is not installed")
@pytest.mark.parametrize("family", ["features", "conv2d"])
def test_onnx_computes_it_too(family: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    grower, x = grown(family)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own packages
        plain = grower.export(tmp_path / "grown.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "grown.onnx")
    name = session.get_inputs()[0].name
    for batch in (x, torch.cat([x, x])):
        (result,) = session.run(None, {name: batch.numpy()})
        torch.testing.assert_close(torch.tensor(result), plain(batch).detach(), rtol=0, atol=1e-4)


def test_code_and_weights_are_written_side_by_side(tmp_path: Path) -> None:
    grower, x = grown("features")
    plain = grower.export(tmp_path / "deep" / "grown.py")
    names: dict[str, Any] = {"__name__": "emitted"}
    exec((tmp_path / "deep" / "grown.py").read_text(), names)
    model = names["grow"](make_mlp())
    model.load_state_dict(torch.load(tmp_path / "deep" / "grown.pt", weights_only=True))
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)


def test_an_export_without_a_step_or_to_an_unknown_format_is_refused(tmp_path: Path) -> None:
    grower = make_grower()
    with pytest.raises(InputError, match="was never called, so nothing could grow"):
        grower.export()
    grow(grower, 1)
    with pytest.raises(InputError, match=r"must end in \.pt2, \.onnx, \.py"):
        grower.export(tmp_path / "grown.bin")


@pytest.mark.parametrize(("name", "there"), [("net.py", "net.py"), ("net.py", "net.pt"), ("net.pt2", "net.pt2")])
def test_a_file_that_exists_is_replaced_only_on_request(tmp_path: Path, name: str, there: str) -> None:
    grower = make_grower(controller=Script(LIFE))
    grow(grower, 7)
    (tmp_path / there).write_text("my own work")
    with pytest.raises(InputError, match=f"{there} exists; choose another name, or .*overwrite=True"):
        grower.export(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "my own work"
    grower.export(tmp_path / name, overwrite=True)
    assert (tmp_path / there).read_bytes() != b"my own work"


class Fickle(nn.Module):
    """Looks at its data to decide what to do, which no program can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layer(x)
        return h * 2 if float(h.detach().sum()) > 0 else h + 1


def test_a_model_that_is_no_program_is_refused_with_what_works(tmp_path: Path) -> None:
    model = nn.Sequential(Fickle(), nn.Linear(6, 3))
    grower = make_grower(model=model, at=["0.layer"])
    grow(grower, 1)
    with (
        pytest.raises(InputError, match="cannot make a program of this model"),
        pytest.warns(UserWarning, match="batches like the example only"),
    ):
        grower.export(tmp_path / "grown.pt2")
