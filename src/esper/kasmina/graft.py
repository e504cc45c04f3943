"""Grafting slots onto any module, and making the network follow its slot table."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from esper.kasmina import lifecycle
from esper.kasmina.blueprints import find_blueprint
from esper.kasmina.legality import UNLIMITED, ActionMasks, Catalogue, action_masks
from esper.kasmina.lifecycle import EpochEvidence, Transitions
from esper.kasmina.optimizer_groups import add_seed_group, check_owns, remove_seed_group
from esper.kasmina.probe import Example, Where, probe_sites
from esper.kasmina.sites import SiteShape
from esper.kasmina.slot import Slot, SlotMode
from esper.kasmina.table import NOT_MEASURED, SlotTable
from esper.leyline import Blend, InputError, Op, SlotConfig, Stage, unknown_name

Isolation = Literal["straight-through", "shadow"]


@dataclass(frozen=True, slots=True)
class Site:
    """One place where a host can grow."""

    path: str
    """Name of the submodule behind which the slot sits."""
    slot_id: str
    shape: SiteShape


@dataclass(frozen=True, slots=True)
class SlotView:
    """What people like to ask of one slot, read from the table."""

    model: "GraftedModel"
    index: int

    @property
    def stage(self) -> Stage:
        """Where its seed stands."""
        return Stage(int(self.model.table.stage[0, self.index]))

    @property
    def alpha(self) -> float:
        """Weight of the seed in the epoch to come."""
        return float(self.model.table.alpha[0, self.index])

    @property
    def epochs_in_stage(self) -> int:
        """Epochs finished since the stage was entered."""
        return int(self.model.table.epochs_in_stage[0, self.index])

    @property
    def blueprint_id(self) -> int:
        """1 to 5, or 0 without a seed."""
        return int(self.model.table.blueprint[0, self.index])

    @property
    def blueprint(self) -> str | None:
        """Name of the seed's blueprint."""
        family = self.model.sites[self.index].shape.family
        return find_blueprint(family, self.blueprint_id).name if self.blueprint_id else None

    @property
    def occupied(self) -> bool:
        """Whether it holds a seed."""
        return bool(self.model.table.occupied[0, self.index])

    @property
    def contribution(self) -> float:
        """Latest score with the seed minus without it; NaN where not measured."""
        return float(self.model.table.contribution[0, self.index])


class GraftedModel(nn.Module):
    """A host with slots. Calling it, or the host itself, runs the host with its seeds.

    The host keeps its class, its names and its `state_dict` keys; seeds live beside it in `slots`. The slot
    table says what should be there, and `follow_table` makes it so.
    """

    def __init__(
        self,
        host: nn.Module,
        sites: tuple[Site, ...],
        *,
        optimizer: Optimizer | None,
        isolation: Isolation,
        budget: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.host = host
        self.sites = sites
        self.slots = nn.ModuleList(Slot() for _ in sites)
        self.optimizer = optimizer
        self.isolation = isolation
        self.generator = generator
        self.catalogue = Catalogue.of([site.shape for site in sites])
        self.budget = torch.tensor([budget])
        self.table = SlotTable.empty(1, len(sites))
        self.score = torch.tensor([NOT_MEASURED])
        for site, slot in zip(sites, self._slots, strict=True):
            # A bound method of a module is copied along by deepcopy; a closure would still serve the original.
            host.get_submodule(site.path).register_forward_hook(slot.inject)

    @property
    def _slots(self) -> list[Slot]:
        return list(self.slots)  # type: ignore[arg-type]  # a ModuleList forgets what it holds

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The host's output, seeds included."""
        return self.host(*args, **kwargs)

    def slot(self, name: str) -> SlotView:
        """The slot behind the submodule `name`, or with the slot id `name`."""
        return SlotView(self, self.slot_index(name))

    def slot_index(self, name: str) -> int:
        """The position in the table of the slot behind the submodule, or with the slot id, `name`."""
        for index, site in enumerate(self.sites):
            if name in (site.path, site.slot_id):
                return index
        raise unknown_name("slot", name, (site.path for site in self.sites))

    @property
    def slot_config(self) -> SlotConfig:
        """The slot ids in table order."""
        return SlotConfig(tuple(site.slot_id for site in self.sites))

    @property
    def available_slots(self) -> int:
        """How many slots are dormant."""
        return int((self.table.stage == Stage.DORMANT).sum())

    @property
    def masks(self) -> ActionMasks:
        """What is legal now."""
        return action_masks(self.table, self.catalogue, self.budget)

    def germinate(self, slot: str, blueprint: str | int, blend: str = "linear") -> Transitions:
        """Plant a seed of `blueprint` (name or id) in the slot; its alpha will rise along `blend`."""
        index = self.slot_index(slot)
        chosen = find_blueprint(self.sites[index].shape.family, blueprint)
        if blend.upper() not in Blend.__members__:
            raise unknown_name("blend", blend, (member.name.lower() for member in Blend))
        return self.act(torch.tensor([[index, chosen.id - 1, Blend[blend.upper()], Op.GERMINATE]]))

    def fossilize(self, slot: str) -> Transitions:
        """Keep the seed in the slot for good."""
        return self.act(torch.tensor([[self.slot_index(slot), 0, 0, Op.FOSSILIZE]]))

    def cull(self, slot: str) -> Transitions:
        """Remove the seed in the slot; the host computes its own function again."""
        return self.act(torch.tensor([[self.slot_index(slot), 0, 0, Op.CULL]]))

    def act(self, actions: Tensor) -> Transitions:
        """Apply `actions [1, 4]`; an illegal one raises and changes nothing."""
        self.table, transitions = lifecycle.act(self.table, actions, self.masks, self.catalogue, self.score)
        self.follow_table()
        return transitions

    def begin_epoch(self) -> Transitions:
        """To be called before an epoch of training: germinated seeds begin to learn."""
        self.table, transitions = lifecycle.begin_epoch(self.table)
        self.follow_table()
        return transitions

    def end_epoch(
        self,
        *,
        score: float,
        loss: float,
        contributions: dict[str, float],
        seed_gradients: dict[str, float] | None = None,
    ) -> Transitions:
        """To be called after an epoch, with what it showed; moves seeds on.

        `contributions` holds, for each blended seed, the score with it minus the score without it (see
        `override_alpha`). Seed gradients are read from `.grad` where they are not given.
        """
        gradients = self.seed_gradient_norms() if seed_gradients is None else self._per_slot(seed_gradients, 0.0)
        self.score = torch.tensor([score])
        evidence = EpochEvidence(
            self.score, torch.tensor([loss]).isfinite(), gradients, self._per_slot(contributions, NOT_MEASURED)
        )
        self.table, transitions = lifecycle.end_epoch(self.table, evidence)
        self.follow_table()
        return transitions

    def _per_slot(self, values: dict[str, float], missing: float) -> Tensor:
        row = torch.full((1, len(self.sites)), missing)
        for name, value in values.items():
            row[0, self.slot_index(name)] = value
        return row

    def seed_gradient_norms(self) -> Tensor:
        """`[1, S]`: the norm of each seed's present gradients, 0 for an empty slot."""
        norms = torch.zeros((1, len(self.sites)))
        for index, (site, slot) in enumerate(zip(self.sites, self._slots, strict=True)):
            gradients = [parameter.grad for parameter in slot.parameters() if parameter.grad is not None]
            if gradients:
                norms[0, index] = torch.nn.utils.get_total_norm(gradients)
            elif self.table.stage[0, index] == Stage.TRAINING:
                raise InputError(
                    f"the seed behind {site.path!r} has no gradients to judge it by; "
                    "call end_epoch before zero_grad, or pass seed_gradients"
                )
        return norms

    def follow_table(self) -> None:
        """Make modules, alphas, isolation and optimiser groups what the table says."""
        rows = zip(self.table.blueprint[0].tolist(), self.table.stage[0].tolist(), self.table.alpha[0], strict=True)
        for index, (blueprint_id, stage, alpha) in enumerate(rows):
            slot = self._slots[index]
            if slot.blueprint_id != blueprint_id:
                self._replace_seed(index, blueprint_id)
            if not blueprint_id:
                continue
            if stage in (Stage.GERMINATED, Stage.TRAINING):
                slot.mode = SlotMode.ISOLATED if self.isolation == "straight-through" else SlotMode.OFF
            else:
                slot.mode = SlotMode.BLENDED
            slot.alpha.copy_(alpha)

    def _replace_seed(self, index: int, blueprint_id: int) -> None:
        slot, site = self._slots[index], self.sites[index]
        if slot.seed is not None:
            if self.optimizer is not None:
                remove_seed_group(self.optimizer, site.slot_id)
            slot.uproot()
        if not blueprint_id:
            return
        neighbour = self.host.get_submodule(site.path)
        like = next(neighbour.parameters(), next(self.host.parameters(), slot.alpha))
        with self._own_randomness():
            seed = find_blueprint(site.shape.family, blueprint_id).build(site.shape)
        slot.plant(seed.to(like.device, like.dtype), blueprint_id)
        if self.optimizer is not None:
            add_seed_group(self.optimizer, site.slot_id, seed, neighbour)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Initialise from this model's generator, so that neighbours and telemetry cannot change a seed."""
        if self.generator is None:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=self.generator)))
            yield

    @contextmanager
    def override_alpha(self, slot: str, alpha: Tensor | float) -> Iterator[None]:
        """Force the alpha of one slot's seed for an evaluation: 0 is the network without it."""
        with self._slots[self.slot_index(slot)].override_alpha(alpha):
            yield

    def shadow(self, slot: str, *args: Any, **kwargs: Any) -> Any:
        """The output with this slot's seed at alpha 1 and everything but that seed detached.

        A loss on it teaches an isolated seed what it would do in place, and its gradient reaches nothing
        else. Buffers (running statistics) are copies: the host does not notice this pass.
        """
        index = self.slot_index(slot)
        own = f"slots.{index}.seed."
        state = {name: p if name.startswith(own) else p.detach() for name, p in self.named_parameters()}
        state.update((name, buffer.clone()) for name, buffer in self.named_buffers())
        with self._slots[index].override_alpha(1.0):
            return functional_call(self, state, args, kwargs)


def graft(
    model: nn.Module,
    at: Where,
    example: Example,
    *,
    optimizer: Optimizer | None = None,
    isolation: Isolation = "straight-through",
    budget: int = UNLIMITED,
    generator: torch.Generator | None = None,
) -> GraftedModel:
    """Put a slot behind each submodule of `model` named in `at`. Until a seed germinates nothing changes.

    | argument | meaning |
    |---|---|
    | at | submodule names, or a mapping from name to family where the family cannot be told |
    | example | one batch: a tensor, a sequence of positional or a mapping of keyword arguments |
    | optimizer | kept in step: a parameter group per seed, added and removed with it |
    | isolation | how a seed at alpha 0 learns: from the host's own loss ("straight-through"), or from `shadow` passes |
    | budget | the most parameters that all seeds together may add |
    | generator | where seed initialisations come from; torch's global state if not given |
    """
    if optimizer is not None:
        check_owns(optimizer, model)
    shapes = probe_sites(model, at, example)
    slot_ids = SlotConfig.of_size(len(shapes)).slot_ids
    sites = tuple(Site(path, slot_id, shape) for (path, shape), slot_id in zip(shapes.items(), slot_ids, strict=True))
    return GraftedModel(model, sites, optimizer=optimizer, isolation=isolation, budget=budget, generator=generator)
