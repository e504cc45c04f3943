"""What an agent makes of its arguments before it uses them."""

import logging
import warnings

import torch

from esper.leyline import RECURRENT_EPOCHS_CAP, RECURRENT_EPOCHS_WARNING, InputError
from esper.simic.agent.types import Hidden
from esper.simic.control.action_spec import ActionSpec

logger = logging.getLogger(__name__)


def resolve_device(device: str) -> str:
    """The device that is meant; the CPU where CUDA was asked for in vain."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        logger.warning("device %s was asked for, but this machine has no CUDA: using the CPU", device)
        return "cpu"
    return device


def checked_epochs(epochs: int | None) -> int:
    """Passes over a round, capped."""
    if epochs is None:
        return 1
    if epochs < 1:
        raise InputError(f"recurrent_n_epochs is {epochs}; it must be at least 1")
    if epochs > RECURRENT_EPOCHS_CAP:
        warnings.warn(
            f"n_epochs={epochs} is capped at {RECURRENT_EPOCHS_CAP}: more reuse of a round only overfits it",
            RuntimeWarning,
            stacklevel=4,
        )
    return min(epochs, RECURRENT_EPOCHS_CAP)


def warn_of_stored_states(epochs: int, hidden: Hidden) -> None:
    """Warn of many passes over sequences of which some start from a state other than zeros."""
    if epochs > RECURRENT_EPOCHS_WARNING and any(state.any() for state in hidden):
        warnings.warn(
            f"n_epochs={epochs} is elevated for sequences that start from a stored state: later epochs replay "
            "them from a state that the changed network would not have reached",
            RuntimeWarning,
            stacklevel=4,
        )


def require_same_heads(owner: str, theirs: ActionSpec, ours: ActionSpec) -> None:
    """Refuse what was made for other heads than the agent's."""
    if theirs != ours:
        sizes = [", ".join(f"{head.name} {head.size}" for head in spec.heads) for spec in (theirs, ours)]
        raise InputError(f"the {owner} is made for other heads ({sizes[0]}) than the agent ({sizes[1]})")
