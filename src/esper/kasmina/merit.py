"""Merit: how much a would-be seed has to learn, seen before it is planted.

A seed that is born silent changes nothing, and only the parameters that make it silent get a gradient: `dL/dy` at its
slot times what the rest of the seed makes of its input. So one backward pass of the host and a forward pass of each
kind tell how large that gradient would be, for every free slot, without planting anything.

Merit is the sum of its absolute values, which is how fast the loss begins to fall if every weight takes a step of the
same size, as with Adam. It is relative to `dL/dy` over all slots, so the scale of the loss does not matter.
docs/growth.md compares it with other norms, and shows that it ranks kinds that connect, but not kinds that refine.
"""

from collections import Counter
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from esper.kasmina.blueprints.registry import Blueprint, blueprints_of
from esper.kasmina.graft import GraftedModel
from esper.kasmina.growth import floating_dtype
from esper.kasmina.sites import Site, Source
from esper.kasmina.table import NOT_MEASURED
from esper.kasmina.taps import Argument, fit_positions

MERIT_SAMPLES = 8
"""Samples of a minibatch that merit is measured on."""
VARIANTS = 8
"""How many random insides a would-be seed may have."""


class _Record:
    """What is kept of one pass: some samples of the tensors at sources, and of the gradients at slots."""

    def __init__(self) -> None:
        self.sources: dict[Source, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}
        self.runs: Counter[int] = Counter()
        """How often the submodule of each slot ran."""


class PassWatch:
    """Watches ordinary training passes of a grafted model, whatever their loss, and keeps what merit needs of the last.

    Inside `with` it has hooks on the model; outside there are none. Passes without gradients, shadow passes and passes
    that nobody differentiates leave no trace. Only the first `samples` along the first axis are kept, as copies.
    """

    def __init__(self, model: GraftedModel, samples: int = MERIT_SAMPLES) -> None:
        self._model, self._samples = model, samples
        self._handles: list[RemovableHandle] = []
        self._running: _Record | None = None
        self._latest = _Record()

    def __enter__(self) -> Self:
        host, sites = self._model.host, self._model.sites
        # In front of all other hooks on the way in and behind them on the way out: slots and taps have hooks too.
        self._handles = [
            host.register_forward_pre_hook(self._begin, prepend=True),
            *(host.get_submodule(site.path).register_forward_hook(self._at(slot)) for slot, site in enumerate(sites)),
            *(self._hook_source(source) for source in {source for site in sites for _, source in site.sources}),
            host.register_forward_hook(self._end, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._running = [], None

    def gradient_at(self, slot: int) -> Tensor | None:
        """`dL/dy` at a slot; None if the last pass has none, or several."""
        return self._latest.gradients.get(slot) if self._latest.runs[slot] == 1 else None

    def tensor_at(self, source: Source) -> Tensor | None:
        """The tensor at a source; None if the last pass has left it out."""
        return self._latest.sources.get(source)

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if torch.compiler.is_compiling():  # compiled passes are not watched
            return
        shadowed = any(slot.alpha_override is not None for slot in self._model.growth.slot_list())
        self._running = _Record() if torch.is_grad_enabled() and not shadowed else None

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        if torch.compiler.is_compiling():
            return
        self._running = None

    def _at(self, slot: int) -> Any:
        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
            if torch.compiler.is_compiling():
                return
            record = self._running
            if record is None or not isinstance(output, Tensor) or output.is_nested or not output.requires_grad:
                return
            record.runs[slot] += 1
            output.register_hook(lambda gradient: self._receive(record, slot, gradient))

        return keep

    def _receive(self, record: _Record, slot: int, gradient: Tensor) -> None:
        record.gradients[slot] = self._copy(gradient)
        self._latest = record

    def _hook_source(self, source: Source) -> RemovableHandle:
        module = self._model.host.get_submodule(source.path)
        argument = Argument.of(module, source.argument)

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._keep_source(source, argument.among(args, kwargs))

        if source.port == "input":
            return module.register_forward_pre_hook(before, with_kwargs=True)
        return module.register_forward_hook(lambda _module, _args, output: self._keep_source(source, output))

    def _keep_source(self, source: Source, tensor: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._running is not None and isinstance(tensor, Tensor) and not tensor.is_nested:
            self._running.sources[source] = self._copy(tensor)

    def _copy(self, tensor: Tensor) -> Tensor:
        # A copy, because a host may write into its tensors later in the pass.
        return tensor.detach()[: self._samples].clone()


class WouldBe(NamedTuple):
    """A silent seed that is not planted."""

    module: nn.Module
    learns: list[bool]
    """Of each parameter, in order: whether its zeros are what makes the seed silent. All others learn later."""


class WouldBeSeeds:
    """Would-be seeds for the slots of one shape of model; `VARIANTS` of each, so that no luck is shared by all hosts.

    A variant is the same in every process. They are kept once made, unless memory is dear.
    """

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep
        self._made: dict[tuple[object, ...], WouldBe] = {}

    def find(self, site: Site, kind: Blueprint, variant: int, place: tuple[torch.device, torch.dtype]) -> WouldBe:
        key = (site.slot_id, kind.id, variant, *place)
        if key in self._made:
            return self._made[key]
        made = _make(site, kind, variant, place)
        if self._keep:
            self._made[key] = made
        return made


def _make(site: Site, kind: Blueprint, variant: int, place: tuple[torch.device, torch.dtype]) -> WouldBe:
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(variant)
        module = kind.build(site.shape, silent=True)
        zero = [not bool(parameter.any()) for parameter in module.parameters()]
        # A kind that is silent without zeros is asked for the gradients of all.
        learns = zero if any(zero) else [True] * len(zero)
        module.to(*place)
    return WouldBe(module, learns)


def kinds_with_merit(site: Site, fits: Tensor) -> list[tuple[Blueprint, Source]]:
    """The kinds that connect and fit at a site (`fits [B]`), with what they read: of others merit tells nothing."""
    kinds = [kind for kind in blueprints_of(site.shape.family) if fits[kind.id - 1]]
    return [(kind, source) for kind in kinds if (source := site.source_of(kind.reads)) is not None]


def relative(sums: Tensor, arriving: Tensor) -> Tensor:
    """Merit `[..., S, B]` from the sums of would-be gradients and from the norms of `dL/dy` at slots, `[..., S]`.

    That is one scale for all slots of a network, their root mean square: where more arrives there is more to learn.
    """
    return sums / arriving.square().nanmean(-1)[..., None, None].sqrt()


@torch.enable_grad()
def measure_merit(model: GraftedModel, seen: PassWatch, seeds: WouldBeSeeds, variant: int) -> Tensor:
    """`[S, B]`: the merit of every kind that connects in every free slot; NaN where there is none."""
    fits = model.catalogue.fits
    place = (next(model.host.parameters()).device, floating_dtype(model.host) or torch.float32)
    sums = torch.full(fits.shape, NOT_MEASURED, device=place[0], dtype=place[1])
    arriving = sums[:, 0].clone()
    for slot, site in enumerate(model.sites):
        gradient = seen.gradient_at(slot)
        if gradient is None:
            continue
        arriving[slot] = torch.linalg.vector_norm(gradient.to(*place))
        if model.table.occupied[0, slot]:
            continue
        for kind, source in kinds_with_merit(site, fits[slot]):
            given = seen.tensor_at(source)
            if given is not None:
                seed = seeds.find(site, kind, variant, place)
                sums[slot, kind.id - 1] = _gradient_sum(seed, given.to(*place), gradient.to(*place))
    return relative(sums, arriving)


def _gradient_sum(seed: WouldBe, given: Tensor, gradient: Tensor) -> Tensor:
    """The sum of the absolute gradient of `seed` if it were given this, and `gradient` arrived at its slot."""
    delta = fit_positions(seed.module(given), gradient)
    asked = [parameter for parameter, learns in zip(seed.module.parameters(), seed.learns, strict=True) if learns]
    found = torch.autograd.grad(delta, asked, gradient)
    return torch.cat([one.flatten() for one in found]).abs().sum()
