"""Writing a grown network as a program, an ONNX model, or code with weights."""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from esper.kasmina import Folded, GraftedModel, arguments_for, emit_source, fold
from esper.leyline import InputError

_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def export(grafted: GraftedModel, example: Any, path: Path | None) -> nn.Module:
    """The plain network of `grafted`, written to `path` in the format that its suffix names."""
    if path is not None and path.suffix not in _WRITERS:
        raise InputError(f"cannot export to {path.name!r}; the name has to end in {', '.join(_WRITERS)}")
    folded = fold(grafted, example)
    if folded.dropped:
        warnings.warn(
            f"left out of the export, because not kept for good yet: the seeds behind {', '.join(folded.dropped)}",
            stacklevel=3,
        )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _WRITERS[path.suffix](folded, example, path)
    return folded.network


def _write_code(folded: Folded, example: Any, path: Path) -> None:  # noqa: ARG001  # as the others
    weights = path.with_suffix(".pt")
    path.write_text(emit_source(folded, weights.name))
    state = folded.network.state_dict()
    for name, value in state.items():
        state[name] = value.cpu() if isinstance(value, Tensor) else value  # so that it loads on any machine
    torch.save(state, weights)


def _write_program(folded: Folded, example: Any, path: Path) -> None:
    torch.export.save(_program(folded.network, example), path)


def _write_onnx(folded: Folded, example: Any, path: Path) -> None:
    missing = [name for name in _ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"exporting to ONNX needs {', '.join(missing)}; install them with pip install 'esper[onnx]'")
    program = torch.onnx.export(_program(folded.network, example), dynamo=True, verbose=False)
    assert program is not None
    program.save(path)


_WRITERS = {".pt2": _write_program, ".onnx": _write_onnx, ".py": _write_code}


def _program(network: nn.Module, example: Any) -> ExportedProgram:
    """The network in evaluation mode, for batches of any size if the model allows that."""
    args, kwargs = arguments_for(network, example)
    was_training = network.training
    network.eval()
    try:
        return torch.export.export(network, args, kwargs, dynamic_shapes=_free_batch(args, kwargs))
    except Exception as error:
        warnings.warn(f"the program takes batches like the example only: {_first_line(error)}", stacklevel=5)
        return _fixed_program(network, args, kwargs)
    finally:
        network.train(was_training)


def _fixed_program(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    try:
        return torch.export.export(network, args, kwargs)
    except Exception as error:
        raise InputError(
            f"torch.export cannot make a program of this model: {_first_line(error)}. The plain module that export "
            "returns, and code with weights (a name that ends in .py), do not need one"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _free_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dynamic shapes in which the first axis of every tensor is the batch."""
    batch = Dim("batch")

    def free(value: Any) -> Any:
        return {0: batch} if isinstance(value, Tensor) and value.ndim else None

    return (*map(free, args),) if not kwargs else {name: free(value) for name, value in kwargs.items()}
