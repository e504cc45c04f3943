"""Writing a grown network as a program, an ONNX model, or code with weights."""

import io
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from esper.kasmina import Folded, GraftedModel, SlotTable, arguments_for, emit_source, fold
from esper.kasmina.keeping import evaluating
from esper.leyline import InputError, first_line, write_atomically

_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def check_target(path: Path | None, overwrite: bool) -> None:
    """Refuse, before anything is measured, a file that cannot be written or that would be overwritten."""
    if path is None:
        return
    if path.suffix not in _WRITERS:
        raise InputError(f"cannot export to {path.name!r}; the name must end in {', '.join(_WRITERS)}")
    missing = [name for name in _ONNX_PACKAGES if find_spec(name) is None] if path.suffix == ".onnx" else []
    if missing:
        raise InputError(f"exporting to ONNX needs {', '.join(missing)}; install them with pip install 'esper[onnx]'")
    for file in (path, _weights_of(path)) if path.suffix == ".py" else (path,):
        if file.exists() and not overwrite:
            raise InputError(f"{file} exists; choose another name, or replace it with export(..., overwrite=True)")


def export(grafted: GraftedModel, table: SlotTable, example: Any, path: Path | None) -> nn.Module:
    """The plain network of `grafted` with the seeds kept in `table`, written to `path` in the format of its suffix."""
    folded = fold(grafted, example, table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _WRITERS[path.suffix](folded, example, path)
    return folded.network


def _weights_of(path: Path) -> Path:
    return path.with_suffix(".pt")


def _write_code(folded: Folded, example: Any, path: Path) -> None:  # noqa: ARG001  # as the others
    weights = _weights_of(path)
    state = folded.network.state_dict()
    for name, value in state.items():
        state[name] = value.cpu() if isinstance(value, Tensor) else value  # so that it loads on any machine
    packed = io.BytesIO()
    torch.save(state, packed)
    source = emit_source(folded, weights.name)
    write_atomically(weights, packed.getvalue())
    write_atomically(path, source.encode())


def _write_program(folded: Folded, example: Any, path: Path) -> None:
    packed = io.BytesIO()
    torch.export.save(_program(folded.network, example), packed)
    write_atomically(path, packed.getvalue())


def _write_onnx(folded: Folded, example: Any, path: Path) -> None:
    program = torch.onnx.export(_program(folded.network, example), dynamo=True, verbose=False)
    assert program is not None
    program.save(path)


_WRITERS = {".pt2": _write_program, ".onnx": _write_onnx, ".py": _write_code}


def _program(network: nn.Module, example: Any) -> ExportedProgram:
    """The network in evaluation mode, for batches of any size if the model allows that."""
    args, kwargs = arguments_for(network, example)
    with evaluating(network):
        try:
            return torch.export.export(network, args, kwargs, dynamic_shapes=_free_batch(args, kwargs))
        except Exception as error:
            warnings.warn(f"the program takes batches like the example only: {first_line(error)}", stacklevel=5)
        try:
            return torch.export.export(network, args, kwargs)
        except Exception as error:
            raise InputError(
                f"torch.export cannot make a program of this model: {first_line(error)}. The plain module that export "
                "returns, and code with weights (a name that ends in .py), do not need one"
            ) from error


def _free_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dynamic shapes in which the first axis of every tensor is the batch."""
    batch = Dim("batch")

    def free(value: Any) -> Any:
        return {0: batch} if isinstance(value, Tensor) and value.ndim else None

    return (*map(free, args),) if not kwargs else {name: free(value) for name, value in kwargs.items()}
