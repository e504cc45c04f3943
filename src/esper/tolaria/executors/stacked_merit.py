"""Merit of N stacked hosts: the would-be seeds of one kind in one slot of all hosts at once."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from esper.kasmina import NOT_MEASURED, Blueprint, Catalogue, Site, Source
from esper.kasmina.merit import VARIANTS, WouldBe, WouldBeSeeds, kinds_with_merit, relative
from esper.tolaria.executors.batched import Batched
from esper.tolaria.executors.forward import Seen, fit_rows
from esper.tolaria.executors.rows import GroupKey, flatten, views


class StackedMerit:
    """Keeps the variants of would-be seeds as rows, and measures their merit in the hosts that they belong to."""

    def __init__(
        self,
        sites: Sequence[Site],
        catalogue: Catalogue,
        num_hosts: int,
        dtype: torch.dtype,
        blueprint: Callable[[GroupKey], Batched],
        sources: Mapping[Source, int],
    ) -> None:
        self._sites, self._catalogue, self._num_hosts, self._dtype = sites, catalogue, num_hosts, dtype
        self._blueprint = blueprint
        self._seeds = WouldBeSeeds()
        self._variants: dict[GroupKey, Tensor] = {}
        """`[V, P]` each."""
        self._variant = torch.zeros(num_hosts, dtype=torch.int64)
        self._kinds: dict[GroupKey, Blueprint] = {}
        self._places: dict[GroupKey, int] = {}
        """Where in the chain would-be seeds read."""
        for slot, site in enumerate(sites):
            for kind, source in kinds_with_merit(site, catalogue.fits[slot]):
                self._kinds[slot, kind.id], self._places[slot, kind.id] = kind, sources[source]

    def watch(self) -> Seen:
        """What a pass has to keep for `measure`."""
        return Seen(frozenset(self._places.values()))

    def start(self, host: int, variant: int) -> None:
        self._variant[host] = variant

    def measure(self, free: Tensor, seen: Seen, gradients: Mapping[int, Tensor]) -> Tensor:
        """`[N, S, B]`: merit where `free [N, S]`; `gradients` are those of each host's loss at each slot."""
        sums = torch.full((self._num_hosts, *self._catalogue.fits.shape), NOT_MEASURED, dtype=self._dtype)
        for key, place in self._places.items():
            slot, blueprint = key
            hosts = free[:, slot].nonzero().flatten()
            if len(hosts):
                given = seen.places[place].detach()
                sums[hosts, slot, blueprint - 1] = self._sums(key, hosts, given, gradients[slot])
        # Relative to the gradient that arrives at the slot, so that slots can be compared.
        arriving = [torch.linalg.vector_norm(gradients[slot].flatten(1), dim=1) for slot in range(len(self._sites))]
        return relative(sums, torch.stack(arriving, 1))

    def _sums(self, key: GroupKey, hosts: Tensor, given: Tensor, gradient: Tensor) -> Tensor:
        """`[R]`: the sums of the absolute gradients of these hosts' would-be seeds."""
        rows = self._rows(key)[self._variant[hosts]]
        if len(hosts) < self._num_hosts:
            given, gradient = given[hosts], gradient[hosts]
        # Only parameters that learn at first are asked for gradients; a zero one may hide all others.
        tensors = views(rows, self._blueprint(key).shapes)
        first = zip(tensors, self._find(key, 0).learns, strict=True)
        asked = [tensor.requires_grad_() for tensor, learns in first if learns]
        delta = fit_rows(self._blueprint(key)(tensors, given), gradient)
        found = torch.autograd.grad(delta, asked, gradient)
        return torch.cat([one.flatten(1) for one in found], 1).abs().sum(1)

    def _rows(self, key: GroupKey) -> Tensor:
        if key not in self._variants:
            modules = [self._find(key, variant).module for variant in range(VARIANTS)]
            self._variants[key] = torch.stack([flatten(module) for module in modules])
        return self._variants[key]

    def _find(self, key: GroupKey, variant: int) -> WouldBe:
        place = torch.device("cpu"), self._dtype
        return self._seeds.find(self._sites[key[0]], self._kinds[key], variant, place)
