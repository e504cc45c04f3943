"""A slot: the place behind one submodule of a host where a seed can live."""

import copy
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.taps import Tap, fit_positions
from esper.kasmina.torch_private import writes_into
from esper.leyline import InputError


class SlotMode(Enum):
    """What the slot does to the output of its host submodule."""

    OFF = "off"
    """Nothing: the very tensor of the host passes."""
    ISOLATED = "isolated"
    """The host's values pass unchanged; the seed receives the gradient that its output would."""
    BLENDED = "blended"
    """`h + alpha * delta`, where `delta` is what the seed makes of `h`, or of the source that it reads."""


class _PassGradient(torch.autograd.Function):
    """The value of `h`, the gradient to both `h` and `delta`.

    The same as `h + (delta - delta.detach())`, but exact where `delta` is not finite: a seed that has gone
    wrong must not reach the host. A copy, not a view, so that the host may write into it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, delta: Tensor) -> Tensor:  # noqa: ARG004  # only its gradient matters
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return gradient, gradient


class Slot(nn.Module):
    """Holds at most one seed and mixes its residual into the host through a forward hook.

    Alpha is a tensor and changes in place, so that blending neither synchronises a device nor makes a
    compiled model compile again.
    """

    alpha: Tensor

    def __init__(self, witness: Tensor | None = None) -> None:
        super().__init__()
        self.seed: nn.Module | None = None
        self.tap: Tap | None = None
        """What the seed reads instead of the tensor here, if its kind connects."""
        self.blueprint_id = 0
        self.mode = SlotMode.OFF
        self.register_buffer("alpha", torch.zeros(()), persistent=False)
        self.alpha_override: Tensor | float | None = None
        # A parameter of the host, in a list so that it is not registered as one of ours: see `_warn_if_left_behind`.
        self._witness = [] if witness is None else [witness]
        self._original: weakref.ref[Slot] | None = None
        self._copied_version = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_original": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Slot":
        twin = Slot.__new__(Slot)
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        twin._original, twin._copied_version = weakref.ref(self), twin._version_now()
        return twin

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        # The state of the host holds the seed too, and has planted it already: see `seed_state`.
        if self.seed is not None:
            self.seed.state_dict(destination=state_dict, prefix=f"{prefix}seed.")
        super()._load_from_state_dict(state_dict, prefix, *others)

    def plant(self, seed: nn.Module, blueprint_id: int, tap: Tap | None = None) -> None:
        """Put `seed`, which may read from a tap, into this empty slot; it does nothing until the mode changes."""
        self.seed = seed
        self.tap = tap
        if tap is not None:
            tap.readers += 1
        self.blueprint_id = blueprint_id

    def uproot(self) -> None:
        if self.tap is not None:
            self.tap.readers -= 1
        self.seed = self.tap = None
        self.blueprint_id = 0
        self.mode = SlotMode.OFF
        self.alpha.zero_()

    @contextmanager
    def override_alpha(self, alpha: Tensor | float) -> Iterator[None]:
        """Force alpha for what-if evaluations: a number, or a tensor `[N]` with one alpha per sample."""
        previous = self.alpha_override
        self.alpha_override = alpha
        try:
            yield
        finally:
            self.alpha_override = previous

    def differs_from(self, other: "Slot") -> bool:
        """Whether the two hold seeds of different kinds, or only one of them holds one."""
        return self.blueprint_id != other.blueprint_id

    def stand_alone(self) -> None:
        """To be called on the slot of a copy that is trained by itself and need not be like its original."""
        self._original = None

    def _version_now(self) -> int:
        return writes_into(self._witness[0]) if self._witness else 0

    def _warn_if_left_behind(self) -> None:
        """Say so if this is the slot of a copy that is being updated, as averages of weights are, but does not grow."""
        original = None if self._original is None else self._original()
        if original is None or torch.compiler.is_compiling() or self._version_now() == self._copied_version:
            return
        if self.differs_from(original):
            self.stand_alone()  # once is enough
            warnings.warn(
                "this copy of a growing model is updated, as AveragedModel does, but lacks seeds that the model has "
                "grown, or keeps seeds that it has culled; let it grow along with grower.mirror(copy)",
                stacklevel=2,
            )

    def inject(self, module: nn.Module, args: tuple[Any, ...], h: Any) -> Tensor | None:  # noqa: ARG002
        """The forward hook: the output that replaces `h`, or None to leave it as it is."""
        if self._original is not None:
            self._warn_if_left_behind()
        if self.seed is None:
            return None
        if not isinstance(h, Tensor) or h.is_nested:
            raise InputError(_other_output(module, h))
        if self.alpha_override is not None:
            return self._mix_override(h, self.alpha_override)
        if self.mode is SlotMode.BLENDED:
            return _mix(h, self.alpha, self._delta(h))
        if self.mode is SlotMode.ISOLATED and torch.is_grad_enabled():
            delta = self._delta(h, isolated=True)
            if delta is not None:
                passed: Tensor = _PassGradient.apply(h, delta.to(h.dtype))  # type: ignore[no-untyped-call]
                return passed
        return None

    def _delta(self, h: Tensor, *, isolated: bool = False) -> Tensor | None:
        """What the seed would add to `h`, None if that is nothing; an isolated one sends no gradient to its source."""
        assert self.seed is not None
        given = h if self.tap is None else self.tap.read(h)
        if given is None:
            return None
        delta: Tensor = self.seed(given.detach() if isolated else given)
        return delta if self.tap is None else fit_positions(delta, h)

    def _mix_override(self, h: Tensor, alpha: Tensor | float) -> Tensor | None:
        if isinstance(alpha, float | int):
            return _mix(h, alpha, self._delta(h)) if alpha else None
        per_sample = alpha.view(-1, *[1] * (h.ndim - 1))
        mixed = _mix(h, per_sample, self._delta(h))
        # Samples with alpha 0 take the host's value itself: 0 times a non-finite residual would not be 0.
        return None if mixed is None else torch.where(per_sample == 0, h, mixed)


def _mix(h: Tensor, alpha: Tensor | float, delta: Tensor | None) -> Tensor | None:
    # Under autocast a residual may be wider than its host.
    return None if delta is None else h + (alpha * delta).to(h.dtype)


def _other_output(module: nn.Module, output: Any) -> str:
    kind = "a nested tensor" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    hint = "; make the nn.TransformerEncoder with enable_nested_tensor=False" if isinstance(output, Tensor) else ""
    return f"{type(module).__name__} returned {kind} to a slot that was grafted onto one plain tensor{hint}"
