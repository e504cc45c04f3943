"""Grafting slots onto any module, and making the network follow its slot table."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from esper.kasmina import lifecycle
from esper.kasmina.affine import ends_in_trained_linear
from esper.kasmina.blueprints.registry import Blueprint, blueprints_of, find_blueprint
from esper.kasmina.growth import Growth, Isolation, SlotView
from esper.kasmina.keeping import keeping_random_state
from esper.kasmina.lifecycle import EpochEvidence, Transitions
from esper.kasmina.optimizer_groups import SeedGroups, check_owns
from esper.kasmina.probe import Example, Where, check_initialised, probe_sites
from esper.kasmina.seed_state import carry_seeds, growth_on, remove_slots
from esper.kasmina.sites import Site, common_path
from esper.kasmina.slot import Slot
from esper.kasmina.sources import REACHES, Sources, find_sources
from esper.kasmina.table import NOT_MEASURED, UNLIMITED, ActionMasks, Catalogue, SlotTable, action_masks
from esper.kasmina.torch_private import clip_gradients
from esper.leyline import Blend, IllegalActionError, InputError, Op, SlotConfig, Stage, unknown_name


class GraftedModel(nn.Module):
    """A host with slots. Train and evaluate it in place of the host.

    The host keeps its class, its names and its `state_dict` keys; seeds live beside it in `slots`. The slot
    table says what should be there, and `follow` makes it so.
    """

    def __init__(self, host: nn.Module, growth: Growth, budget: int) -> None:
        super().__init__()
        self.growth = growth
        self.host = host
        self.slots = growth.slots
        self.catalogue = _catalogue(host, growth.sites, growth.optimizer)
        self.budget = torch.tensor([budget])
        self.score = torch.tensor([NOT_MEASURED])
        growth.hook_into(host)
        carry_seeds(host, growth)
        self.register_load_state_dict_pre_hook(_name_host)  # type: ignore[no-untyped-call]

    @property
    def _slots(self) -> list[Slot]:
        return self.growth.slot_list()

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.growth.sites

    @property
    def table(self) -> SlotTable:
        return self.growth.table

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimiser that is kept in step with growth; copies of the model have none."""
        return self.growth.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer | None) -> None:
        self.growth.optimizer = optimizer
        for slot in self._slots:
            slot.stand_alone()

    @property
    def generator(self) -> torch.Generator:
        return self.growth.generator

    def __getattr__(self, name: str) -> Any:
        """What is not ours is the host's, so that code written for the host need not know."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("host"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.host(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the host, under its own names, with the seeds that are planted: see `seed_state`."""
        return self.host.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take weights and seeds from a state of this model, of a copy of it, or of one before anything grew."""
        return self.host.load_state_dict(state_dict, strict, assign)

    def slot(self, name: str) -> SlotView:
        return SlotView(self.growth, self.slot_index(name))

    def slot_index(self, name: str) -> int:
        """The position in the table of the slot behind the submodule, or with the slot id, `name`."""
        for index, site in enumerate(self.sites):
            if name in (site.path, site.slot_id):
                return index
        raise unknown_name("slot", name, (site.path for site in self.sites))

    @property
    def slot_config(self) -> SlotConfig:
        return SlotConfig(tuple(site.slot_id for site in self.sites))

    @property
    def available_slots(self) -> int:
        return int((self.table.stage == Stage.DORMANT).sum())

    @property
    def masks(self) -> ActionMasks:
        return action_masks(self.table, self.catalogue, self.budget)

    def germinate(self, slot: str, blueprint: str | int, blend: str | Blend = Blend.LINEAR) -> Transitions:
        """Plant a seed of `blueprint` (name or id) in the slot; its alpha rises along `blend`, or is 1 at once."""
        index = self.slot_index(slot)
        chosen = find_blueprint(self.sites[index].shape.family, blueprint)
        name = blend.name if isinstance(blend, Blend) else str(blend).upper()
        if name not in Blend.__members__:
            raise unknown_name("blend", blend, (member.name.lower() for member in Blend))
        self._check_affordable(self.table, index, chosen)
        return self.act(torch.tensor([[index, chosen.id - 1, Blend[name], Op.GERMINATE]]))

    def _check_affordable(self, table: SlotTable, index: int, chosen: Blueprint) -> None:
        """Say in names what `act` would only say in numbers."""
        if not self.catalogue.fits[index, chosen.id - 1]:
            raise IllegalActionError(f"{chosen.name!r} does not fit behind {self.sites[index].path!r}")
        price = int(self.catalogue.params[index, chosen.id - 1])
        left = int(self.budget - table.added_params)
        if price > left:
            raise IllegalActionError(f"{chosen.name!r} adds {price:,} parameters; {left:,} of the budget are left")

    def fossilize(self, slot: str) -> Transitions:
        return self.act(torch.tensor([[self.slot_index(slot), 0, 0, Op.FOSSILIZE]]))

    def cull(self, slot: str) -> Transitions:
        """Remove the seed in the slot; the host computes its own function again."""
        return self.act(torch.tensor([[self.slot_index(slot), 0, 0, Op.CULL]]))

    def act(self, actions: Tensor) -> Transitions:
        """Apply `actions [1, 4]`; an illegal one raises and changes nothing."""
        table, transitions = lifecycle.act(self.table, actions, self.catalogue, self.budget, self.score)
        self.follow(table)
        return transitions

    def begin_epoch(self) -> Transitions:
        """To be called before an epoch of training: germinated seeds begin to learn."""
        table, transitions = lifecycle.begin_epoch(self.table)
        self.follow(table)
        return transitions

    def end_epoch(
        self,
        *,
        score: float,
        loss: float,
        contributions: Tensor | Mapping[str, float],
        seed_gradients: Tensor | Mapping[str, float] | None = None,
        trials: Tensor | Mapping[str, float] | None = None,
    ) -> Transitions:
        """To be called after an epoch, with what it showed; moves seeds on.

        `contributions` holds, for each blended seed, the score with it minus the score without it (see
        `override_alpha`). Seed gradients are read from `.grad` where they are not given. `trials` holds, for each
        seed whose alpha would rise, the score with it at its `next_alpha` minus the score; an alpha that was not tried
        is taken. All three may be mappings from slot to value or tensors `[S]`.
        """
        evidence = EpochEvidence(
            torch.tensor([score]),
            torch.tensor([loss]).isfinite(),
            self.seed_gradient_norms() if seed_gradients is None else self._per_slot(seed_gradients, 0.0),
            self._per_slot(contributions, NOT_MEASURED),
            self._per_slot({} if trials is None else trials, NOT_MEASURED),
        )
        table, transitions = lifecycle.end_epoch(self.table, evidence)
        self.follow(table)
        self.score = evidence.score
        return transitions

    def _per_slot(self, values: Tensor | Mapping[str, float], missing: float) -> Tensor:
        if isinstance(values, Tensor):
            return values.view(1, len(self.sites))
        row = torch.full((1, len(self.sites)), missing)
        for name, value in values.items():
            row[0, self.slot_index(name)] = value
        return row

    def plant_fossils(self, blueprints: Mapping[str, str]) -> None:
        """Start with these blueprints (by slot) in place, at alpha 1 and for good: a network that is not grown."""
        table = self.table
        for name, blueprint in blueprints.items():
            index = self.slot_index(name)
            chosen = find_blueprint(self.sites[index].shape.family, blueprint)
            if table.stage[0, index] != Stage.DORMANT:
                raise IllegalActionError(f"the slot behind {self.sites[index].path!r} is not free")
            self._check_affordable(table, index, chosen)
            table = lifecycle.plant_fossils(table, {index: chosen.id}, self.catalogue)
        self.follow(table)

    def seed_gradient_norms(self) -> Tensor:
        """`[1, S]`: the norm of each seed's present gradients, 0 for an empty slot."""
        norms = torch.zeros((1, len(self.sites)))
        for index, (site, slot) in enumerate(zip(self.sites, self._slots, strict=True)):
            gradients = [parameter.grad for parameter in slot.parameters() if parameter.grad is not None]
            if gradients:
                norms[0, index] = get_total_norm(gradients)
            elif self.table.must_learn[0, index]:
                raise InputError(
                    f"the seed behind {site.path!r} has no gradients to judge it by; "
                    "call end_epoch before zero_grad, or pass seed_gradients"
                )
        return norms

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the gradients of the host, and of each seed apart, to `max_norm`; returns the norms before, `[1 + S]`.

        One norm over all parameters would let a seed shrink its host's gradients, and isolation would end.
        """
        return clip_gradients((list(part.parameters()) for part in (self.host, *self.slots)), max_norm)

    def follow(self, table: SlotTable) -> None:
        """Make modules, alphas, isolation and optimiser groups what `table` says, and keep it as the table."""
        self.growth.follow(self.host, table)

    def mirror(self, copied: nn.Module) -> None:
        """Let a copy of this model, as in `AveragedModel`, grow along.

        What is planted here is planted there with the same weights, and goes when it goes; after that, whoever updates
        the copy finds the same parameters in the same order on both sides.
        """
        found = next((module for module in copied.modules() if isinstance(module, GraftedModel)), None)
        if found is None:
            raise InputError("seeds are not part of this module; make the copy, or AveragedModel, from grower.model")
        if found is self:
            raise InputError("this is the model itself, not a copy of it")
        if found.sites != self.sites:
            there, here = (", ".join(site.path for site in sites) for sites in (found.sites, self.sites))
            raise InputError(f"this module has slots behind {there}; the model has slots behind {here}")
        self.growth.add_mirror(found.growth, found.host)

    @contextmanager
    def override_alpha(self, slot: str, alpha: Tensor | float) -> Iterator[None]:
        """Force the alpha of one slot's seed for an evaluation: 0 is the network without it."""
        with self.override_alphas({self.slot_index(slot): alpha}):
            yield

    @contextmanager
    def override_alphas(self, alphas: Mapping[int, Tensor | float]) -> Iterator[None]:
        """Force the alphas of several slots, given by table position, at once."""
        with ExitStack() as stack:
            for index, alpha in alphas.items():
                stack.enter_context(self._slots[index].override_alpha(alpha))
            yield

    def shadow(self, slot: str, *args: Any, **kwargs: Any) -> Any:
        """The output with this slot's seed at alpha 1 and everything but that seed detached.

        A loss on it teaches an isolated seed what it would do in place, and its gradient reaches nothing
        else. Buffers are copies and random state (dropout) is put back: the host does not notice this pass.
        """
        index = self.slot_index(slot)
        own = f"slots.{index}.seed."
        state = {name: p if name.startswith(own) else p.detach() for name, p in self.named_parameters()}
        state.update((name, buffer.clone()) for name, buffer in self.named_buffers())
        with keeping_random_state(self), self._slots[index].override_alpha(1.0):
            return functional_call(self, state, args, kwargs)


def _catalogue(host: nn.Module, sites: tuple[Site, ...], optimizer: Optimizer | None) -> Catalogue:
    """What fits where; an affine seed does not fit behind a trained linear layer: it would add no capacity."""
    catalogue = Catalogue.of([site.shape for site in sites])
    for index, site in enumerate(sites):
        if ends_in_trained_linear(host, site.path, optimizer):
            for blueprint in blueprints_of(site.shape.family):
                catalogue.fits[index, blueprint.id - 1] &= not blueprint.affine
    return catalogue


def _remove_idle_slots(model: nn.Module) -> None:
    """Take off what an earlier graft left, as when the cell of a notebook is run again, if nothing is lost by it."""
    for module in list(model.modules()):
        earlier = growth_on(module)
        if earlier is None:
            continue
        planted = [site.path for site, slot in zip(earlier.sites, earlier.slots, strict=True) if slot.seed is not None]
        if planted:
            raise InputError(
                f"this model has grown already, behind {', '.join(planted)}: go on with its grower, start again from a "
                "new model, or grow grower.export() further"
            )
        remove_slots(module)
        earlier.abandoned = True


def _name_host(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:  # noqa: ARG001
    """Where a grafted model is part of another module, that one loads its state key by key: lead them to the host."""
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}host.{key.removeprefix(prefix)}"] = state.pop(key)


def _find_sites(model: nn.Module, at: Where, example: Example, asked: Sources | None) -> tuple[Site, ...]:
    found = probe_sites(model, at, example)
    sources = find_sources(model, {path: probed.shape for path, probed in found.items()}, example, asked)
    around = _params_around(model, found)
    slot_ids = SlotConfig.of_size(len(found)).slot_ids
    sites = []
    for slot_id, (path, probed) in zip(slot_ids, found.items(), strict=True):
        own = sources[path]
        near, far = (own[reach].shape if reach in own else None for reach in REACHES)
        whole = replace(probed.shape, near=near, far=far, around=around)
        sites.append(Site(path, slot_id, whole, probed.dtype, tuple(own.items()), probed.rectified))
    return tuple(sites)


def _params_around(model: nn.Module, paths: Iterable[str]) -> int:
    """Parameters of the smallest part of `model` that holds all these submodules."""
    shared = common_path(*(path.rpartition(".")[0] for path in paths))
    return sum(parameter.numel() for parameter in model.get_submodule(shared).parameters())


def graft(
    model: nn.Module,
    at: Where,
    example: Example,
    *,
    optimizer: Optimizer | None = None,
    isolation: Isolation = "straight-through",
    budget: int = UNLIMITED,
    generator: torch.Generator | None = None,
    seed_groups: SeedGroups = "own",
    sources: Sources | None = None,
) -> GraftedModel:
    """Put a slot behind each submodule of `model` named in `at`. Until a seed germinates nothing changes.

    | argument | meaning |
    |---|---|
    | at | submodule names, or a mapping from name to family where the family cannot be told |
    | example | one batch: a tensor, a sequence of positional or a mapping of keyword arguments; batch axis first |
    | optimizer | kept in step: a parameter group per seed, added and removed with it |
    | isolation | how a seed at alpha 0 learns: from the host's own loss ("straight-through"), or from `shadow` passes |
    | budget | the most parameters that all seeds together may add |
    | generator | where seed initialisations come from; one of the model's own, by torch's initial seed, if not given |
    | seed_groups | whether a seed gets a parameter group of its "own" or is "joined" to that of its neighbour |
    | sources | other tensors for seeds that connect to read, as in `{"blocks.2": {"far": "stem"}}` |
    """
    if isolation not in get_args(Isolation):
        raise unknown_name("isolation", isolation, get_args(Isolation))
    if seed_groups not in get_args(SeedGroups):
        raise unknown_name("seed_groups", seed_groups, get_args(SeedGroups))
    if not isinstance(budget, int) or budget < 0:
        raise InputError(f"budget must be a whole number of parameters, 0 or more; got {budget!r}")
    check_initialised(model)
    if optimizer is not None:
        check_owns(optimizer, model)
    sites = _find_sites(model, at, example, sources)
    _remove_idle_slots(model)
    own = generator or torch.Generator().manual_seed(torch.initial_seed())
    return GraftedModel(model, Growth(model, sites, optimizer, isolation, own, seed_groups), budget)


def graft_again(
    model: nn.Module,
    sites: tuple[Site, ...],
    *,
    optimizer: Optimizer | None = None,
    isolation: Isolation = "straight-through",
    generator: torch.Generator | None = None,
) -> GraftedModel:
    """`graft` for a new model that is built like one whose sites are known: it needs no pass to find them."""
    own = generator or torch.Generator().manual_seed(torch.initial_seed())
    return GraftedModel(model, Growth(model, sites, optimizer, isolation, own, "own"), UNLIMITED)
