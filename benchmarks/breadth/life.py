"""One whole life of growth on one architecture, every promise checked on the way."""

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import esper
from benchmarks.breadth.architecture import Architecture
from esper.kasmina import Blueprint, GraftedModel, arguments_for, blueprints_of, take_snapshot
from esper.leyline import Blend, InputError, Op, Stage
from esper.tolaria import Situation

STEPS = 2
"""Optimiser steps per epoch."""
EPOCHS = 18
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Life:
    """How it went."""

    name: str
    kind: str
    params: int
    outcome: str
    """passed, refused (with a sentence of Esper's), or failed."""
    seconds: float
    kept: str
    """The seed that was kept, or what went wrong."""
    culled: str = ""
    bypass: bool = False
    """Whether the seed that was kept connects."""
    places: str = ""
    """At how many of the places a bypass is offered."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A seed to plant."""

    slot: int
    path: str
    blueprint: Blueprint
    blend: Blend
    source: str = ""
    """What it reads, if it connects."""

    @property
    def action(self) -> list[int]:
        """The action that plants it."""
        return [self.slot, self.blueprint.id - 1, self.blend, Op.GERMINATE]

    def __str__(self) -> str:
        way = f" from {self.source}" if self.source else ""
        return f"{self.blueprint.name}{way} to {self.path}, {self.blend.name.lower()}"


class _Plan:
    """Two seeds: one to keep, a bypass where one fits, and one to cull, which refines; `number` varies all else."""

    def __init__(self, model: GraftedModel, number: int) -> None:
        self._model, self._number = model, number
        connecting = [slot for slot in range(len(model.sites)) if self._kinds(slot, connect=True)]
        self.places = f"{len(connecting)} of {len(model.sites)}"
        slots = connecting or list(range(len(model.sites)))
        self.kept = self._seed(slots[number % len(slots)], bool(connecting), number)
        others = [slot for slot in range(len(model.sites)) if slot != self.kept.slot and self._kinds(slot)]
        self.culled = self._seed(others[number // 2 % len(others)], False, number // 4) if others else None

    def _kinds(self, slot: int, *, connect: bool = False) -> list[Blueprint]:
        kinds = blueprints_of(self._model.sites[slot].shape.family)
        fits = self._model.catalogue.fits[slot]
        return [kind for kind in kinds if fits[kind.id - 1] and bool(kind.reads) is connect]

    def _seed(self, slot: int, connect: bool, turn: int) -> Planned:
        site, kinds = self._model.sites[slot], self._kinds(slot, connect=connect)
        kind = kinds[self._number // 3 % len(kinds)]
        source = site.source_of(kind.reads)
        # Counted on by one every four, or else the blend would go with the slot.
        blend = Blend((turn + turn // len(Blend)) % len(Blend))
        return Planned(slot, site.path, kind, blend, "" if source is None else str(source).removeprefix("the "))


class _Script:
    """Plants what is planned, keeps the one and culls the other."""

    name = "script"

    def __init__(self) -> None:
        self.plan: _Plan | None = None

    def reset(self, num_hosts: int, seed: int) -> None:
        """Nothing to forget."""

    def decide(self, situation: Situation) -> Tensor:
        """Plant in free slots, keep and cull what can be, wait else."""
        assert self.plan is not None
        masks, kept, culled = situation.masks, self.plan.kept, self.plan.culled
        for planned in (kept, culled):
            if planned and masks.slot[0, Op.GERMINATE, planned.slot] and situation.signals.epoch < 3:
                return torch.tensor([planned.action])
        if masks.slot[0, Op.FOSSILIZE, kept.slot]:
            return torch.tensor([[kept.slot, 0, 0, Op.FOSSILIZE]])
        if culled and masks.slot[0, Op.CULL, culled.slot] and situation.table.proven[0, culled.slot]:
            return torch.tensor([[culled.slot, 0, 0, Op.CULL]])
        return torch.zeros((1, 4), dtype=torch.int64)


def live(architecture: Architecture, number: int) -> Life:
    """Grow it: graft, germinate, train, blend, keep, cull, roll back, export. `number` varies slots and seeds."""
    start = time.perf_counter()
    torch.manual_seed(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that define architectures
        model = architecture.build()
    size = sum(parameter.numel() for parameter in model.parameters())

    def told(outcome: str, *details: Any) -> Life:
        seconds = time.perf_counter() - start
        return Life(architecture.name, architecture.kind, size, outcome, seconds, *details)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plan = _live(model, architecture, number)
        except InputError as error:
            return told("refused", str(error))
        except Exception as error:
            line = next(iter(str(error).strip().splitlines()), "")
            return told("failed", f"{type(error).__name__}: {line}")
    return told("passed", str(plan.kept), str(plan.culled or "only one place"), bool(plan.kept.source), plan.places)


def _live(model: nn.Module, architecture: Architecture, number: int) -> _Plan:
    example = architecture.example()
    before = _outputs(model, example)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scores, script = {"value": 0.5}, _Script()
    grower = esper.Grower(
        model,
        at=architecture.at,
        example=example,
        optimizer=optimizer,
        evaluate=lambda: scores["value"],
        controller=script,
        seed=number,
    )
    plan = script.plan = _Plan(grower.grafted, number)
    _check(_same(_outputs(grower.model, example), before, exact=True), "empty slots change the output")
    _grow(grower, optimizer, example, plan)
    owned = sum(len(group["params"]) for group in optimizer.param_groups)
    _check(owned == len(list(grower.grafted.parameters())), "the optimiser holds other parameters than the model")
    _check_kept(grower, example, plan)
    _roll_back(grower, optimizer, example, scores)
    plain = grower.export()
    _check(_same(_outputs(plain, example), _outputs(grower.model, example)), "the export computes something else")
    _check(not any(type(m).__module__ == "esper.kasmina.slot" for m in plain.modules()), "the export has slots")
    _check_program(plain, architecture, example)
    return plan


def _grow(grower: esper.Grower, optimizer: torch.optim.Optimizer, example: Any, plan: _Plan) -> None:
    """Epochs until one seed is kept and, where there are two slots, another one culled."""
    wanted = {Op.FOSSILIZE} if plan.culled is None else {Op.FOSSILIZE, Op.CULL}
    seen: set[Op] = set()
    for _ in range(EPOCHS):
        _train(grower, optimizer, example)
        decision = grower.step()
        _check(decision.rolled_back is None, f"rolled back: {decision.rolled_back}")
        seen.add(decision.op)
        if wanted <= seen:
            return
    raise AssertionError(f"never happened: {', '.join(op.name for op in wanted - seen)}")


def _check_kept(grower: esper.Grower, example: Any, plan: _Plan) -> None:
    """What was kept is what was planned, has an effect, and holds on to no tensor once a pass is over."""
    model, kept = grower.grafted, plan.kept
    _check(int(model.table.stage[0, kept.slot]) == Stage.FOSSILIZED, "the seed was not kept")
    _check(int(model.table.blueprint[0, kept.slot]) == kept.blueprint.id, "another seed was kept")
    with model.override_alpha(kept.path, 0.0):
        without = _outputs(grower.model, example)
    _check(not _same(_outputs(grower.model, example), without, exact=True), "the seed that was kept has no effect")
    grower.model.train()
    args, kwargs = arguments_for(grower.model, example)
    grower.model(*args, **kwargs)
    held = [value for tap in model.growth.host_pass.taps for value in vars(tap).values()]
    _check(not any(isinstance(value, Tensor) for value in held), "a tensor outlives its pass")


def _check_program(plain: nn.Module, architecture: Architecture, example: Any) -> None:
    """What grew does not keep torch from making a program of the model; some models cannot be one anyhow."""
    args, kwargs = arguments_for(plain, example)
    try:
        program = torch.export.export(plain.eval(), args, kwargs, strict=False)
    except Exception:
        try:
            torch.export.export(architecture.build().eval(), args, kwargs, strict=False)
        except Exception:
            return
        raise
    _check(_same(_outputs(program.module(), example), _outputs(plain, example)), "the program computes something else")


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
    good, outputs = take_snapshot(grower.grafted).tensors, _outputs(grower.model, example)
    _train(grower, optimizer, example)
    next(grower.grafted.host.parameters()).data.fill_(math.nan)
    scores["value"] = math.nan
    _check(grower.step().rolled_back is not None, "a failure went unnoticed")
    scores["value"] = 0.5
    now = take_snapshot(grower.grafted).tensors
    _check(now.keys() == good.keys() and all(torch.equal(now[k], good[k]) for k in good), "rollback was not exact")
    _check(_same(_outputs(grower.model, example), outputs, exact=True), "after the rollback the output is another one")


@torch.no_grad()
def _outputs(model: nn.Module, example: Any) -> list[Tensor]:
    modes = {module: module.training for module in model.modules()}
    for module in modes:
        module.training = False
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
