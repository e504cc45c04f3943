"""Moving tensors: a copy towards a device is not waited for, one to the CPU is."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from esper.simic.control.action_masks import move_masks, to_device
from tests.second_device import SECOND


class MoveLog(TorchFunctionMode):
    """Notes which moves are not waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.unwaited: list[bool] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.to:
            self.unwaited.append((kwargs or {})["non_blocking"])
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("second_device")
def test_only_copies_to_the_cpu_are_waited_for() -> None:
    log, here = MoveLog(), torch.ones(2)
    with log:
        there = to_device(here, SECOND)
        back = to_device(there, "cpu")
        assert to_device(here, "cpu") is here
    assert there.device == SECOND
    assert torch.equal(back, here)
    assert log.unwaited == [True, False, False]


@pytest.mark.usefixtures("second_device")
def test_masks_move_together() -> None:
    moved = move_masks({"op": torch.ones(2, 4), "slot": torch.ones(2, 4, 3)}, SECOND)
    assert {name: mask.device for name, mask in moved.items()} == {"op": SECOND, "slot": SECOND}
