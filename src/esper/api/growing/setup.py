"""What a grower is given, made sure of before anything is touched."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from esper.api.growing.budget import Budget, Limits
from esper.kasmina import UNLIMITED, GraftedModel, propose_sites
from esper.leyline import EPOCHS_TO_DECIDE, InputError
from esper.nissa import Hub
from esper.tamiyo import Controller, Never, controller_names, make_controller
from esper.tolaria.reporting import EpisodeReporter


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


def may_plant(controller: Controller, limits: Limits, grafted: GraftedModel) -> bool:
    """Whether `controller` can ever germinate a seed; says so if the budget is too small for any in any slot.

    Neither the budget nor what seeds cost ever changes, so an answer for empty slots holds for good.
    """
    catalogue = grafted.catalogue
    if limits.masks(grafted.table, catalogue).blueprint.any():
        return not isinstance(controller, Never)
    amounts = [(limits.params, catalogue.params, "parameters"), (limits.flops, catalogue.flops, "operations")]
    limited = [(limit, int(costs[catalogue.fits].min()), what) for limit, costs, what in amounts if limit != UNLIMITED]
    least = " and ".join(f"{smallest:,} {what}" for _, smallest, what in limited)
    most = " and ".join(f"{limit:,} {what}" for limit, _, what in limited)
    warnings.warn(
        f"no seed fits into the budget, so nothing will grow: seeds add at least {least}, and the budget is {most}",
        stacklevel=3,
    )
    return False


def chosen_sites(
    host: nn.Module, at: Sequence[str] | Mapping[str, str] | str, example: Any, controller: Controller
) -> Sequence[str] | Mapping[str, str]:
    """Where slots go, as many as the controller was trained for, if it says so."""
    wanted: int | None = getattr(controller, "num_slots", None)
    if isinstance(at, str):
        if at != "auto":
            raise InputError(f"`at` must list submodule names, as in at=['layer1'], or be 'auto'; got {at!r}")
        at = propose_sites(host, example, wanted)
    if wanted is not None and len(at) != wanted:
        raise InputError(f"this controller was trained for {wanted} slots; here are {len(at)}: {', '.join(at)}")
    return at


def make_reporter(hub: Hub | None, grafted: GraftedModel, host_params: int) -> EpisodeReporter:
    """Who tells the hub, if there is one, what happens."""
    return EpisodeReporter(hub or Hub(), grafted.sites, host_params)
