"""Emitting code that rebuilds a grown network without Esper: the classes of its seeds, and where they go."""

import ast
import builtins
import importlib
import inspect
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any

import torch

from esper.kasmina.export import bypass, insert
from esper.kasmina.export.fold import Folded, KeptSeed
from esper.kasmina.growth import floating_dtype
from esper.leyline import InputError

_OWN = "esper"
_HEAD = '''"""A network grown by Esper; nothing but torch is needed to use it.

`grow` puts the seeds that were kept into an instance of the original model; then load the weights:

    model = grow(OriginalModel(...))
    model.load_state_dict(torch.load(WEIGHTS, weights_only=True))
"""
'''


def emit_source(folded: Folded, weights: str) -> str:
    """Python source with a function `grow` that gives the original model the structure of `folded`.

    `weights` is the name of the file with the state dict.
    """
    gathered = _Gathered()
    gathered.need(insert, "insert_seed")
    steps, bypasses = [], []
    for path, seed in folded.inserted.items():
        built = _built(seed, gathered)
        if seed.source is None:
            steps.append(f"    insert_seed(model, {path!r}, {built})")
        else:
            bypasses.append(f"Bypass({_value(seed.source, gathered)}, {path!r}, {built})")
    if bypasses:
        gathered.need(bypass, "insert_bypasses")
        listed = "".join(f"        {entry},\n" for entry in bypasses)
        steps.append(f"    bypasses = [\n{listed}    ]")
        steps.append(f"    insert_bypasses(model, bypasses, nest={folded.nested})")
    body = "\n".join([*steps, "    return model"])
    grow = f'def grow(model: nn.Module) -> nn.Module:\n    """Give `model` the seeds that were kept."""\n{body}\n'
    imports = "\n".join(sorted(gathered.imports | {"import torch", "from torch import nn"}))
    # A name is data: as a literal it can be anything, in a docstring it could end that and begin code.
    constant = f"WEIGHTS = {weights!r}"
    return "\n\n".join([_HEAD + "\n" + imports, constant, *gathered.pieces.values(), grow])


def _built(seed: KeptSeed, gathered: "_Gathered") -> str:
    """An expression that makes a seed, but for its weights."""
    kind = type(seed.module)
    gathered.need(sys.modules[kind.__module__], kind.__name__)
    built = f"{kind.__name__}({_value(seed.site.shape, gathered)}).to({floating_dtype(seed.module) or torch.float32})"
    if seed.alpha == 1:
        return built
    gathered.need(insert, "Scaled")
    return f"Scaled({built}, {seed.alpha!r})"


def _value(value: Any, gathered: "_Gathered") -> str:
    """An expression for a value: of a plain type, of an enum or of a dataclass with such values."""
    kind = type(value)
    if isinstance(value, tuple):
        return f"({''.join(f'{_value(part, gathered)}, ' for part in value).strip()})"
    if isinstance(value, Enum):
        gathered.need(sys.modules[kind.__module__], kind.__name__)
        return f"{kind.__name__}.{value.name}"
    if not is_dataclass(value):
        return repr(value)
    gathered.need(sys.modules[kind.__module__], kind.__name__)
    given = {spec.name: getattr(value, spec.name) for spec in fields(value) if spec.init}
    listed = ", ".join(f"{name}={_value(part, gathered)}" for name, part in given.items())
    return f"{kind.__name__}({listed})"


class _Gathered:
    """Definitions, each after those it needs, and imports of what is not ours."""

    def __init__(self) -> None:
        self.pieces: dict[tuple[str, str], str] = {}
        self.imports: set[str] = set()
        self._visiting: set[tuple[str, str]] = set()
        self._parsed: dict[str, dict[str, ast.stmt]] = {}

    def need(self, module: ModuleType, name: str) -> None:
        """Gather what `name` is bound to at the top of `module`."""
        key = (module.__name__, name)
        if key in self._visiting:
            return
        self._visiting.add(key)
        here = self._definitions(module, name)
        if name not in here:
            raise InputError(f"{name} is not defined at the top of {module.__name__}, so it cannot be emitted")
        node = here[name]
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, name)
            return
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            # Registering is for growing; what is emitted has grown.
            node.decorator_list = [item for item in node.decorator_list if "blueprint(" not in ast.unparse(item)]
        for needed in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)}):
            if needed != name and not hasattr(builtins, needed) and needed in here:
                self.need(module, needed)
        self.pieces[key] = ast.unparse(node)

    def _definitions(self, module: ModuleType, name: str) -> dict[str, ast.stmt]:
        """What each name at the top of `module`, such as `name`, is bound to; the last binding counts."""
        if module.__name__ not in self._parsed:
            try:
                tree = ast.parse(inspect.getsource(module))
            except OSError as error:
                wanted = f"{module.__name__}.{name}"
                raise InputError(f"the source of {wanted} cannot be read, so it cannot be emitted") from error
            self._parsed[module.__name__] = {bound: node for node in tree.body for bound in _bound(node)}
        return self._parsed[module.__name__]

    def _import(self, node: ast.Import | ast.ImportFrom, name: str) -> None:
        alias = next(item for item in node.names if (item.asname or item.name.partition(".")[0]) == name)
        source = node.module if isinstance(node, ast.ImportFrom) else None
        if source is not None and source.partition(".")[0] == _OWN:
            self.need(importlib.import_module(source), alias.name)
            return
        words = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        self.imports.add(f"from {source} import {words}" if source else f"import {words}")


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {item.asname or item.name.partition(".")[0] for item in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}
