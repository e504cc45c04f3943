"""The forward pass of stacked hosts: a chain of parts, parts that run many copies at once, and rows on their way.

`rows.py` says which rows there are and where branches leave their trunk; here they are computed.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from esper.kasmina import Host, Site, Source
from esper.kasmina.taps import fit_positions
from esper.kasmina.torch_private import DROPOUT, own_parameters
from esper.leyline import InputError
from esper.tolaria.executors.row_layers import ROW_LAYERS, row_class
from esper.tolaria.executors.rows import Crossing, GroupKey, Route

_TRIAL_COPIES, _TRIAL_SAMPLES = 2, 3


@dataclass(frozen=True, slots=True)
class Chain:
    """The parts in order. Place `p` is in front of part `p`; what the last one returns has a place too."""

    parts: tuple[str, ...]
    slots: dict[int, int]
    """By part: the slot behind it."""
    sources: dict[Source, int]
    """The place of each tensor that seeds can read."""


def cut_chain(host: Host, sites: Sequence[Site]) -> Chain:
    """The chain of `host` for slots at `sites`: parts that are sequences are taken apart where there is need."""
    sources = {source for site in sites for _, source in site.sources}
    parts = list(host.parts)
    for path in (*(site.path for site in sites), *(source.path for source in sources)):
        # From the outside in: the children of a sequence may be sequences again.
        while path and (whole := next((part for part in parts if path.startswith(f"{part}.")), None)):
            index = parts.index(whole)
            parts[index : index + 1] = [f"{whole}.{name}" for name, _ in host.get_submodule(whole).named_children()]
    # A slot is behind the last part of its submodule.
    slots = {_last(parts, site.path): slot for slot, site in enumerate(sites)}
    return Chain(tuple(parts), slots, {source: _place(parts, source) for source in sources})


def _place(parts: list[str], source: Source) -> int:
    if source.port == "output":
        return _last(parts, source.path) + 1
    return next(
        index for index, part in enumerate(parts) if not source.path or f"{part}.".startswith(f"{source.path}.")
    )


def _last(parts: list[str], path: str) -> int:
    """The last part of the submodule `path`, which may have been taken apart."""
    return max(index for index, part in enumerate(parts) if f"{part}.".startswith(f"{path}."))


class Batched:
    """A module as a function of stacked parameters `[R, ...]` and stacked inputs `[R, B, ...]`.

    Two ways: *folded*, the samples of all copies as one batch through row layers, and `vmap`, which knows every
    module but costs several times as much per call. The first call tries both on random numbers, and where folding
    gives something else, as in a module that mixes samples, `vmap` it is.
    """

    def __init__(self, module: nn.Module) -> None:
        if list(module.buffers()) or any(isinstance(part, DROPOUT) for part in module.modules()):
            raise InputError(
                f"{type(module).__name__} keeps running statistics or draws random numbers, so copies of it cannot "
                "run as one; use the executor 'loop'"
            )
        self.shapes = [parameter.shape for parameter in module.parameters()]
        self.size = sum(shape.numel() for shape in self.shapes)
        self._plain, self._folded = _Parametrised(module), _Parametrised(_with_row_layers(module))
        self._folds: bool | None = None
        self._mapped = vmap(self._plain)

    def __call__(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """The outputs `[R, B, ...]`."""
        if self._folds is None:
            self._folds = self._try_folding(x)
        if self._folds:
            return self._fold(parameters, x)
        result: Tensor = self._mapped(tuple(parameters), x)
        return result

    def alone(self, x: Tensor) -> Tensor:
        """The outputs `[B, ...]` for inputs that all copies share, of a module without parameters."""
        return self._plain((), x)

    def _fold(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        # Row layers find their own row in stacked parameters; bare ones are repeated for every sample.
        rows, samples = x.shape[:2]
        own = [
            _per_sample(parameter, samples, x.ndim - 2) if bare else parameter
            for parameter, bare in zip(parameters, self._folded.bare, strict=True)
        ]
        out = self._folded(own, x.flatten(0, 1))
        return out.view(rows, samples, *out.shape[1:])

    def _try_folding(self, x: Tensor) -> bool:
        """Whether folding gives what `vmap` gives, on random parameters: real ones may be born 0."""
        if not x.is_floating_point():
            return False
        # A generator of its own, because the trial must not change what anybody else draws.
        generator = torch.Generator().manual_seed(0)
        trial = torch.randn(_TRIAL_COPIES, _TRIAL_SAMPLES, *x.shape[2:], generator=generator, dtype=x.dtype)
        shapes = [(_TRIAL_COPIES, *shape) for shape in self.shapes]
        with torch.no_grad():
            parameters = tuple(torch.randn(shape, generator=generator, dtype=x.dtype) for shape in shapes)
            try:
                folded = self._fold(parameters, trial)
            except RuntimeError:  # shapes that do not fit: something in the module is not per sample
                return False
            mapped = self._mapped(parameters, trial)
        return folded.shape == mapped.shape and torch.allclose(folded, mapped, rtol=1e-3, atol=1e-4)


class _Parametrised:
    """A module called with parameters from outside, in the order of `module.parameters()`."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._places: list[tuple[dict[str, Any], str]] = []
        self.bare: list[bool] = []
        """Of each parameter: whether it belongs to no row layer."""
        for owner in module.modules():
            parameters = own_parameters(owner)
            named = [name for name, parameter in parameters.items() if parameter is not None]
            self._places += [(parameters, name) for name in named]
            self.bare += [not isinstance(owner, ROW_LAYERS)] * len(named)

    def __call__(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        # The module's own parameters give way for as long as the call takes.
        own = [place[name] for place, name in self._places]
        try:
            for (place, name), given in zip(self._places, parameters, strict=True):
                place[name] = given
            result: Tensor = self._module(x)
        finally:
            for (place, name), parameter in zip(self._places, own, strict=True):
                place[name] = parameter
        return result


def _with_row_layers(module: nn.Module) -> nn.Module:
    """A copy whose layers take stacked parameters, as far as there are such layers."""
    copied = copy.deepcopy(module)
    for part in copied.modules():
        part.__class__ = row_class(part) or part.__class__
    return copied


def _per_sample(parameter: Tensor, samples: int, sample_axes: int) -> Tensor:
    """`[R, ...]` to `[R * B, ...]`, with as many axes as the module's input, so that it broadcasts as it did."""
    rows, *shape = parameter.shape
    aligned = parameter.reshape(rows, 1, *[1] * (sample_axes - len(shape)), *shape)
    return aligned.expand(-1, samples, *aligned.shape[2:]).flatten(0, 1)


class GatherRows(torch.autograd.Function):
    """Rows `index` of `h`, of which only those at `passing` send a gradient back; no row may occur twice."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, h: Tensor, index: Tensor, passing: Tensor) -> Tensor:
        ctx.save_for_backward(index, passing)
        ctx.shape = h.shape  # type: ignore[attr-defined]
        return h.index_select(0, index)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        index, passing = ctx.saved_tensors  # type: ignore[attr-defined]
        result = gradient.new_zeros(ctx.shape)  # type: ignore[attr-defined]
        # Rows that must not teach what they read, as those of isolated seeds, are left out.
        if len(passing) < len(index):
            index, gradient = index[passing], gradient.index_select(0, passing)
        return result.index_add_(0, index, gradient), None, None


@dataclass(frozen=True, slots=True)
class Leaves:
    """Stacked parameters that gradients can be taken of: of each part of the host, and of each group of seeds."""

    parts: list[list[Tensor]]
    seeds: dict[GroupKey, list[Tensor]]

    def groups(self) -> list[list[Tensor]]:
        """All parts of the hosts as one, then each group of seeds, as `AllRows.groups`."""
        return [[leaf for part in self.parts for leaf in part], *self.seeds.values()]

    def all(self) -> list[Tensor]:
        return [leaf for group in self.groups() for leaf in group]


@dataclass(slots=True)
class Seen:
    """What of a pass is kept for merit: the trunk at these places, and behind every slot."""

    wanted: frozenset[int]
    places: dict[int, Tensor] = field(default_factory=dict)
    slots: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Pass:
    """A pass under way: where its rows stand."""

    route: Route
    tensors: Leaves
    h: Tensor
    """The trunk `[N, B, ...]`, or `[B, ...]` as long as all hosts share it."""
    shared: bool
    branches: Tensor | None = None
    """Rows of the branches born so far."""
    kept: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    """By place: trunk and branches there, for seeds further on to read."""

    @property
    def branch_owner(self) -> Tensor:
        return self.route.branch_owner[: 0 if self.branches is None else len(self.branches)]


class StackedForward:
    """Runs rows through a chain of parts."""

    def __init__(
        self,
        chain: Chain,
        parts: Sequence[Batched],
        num_hosts: int,
        blueprint: Callable[[GroupKey], Batched],
        place_read: Callable[[GroupKey], int | None],
    ) -> None:
        self._chain, self._parts, self._num_hosts = chain, parts, num_hosts
        self._blueprint, self._place_read = blueprint, place_read

    def __call__(
        self, route: Route, tensors: Leaves, x: Tensor, *, shared: bool = False, seen: Seen | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits of all hosts `[N, B, ...]` and of all branches; inputs `[N, B, ...]`, or `[B, ...]` if `shared`.

        `seen` takes what the trunk, not shared, is at the places that it wants and behind every slot.
        """
        now = _Pass(route, tensors, x, shared)
        read = {place for key in tensors.seeds if (place := self._place_read(key)) is not None}
        for place, part in enumerate(self._parts):
            # What seeds further on read has to be kept, from all hosts even if they still share it.
            if place in read:
                now.kept[place] = self._trunk_of_all(now), now.branches
            if seen is not None and place in seen.wanted:
                seen.places[place] = now.h
            self._run_part(now, part, tensors.parts[place])
            # Behind this part there may be a slot, and in it seeds of some hosts.
            slot = self._chain.slots.get(place)
            crossing = None if slot is None else route.crossings[slot]
            if slot is not None and crossing is not None:
                self._meet_seeds(now, slot, crossing)
            if seen is not None and slot is not None:
                seen.slots[slot] = now.h
        return now.h, now.branches

    def _trunk_of_all(self, now: _Pass) -> Tensor:
        return now.h.expand(self._num_hosts, *now.h.shape) if now.shared else now.h

    def _run_part(self, now: _Pass, part: Batched, own: list[Tensor]) -> None:
        # Branches run with the weights of their hosts, which learn nothing from them.
        if now.branches is not None:
            owner = now.branch_owner
            now.branches = part([leaf.detach()[owner] for leaf in own], now.branches)
        # As long as no weights were met, what all hosts share is computed once.
        if now.shared and not own:
            now.h = part.alone(now.h)
        else:
            now.h, now.shared = part(own, self._trunk_of_all(now)), False

    def _meet_seeds(self, now: _Pass, slot: int, crossing: Crossing) -> None:
        """Let the seeds of one slot act on the trunk and on the branches, and let new branches begin."""
        keys = [(slot, blueprint) for blueprint in crossing.groups]
        h, trailing = now.h, [1] * (now.h.ndim - 1)
        delta = self._trunk_deltas(now, keys, crossing)
        # Earlier branches first, as those that begin here do not meet the seeds of this slot.
        branches = now.branches
        if branches is not None and crossing.passing:
            branches = self._pass_branches(now, branches, keys, crossing)
        # New branches leave the trunk as it was in front of the slot, without a seed or with one at another alpha.
        born = []
        if len(crossing.left_out):
            born.append(h[crossing.owner[crossing.left_out]])
        if len(crossing.tried):
            tried_alpha = crossing.tried_alpha.to(h.dtype).view(-1, *trailing)
            born.append(h.detach()[crossing.owner[crossing.tried]] + tried_alpha * delta[crossing.tried])
        # The trunk takes up its blended seeds.
        if len(crossing.blended_at):
            alpha = crossing.alpha.to(h.dtype).view(-1, *trailing)
            blended = delta if len(alpha) == len(delta) else delta[crossing.blended_at]
            now.h = h.index_add(0, crossing.blended_owner, alpha * blended)
        if born:
            branches = torch.cat(born if branches is None else [branches, *born])
        now.branches = branches

    def _trunk_deltas(self, now: _Pass, keys: list[GroupKey], crossing: Crossing) -> Tensor:
        """What every seed of a slot makes of the trunk of its host, group by group."""
        places = [self._place_read(key) for key in keys]
        if not any(place is not None for place in places):  # all read the same tensor: gather it once
            pieces = GatherRows.apply(now.h, crossing.owner, crossing.blended_at).split(crossing.sizes)  # type: ignore[no-untyped-call]
            run = zip(keys, pieces, strict=True)
            return torch.cat([self._blueprint(key)(now.tensors.seeds[key], piece) for key, piece in run])
        # Groups read in different places: gather for each of them.
        deltas = []
        for key, place, owner, blended in zip(keys, places, *crossing.by_group(), strict=True):
            given = now.h if place is None else now.kept[place][0]
            rows = GatherRows.apply(given, owner, blended)  # type: ignore[no-untyped-call]
            deltas.append(fit_rows(self._blueprint(key)(now.tensors.seeds[key], rows), now.h))
        return torch.cat(deltas)

    def _pass_branches(self, now: _Pass, branches: Tensor, keys: list[GroupKey], crossing: Crossing) -> Tensor:
        """Earlier branches meet the blended seeds of this slot, which learn nothing from them."""
        deltas = []
        for number, meets, seeds in crossing.passing:
            key = keys[number]
            own = [leaf.detach()[seeds] for leaf in now.tensors.seeds[key]]
            given = self._given_to_branches(now, branches, self._place_read(key))
            deltas.append(fit_rows(self._blueprint(key)(own, given[meets]), branches))
        alpha = crossing.passing_alpha.to(branches.dtype).view(-1, *[1] * (branches.ndim - 1))
        index = torch.cat([meets for _, meets, _ in crossing.passing])
        return branches.index_add(0, index, alpha * torch.cat(deltas))

    def _given_to_branches(self, now: _Pass, branches: Tensor, place: int | None) -> Tensor:
        """What a kind of seeds reads of every branch: of one born after that place, what its host had there."""
        if place is None:
            return branches
        trunk, early = now.kept[place]
        if early is None:
            return trunk.detach()[now.branch_owner]
        return torch.cat([early, trunk.detach()[now.branch_owner[len(early) :]]])


def fit_rows(delta: Tensor, h: Tensor) -> Tensor:
    """`fit_positions` for rows `[R, B, ...]`."""
    if delta.shape[3:] == h.shape[3:]:
        return delta
    fitted = fit_positions(delta.flatten(0, 1), h[0])
    return fitted.view(*delta.shape[:2], *fitted.shape[1:])
