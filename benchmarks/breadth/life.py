"""One whole life of growth on one architecture, every promise checked on the way."""

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import esper
from benchmarks.breadth.architecture import Architecture
from esper.kasmina import arguments_for, find_blueprint, take_snapshot
from esper.leyline import InputError, Op
from esper.tolaria import Situation

STEPS = 2
"""Optimiser steps per epoch."""
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Life:
    """How it went."""

    name: str
    kind: str
    params: int
    outcome: str
    """passed, refused (with a sentence of Esper's), or failed."""
    detail: str
    """Seeds that lived, or why there were none."""
    seconds: float


class _Script:
    """Two seeds: the first is kept, the second is culled."""

    name = "script"

    def __init__(self, first_blueprint: int) -> None:
        self._wanted = first_blueprint

    def reset(self, num_hosts: int, seed: int) -> None:
        """Nothing to forget."""

    def decide(self, situation: Situation) -> Tensor:
        """Germinate in free slots, keep the first seed that can be kept, cull the second, wait else."""
        masks, stages = situation.masks, situation.table.stage[0].tolist()
        last = len(stages) - 1
        for slot in dict.fromkeys((0, last)):
            if masks.slot[0, Op.GERMINATE, slot] and situation.signals.epoch < 3:
                legal = masks.blueprint[0, slot].nonzero().flatten().tolist()
                return torch.tensor([[slot, legal[(self._wanted + slot) % len(legal)], 0, Op.GERMINATE]])
        if masks.slot[0, Op.FOSSILIZE, 0]:
            return torch.tensor([[0, 0, 0, Op.FOSSILIZE]])
        if last and masks.slot[0, Op.CULL, last] and situation.table.proven[0, last]:
            return torch.tensor([[last, 0, 0, Op.CULL]])
        return torch.zeros((1, 4), dtype=torch.int64)


def live(architecture: Architecture, number: int) -> Life:
    """Grow it: graft, germinate, train, blend, keep, cull, roll back, export. `number` varies the blueprints."""
    start = time.perf_counter()
    torch.manual_seed(number)
    model = architecture.build()
    size = sum(parameter.numel() for parameter in model.parameters())

    def told(outcome: str, detail: str) -> Life:
        return Life(architecture.name, architecture.kind, size, outcome, detail, time.perf_counter() - start)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return told("passed", _live(model, architecture, number))
        except InputError as error:
            return told("refused", str(error))
        except Exception as error:
            line = next(iter(str(error).strip().splitlines()), "")
            return told("failed", f"{type(error).__name__}: {line}")


def _live(model: nn.Module, architecture: Architecture, number: int) -> str:
    example = architecture.example()
    before = _outputs(model, example)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scores = {"value": 0.5}
    grower = esper.Grower(
        model,
        at=architecture.at,
        example=example,
        optimizer=optimizer,
        evaluate=lambda: scores["value"],
        controller=_Script(number),
        seed=number,
    )
    _check(_same(_outputs(grower.model, example), before, exact=True), "empty slots change the output")
    kinds = dict(_grow(grower, optimizer, example))
    _check(len(kinds) >= 1, "no seed lived")
    owned = sum(len(group["params"]) for group in optimizer.param_groups)
    _check(owned == len(list(grower.grafted.parameters())), "the optimiser holds other parameters than the model")
    _roll_back(grower, optimizer, example, scores)
    plain = grower.export()
    _check(_same(_outputs(plain, example), _outputs(grower.model, example)), "the export computes something else")
    _check(not any(type(m).__module__ == "esper.kasmina.slot" for m in plain.modules()), "the export has slots")
    return ", ".join(f"{kind} at {path}" for path, kind in kinds.items())


def _grow(grower: esper.Grower, optimizer: torch.optim.Optimizer, example: Any) -> Iterator[tuple[str, str]]:
    """Epochs until one seed is kept and, where there are two slots, another one culled; yields what germinated."""
    wanted = {Op.FOSSILIZE} if len(grower.grafted.sites) == 1 else {Op.FOSSILIZE, Op.CULL}
    seen: set[Op] = set()
    for _ in range(14):
        _train(grower, optimizer, example)
        decision = grower.step()
        _check(decision.rolled_back is None, f"rolled back: {decision.rolled_back}")
        seen.add(decision.op)
        if decision.op is Op.GERMINATE and decision.slot and decision.blueprint:
            site = grower.grafted.sites[grower.grafted.slot_index(decision.slot)]
            yield decision.slot, find_blueprint(site.shape.family, decision.blueprint).name
        if wanted <= seen:
            return
    raise AssertionError(f"never happened: {', '.join(op.name for op in wanted - seen)}")


def _train(grower: esper.Grower, optimizer: torch.optim.Optimizer, example: Any) -> None:
    grower.model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        args, kwargs = arguments_for(grower.model, example)
        leaves = [leaf for leaf in tree_leaves(grower.model(*args, **kwargs)) if _learnable(leaf)]
        torch.stack([_loss(leaf) for leaf in leaves]).sum().backward()
        optimizer.step()


def _loss(leaf: Tensor) -> Tensor:
    """Distance from fixed noise; from 0 it would be constant behind a normalisation."""
    noise = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(0))
    return (leaf.float() - noise).square().mean()


def _learnable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_floating_point()


def _roll_back(grower: esper.Grower, optimizer: torch.optim.Optimizer, example: Any, scores: dict[str, float]) -> None:
    _train(grower, optimizer, example)
    grower.step()
    good = take_snapshot(grower.grafted).tensors
    _train(grower, optimizer, example)
    next(grower.grafted.host.parameters()).data.fill_(math.nan)
    scores["value"] = math.nan
    _check(grower.step().rolled_back is not None, "a failure went unnoticed")
    scores["value"] = 0.5
    now = take_snapshot(grower.grafted).tensors
    _check(now.keys() == good.keys() and all(torch.equal(now[k], good[k]) for k in good), "rollback was not exact")


@torch.no_grad()
def _outputs(model: nn.Module, example: Any) -> list[Tensor]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    torch.manual_seed(0)
    args, kwargs = arguments_for(model, example)
    leaves = tree_leaves(model(*args, **kwargs))
    for module, mode in modes.items():
        module.training = mode
    return [leaf.clone() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _same(ours: list[Tensor], theirs: list[Tensor], *, exact: bool = False) -> bool:
    size = max([1.0, *(float(one.abs().max()) for one in theirs if one.numel())])
    tolerance = 0.0 if exact else TOLERANCE * size
    return len(ours) == len(theirs) and all(
        torch.allclose(one, other, rtol=0, atol=tolerance, equal_nan=True)
        for one, other in zip(ours, theirs, strict=True)
    )


def _check(fine: bool, complaint: str) -> None:
    if not fine:
        raise AssertionError(complaint)
