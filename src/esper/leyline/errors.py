"""The few kinds of fault that callers may want to tell apart."""

from collections.abc import Iterable


class EsperError(Exception):
    """Base of every error that Esper raises on purpose."""


class InputError(EsperError, ValueError):
    """Something given from outside cannot be used; the message names it and what is allowed."""


class DamagedFileError(InputError):
    """A file is cut short, altered, or not what it should be; nothing was changed by reading it."""


class OtherCatalogueError(InputError):
    """A file was made with other blueprints than are registered here; nothing was changed by reading it."""


class IllegalActionError(EsperError, ValueError):
    """An action or transition is not legal in the present state; the state is unchanged."""


class InvalidStateMachineError(EsperError, RuntimeError):
    """A mask leaves no valid action, so the state machine that made it is broken."""


class WorkerError(EsperError, RuntimeError):
    """A worker is lost and could not be replaced, or what was lost with it cannot be made again."""


class TrainingFailedError(EsperError, RuntimeError):
    """Training keeps failing although it was taken back to its last good epoch each time."""


def unknown_name(kind: str, given: object, allowed: Iterable[str]) -> InputError:
    """The one sentence for a name that does not exist: what was given and what may be given."""
    return InputError(f"unknown {kind} {given!r}; choose one of: {', '.join(allowed)}")
