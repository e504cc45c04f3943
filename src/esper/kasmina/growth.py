"""What grows on one host: its slots, their table, and the steps that make the network follow the table."""

import weakref
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from esper.kasmina.blueprints.registry import Blueprint, find_blueprint
from esper.kasmina.optimizer_groups import SeedGroups, add_seed, remove_seed
from esper.kasmina.sites import Site
from esper.kasmina.slot import Slot, SlotMode
from esper.kasmina.table import SlotTable
from esper.kasmina.taps import Pass, Tap, lay_taps
from esper.kasmina.torch_private import remove_hooks
from esper.leyline import Stage

Isolation = Literal["straight-through", "shadow"]


class Growth:
    """The slots of a host, which knows them by its hooks alone: this object refers to no module of the host.

    A copy, or a pickle, is a growth of its own without an optimiser: nobody who keeps the best model so far wants a
    second set of moments.
    """

    def __init__(
        self,
        host: nn.Module,
        sites: tuple[Site, ...],
        optimizer: Optimizer | None,
        isolation: Isolation,
        generator: torch.Generator,
        seed_groups: SeedGroups,
    ) -> None:
        self.sites = sites
        witness = next(host.parameters(), None)
        self.slots = nn.ModuleList(Slot(witness) for _ in sites)
        self.host_pass = Pass()
        """Where seeds that connect get what they read."""
        self.optimizer = optimizer
        self.isolation = isolation
        self.generator = generator
        self.seed_groups = seed_groups
        self.table = SlotTable.empty(1, len(sites))
        self._hooked = False
        self._grafted_dtype = floating_dtype(host)
        self.abandoned = False
        """Whether the host was grafted anew since, and these slots do nothing any more."""
        self._mirrors: list[tuple[Growth, weakref.ref[nn.Module]]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "optimizer": None, "_mirrors": []}

    def slot_list(self) -> list[Slot]:
        return list(self.slots)  # type: ignore[arg-type]  # a ModuleList forgets what it holds

    def follow(self, host: nn.Module, table: SlotTable) -> None:
        """Make modules, alphas, isolation and optimiser groups what `table` says, and keep it as the table."""
        if not self._hooked and table.occupied.any():
            self.hook_into(host)
        isolated = table.isolated[0].tolist()
        for index, blueprint_id in enumerate(table.blueprint[0].tolist()):
            slot = self.slot_list()[index]
            if slot.blueprint_id != blueprint_id:
                self._replace_seed(host, index, blueprint_id, silent=not isolated[index])
            if isolated[index]:
                slot.mode = SlotMode.ISOLATED if self.isolation == "straight-through" else SlotMode.OFF
            elif blueprint_id:
                slot.mode = SlotMode.BLENDED
            slot.alpha.copy_(table.alpha[0, index])
        self.table = table
        self._grow_mirrors()

    def hook_into(self, host: nn.Module) -> None:
        """Put slots, and taps for what their seeds may read, into the forward pass of `host`."""
        for site, slot in zip(self.sites, self.slot_list(), strict=True):
            # A bound method of a module is copied along by deepcopy; a closure would still serve the original.
            host.get_submodule(site.path).register_forward_hook(slot.inject)
            slot.to(self.place(host, site)[0])
        # After the slots, so that what is read behind a submodule includes the seed that sits there.
        self.host_pass = lay_taps(host, {source for site in self.sites for _, source in site.sources})
        self._hooked = True

    def unhook(self, host: nn.Module) -> None:
        """Take empty slots out of the forward pass of `host`, which then costs nothing more; planting puts them back.

        Only for models in which nothing is going to be planted: one that is compiled would not notice.
        """
        remove_pass_hooks(host)
        self._hooked = False

    def _tap(self, site: Site, blueprint: Blueprint) -> Tap | None:
        source = site.source_of(blueprint.reads)
        return None if source is None else next(tap for tap in self.host_pass.taps if tap.source == source)

    def _replace_seed(self, host: nn.Module, index: int, blueprint_id: int, *, silent: bool) -> None:
        slot, site = self.slot_list()[index], self.sites[index]
        if slot.seed is not None:
            if self.optimizer is not None:
                remove_seed(self.optimizer, site.slot_id, slot.seed)
            slot.uproot()
        if not blueprint_id:
            return
        # Also when called under inference mode, which would make parameters that can never be trained.
        with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
            # The generator of the CPU alone: seeds are made there, and others may draw from those of devices.
            torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=self.generator)))
            blueprint = find_blueprint(site.shape.family, blueprint_id)
            seed = blueprint.build(site.shape, silent)
            seed.to(*self.place(host, site)).train(host.get_submodule(site.path).training)
        if self.optimizer is not None:
            add_seed(self.optimizer, site.slot_id, seed, host, site.path, self.seed_groups)
        slot.plant(seed, blueprint_id, self._tap(site, blueprint))

    def place(self, host: nn.Module, site: Site) -> tuple[torch.device, torch.dtype]:
        """Device and dtype of a seed: those of the submodule it sits behind, as far as that has weights."""
        neighbour = host.get_submodule(site.path)
        device = next((p.device for module in (neighbour, host) for p in module.parameters()), torch.device("cpu"))
        now = floating_dtype(host)
        moved = now if now != self._grafted_dtype else None
        return device, floating_dtype(neighbour) or moved or site.dtype

    def add_mirror(self, other: "Growth", host: nn.Module) -> None:
        """Let `other`, the growth of a copy of the host, grow along for as long as `host`, that copy, lives."""
        self._mirrors.append((other, weakref.ref(host)))
        self._grow_mirrors()

    def _grow_mirrors(self) -> None:
        """Plant and uproot in every mirror what it lacks or has too much; new seeds start with the same weights."""
        self._mirrors = [(other, host) for other, host in self._mirrors if host() is not None]
        for other, reference in self._mirrors:
            host = reference()
            assert host is not None
            strangers = [index for index, (mine, theirs) in enumerate(self._pairs(other)) if mine.differs_from(theirs)]
            other.follow(host, self.table.clone())
            self._copy_seeds(other, strangers)

    def refresh_mirrors(self) -> None:
        """Give every mirror the present weights of all seeds."""
        for other, _ in self._mirrors:
            self._copy_seeds(other, range(len(self.sites)))

    def _copy_seeds(self, other: "Growth", indices: Iterable[int]) -> None:
        for index in indices:
            mine, theirs = self._pairs(other)[index]
            if mine.seed is not None and theirs.seed is not None:
                theirs.seed.load_state_dict(mine.seed.state_dict())

    def _pairs(self, other: "Growth") -> list[tuple[Slot, Slot]]:
        return list(zip(self.slot_list(), other.slot_list(), strict=True))


class SlotView:
    """One slot of a growth, always as it is now; the columns of `SlotTable` say what the numbers mean."""

    def __init__(self, growth: Growth, index: int) -> None:
        self._growth, self._index = growth, index

    @property
    def stage(self) -> Stage:
        return Stage(int(self._growth.table.stage[0, self._index]))

    @property
    def alpha(self) -> float:
        return float(self._growth.table.alpha[0, self._index])

    @property
    def epochs_in_stage(self) -> int:
        return int(self._growth.table.epochs_in_stage[0, self._index])

    @property
    def blueprint_id(self) -> int:
        return int(self._growth.table.blueprint[0, self._index])

    @property
    def blueprint(self) -> str | None:
        """Name of the seed's blueprint."""
        family = self._growth.sites[self._index].shape.family
        return find_blueprint(family, self.blueprint_id).name if self.blueprint_id else None

    @property
    def occupied(self) -> bool:
        return bool(self._growth.table.occupied[0, self._index])

    @property
    def contribution(self) -> float:
        return float(self._growth.table.contribution[0, self._index])


def remove_pass_hooks(host: nn.Module) -> None:
    """Take all slots and taps out of the forward pass of `host`."""
    for module in host.modules():
        remove_hooks(module, (Slot, Tap, Pass))


def floating_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype of the first floating-point parameter of `module`; None if it has none."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
