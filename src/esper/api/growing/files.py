"""Growth on disk: one file, written at once or not at all, read without running code."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from esper.kasmina import GraftedModel, Snapshot, check_catalogue, check_snapshot, restore_snapshot, take_snapshot
from esper.leyline import InputError, write_atomically
from esper.nissa.state_files import pack_state, read_state

FORMAT = 2
_AGAIN = "grow the model anew with the present blueprints"
_KIND = "esper growth"


@dataclass(frozen=True, slots=True)
class GoodEpoch:
    """The network and the schedulers after an epoch, to return to."""

    snapshot: Snapshot
    schedulers: list[dict[str, Any]]

    @classmethod
    def of(cls, grafted: GraftedModel, schedulers: Sequence[LRScheduler]) -> Self:
        return cls(take_snapshot(grafted), [copy.deepcopy(scheduler.state_dict()) for scheduler in schedulers])

    def restore(self, grafted: GraftedModel, schedulers: Sequence[LRScheduler]) -> None:
        restore_snapshot(grafted, self.snapshot)
        for scheduler, saved in zip(schedulers, self.schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(saved))

    def state_dict(self) -> dict[str, Any]:
        return {"snapshot": self.snapshot.state_dict(), "schedulers": self.schedulers}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], num_slots: int) -> Self:
        return cls(Snapshot.from_state_dict(state["snapshot"], num_slots), state["schedulers"])


def write_growth(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, pack_state({"kind": _KIND, "format": FORMAT, **state}))


def read_growth(path: Path) -> dict[str, Any]:
    """The state in the file; a missing, damaged or foreign one is one clear error."""
    state = read_state(path, "growth file", "grower.save makes one")
    if state.get("kind") != _KIND:
        raise InputError(f"{path} was not written by grower.save")
    if state.get("format") == 1:
        check_catalogue(None, {}, f"the growth file {path}", _AGAIN)
    if state.get("format") != FORMAT:
        raise InputError(f"{path} has format {state.get('format')}; this version reads format {FORMAT}")
    return state


def check_growth(state: Mapping[str, Any], present: Mapping[str, Any], grafted: GraftedModel) -> None:
    """Refuse the state of a growth that a grower whose own state is `present` cannot go on from."""
    if isinstance(state, Mapping):
        check_catalogue(state.get("catalogue"), present["catalogue"], "the saved growth", _AGAIN)
    _check_like(state, present, "the saved growth")
    for name, message in (
        ("sites", "has slots at {there}; here are {here}"),
        ("controller_name", "was decided by '{there}'; here decides '{here}'"),
        ("measure", "was measured by '{there}'; here it is '{here}'"),
    ):
        if state[name] != present[name]:
            there, here = (_listed(each[name]) for each in (state, present))
            raise InputError(f"the saved growth {message.format(there=there, here=here)}")
    for name in ("present", "good", "signals", "guard", "watch", "scale"):
        _check_like(state[name], present[name], f"{name!r} of the saved growth")
    for name in ("present", "good"):
        saved, own = len(state[name]["schedulers"]), len(present[name]["schedulers"])
        if saved != own:
            raise InputError(f"the saved growth has {saved} schedulers; this grower has {own}")
        check_snapshot(grafted, Snapshot.from_state_dict(state[name]["snapshot"], len(grafted.sites)))


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_like(given: Any, pattern: Mapping[str, Any], place: str) -> None:
    """Refuse `given` unless it has the keys of `pattern`, with values of the same types; None goes with any type.

    What lists and mappings hold, and the shapes of tensors, are left to whoever reads them.
    """
    if not isinstance(given, Mapping) or any(key not in given for key in pattern):
        missing = [key for key in pattern if not isinstance(given, Mapping) or key not in given]
        raise InputError(f"{place} lacks {', '.join(missing)}; it was altered, or written by another version")
    for key, expected in pattern.items():
        value: Any = given[key]
        kinds = (int, float) if isinstance(expected, float) else type(expected)
        if value is None or expected is None:
            continue
        if not isinstance(value, kinds) or isinstance(value, bool) != isinstance(expected, bool):
            wanted, got = type(expected).__name__, type(value).__name__
            raise InputError(f"{key!r} in {place} must be a {wanted}; it is a {got}")
        if isinstance(value, Tensor) and value.dtype != expected.dtype:
            raise InputError(f"{key!r} in {place} must be of {expected.dtype}; it is of {value.dtype}")
