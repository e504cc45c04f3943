"""What a grower is given, made sure of before anything is touched."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from esper.api.growing.decision import Budget, Limits
from esper.api.growing.evaluation import of_first_rank
from esper.kasmina import UNLIMITED, GraftedModel, SlotTable, check_initialised, propose_sites
from esper.kasmina.probe import Where
from esper.kasmina.torch_private import is_compiled
from esper.leyline import EPOCHS_TO_DECIDE, InputError
from esper.tamiyo import Controller, Heuristic, Never, Random, Schedule, controller_names, make_controller

_RULES = (Heuristic, Never, Random, Schedule)
"""Controllers that look at what seeds on trial bring, and not at what those bring that are kept for good."""


def unwrap_model(model: nn.Module) -> nn.Module:
    """The module whose submodules get slots; a wrapper that would not see them is refused."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        return unwrap_model(model.module)
    if isinstance(model, DataParallel):
        raise InputError(
            "DataParallel copies the model to every device without its seeds; pass the model itself, "
            "or wrap it in DistributedDataParallel"
        )
    if is_compiled(model):
        raise InputError(
            "this model was compiled before it was grown and would not see its seeds; pass the model itself, "
            "then train torch.compile(grower.model)"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("a scripted model has a fixed graph and cannot grow; pass the module it was made from")
    if isinstance(model, GraftedModel):
        raise InputError("this model carries slots already; pass the model that was given to graft")
    check_initialised(model)
    if type(model).__name__ in ("FullyShardedDataParallel", "DeepSpeedEngine"):
        raise InputError(f"{type(model).__name__} shards parameters and cannot take new ones; pass the model itself")
    return model


def checked_controller(controller: str | Controller) -> Controller:
    """The controller by that name or in that file, or the given one if it is one."""
    if isinstance(controller, str):
        if controller in controller_names():
            return make_controller(controller)
        # Learned controllers bring much along that nobody else has to wait for.
        from esper.api.training import find_controller

        return find_controller(controller)
    if not all(callable(getattr(controller, method, None)) for method in ("reset", "decide")):
        raise InputError(f"a controller has the methods reset and decide; got {controller!r}")
    return controller


def number_of_steps(epochs: int | None) -> int | None:
    """`epochs`, if it can be one; too few for any seed is worth a warning."""
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
        raise InputError(f"epochs must be a whole number of 1 or more; got {epochs!r}")
    quickest = min(EPOCHS_TO_DECIDE.values())
    if epochs is not None and epochs <= quickest:
        warnings.warn(
            f"nothing can grow in {epochs} steps: a seed planted after the first step is decided {quickest} "
            "steps later at the earliest; in a short training call grower.step() several times an epoch, every so many "
            "batches, and let `epochs` be the number of those calls",
            stacklevel=3,
        )
    return epochs


def limits_of(budget: Budget | None, host_params: int) -> Limits:
    """What a model of this size may add under `budget`; anything without one."""
    if budget is None:
        return Limits(UNLIMITED, UNLIMITED)
    if not isinstance(budget, Budget):
        raise InputError(f"budget must be a Budget, as in budget=esper.Budget(params=1000); got {budget!r}")
    return budget.of(host_params)


def common_seed(seed: int | None, device: torch.device) -> int:
    """The given seed, or torch's; in all processes that of the first one."""
    own = (torch.initial_seed() if seed is None else seed) % 2**62
    return int(of_first_rank(torch.tensor([own]), device))


def is_rule(controller: Controller) -> bool:
    """Whether it is one of Esper's own rules, of which is known what they look at; merit is not part of it."""
    return type(controller) in _RULES


def to_measure(controller: Controller, table: SlotTable) -> Tensor:
    """`[1, S]` bool: the seeds whose contribution the controller may go by; each costs an evaluation."""
    return table.blended & table.on_trial if is_rule(controller) else table.blended


def may_plant(controller: Controller, limits: Limits, grafted: GraftedModel) -> bool:
    """Whether `controller` can ever germinate a seed; says why not, unless that was asked for.

    Neither the budget nor what seeds cost ever changes, so an answer for empty slots holds for good.
    """
    catalogue = grafted.catalogue
    if limits.masks(grafted.table, catalogue).blueprint.any():
        _warn_if_new(controller, grafted)
        return not isinstance(controller, Never) and not _refuses(controller, grafted)
    amounts = [(limits.params, catalogue.params, "parameters"), (limits.flops, catalogue.flops, "operations")]
    limited = [(limit, int(costs[catalogue.fits].min()), what) for limit, costs, what in amounts if limit != UNLIMITED]
    least = " and ".join(f"{smallest:,} {what}" for _, smallest, what in limited)
    most = " and ".join(f"{limit:,} {what}" for limit, _, what in limited)
    warnings.warn(
        f"no seed fits into the budget, so nothing will grow: seeds add at least {least}, and the budget is {most}",
        stacklevel=3,
    )
    return False


def _warn_if_new(controller: Controller, grafted: GraftedModel) -> None:
    """Say so if a learned controller has never seen a network that passes on what this one does."""
    known: tuple[str, ...] | None = getattr(controller, "trained_on", None)
    new = {site.shape.carries for site in grafted.sites} - set(known or ())
    if known is not None and new:
        warnings.warn(
            f"this controller was trained on networks that pass on {' and '.join(known)}; this one passes on "
            f"{' and '.join(sorted(new))}, so its choices are a guess; controller='heuristic' is a rule that was tuned",
            stacklevel=4,
        )


def _refuses(controller: Controller, grafted: GraftedModel) -> bool:
    """Whether this is the heuristic, and a network in which it plants nothing."""
    if not isinstance(controller, Heuristic) or controller.plants_in(grafted.sites):
        return False
    warnings.warn(
        "nothing will grow: the heuristic plants no seeds in networks that pass on sequences of features, as "
        "transformers do, because nothing that was tried there paid its rent; to let it try all the same, pass "
        "controller=Heuristic(HeuristicSettings(in_sequences=True)) of esper.tamiyo",
        stacklevel=4,
    )
    return True


def chosen_sites(host: nn.Module, at: Where | str, example: Any, controller: Controller) -> Where:
    """Where slots go, as many as the controller was trained for, if it says so."""
    wanted: int | None = getattr(controller, "num_slots", None)
    if isinstance(at, str):
        if at != "auto":
            raise InputError(f"`at` must list submodule names, as in at=['layer1'], or be 'auto'; got {at!r}")
        at = propose_sites(host, example, wanted)
    if wanted is not None and len(at) != wanted:
        raise InputError(f"this controller was trained for {wanted} slots; here are {len(at)}: {', '.join(at)}")
    return at
