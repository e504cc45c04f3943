"""The update asks the device for numbers once per minibatch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.simic.builders import agent_with_round

READS = (Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.cpu, Tensor.numpy)


class ReadCounter(TorchFunctionMode):
    """Counts how often numbers of a tensor are brought to Python."""

    ignored: tuple[torch.dtype, ...] = (torch.long,)
    """Integers are lengths, which live on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in READS and args[0].dtype not in self.ignored:
            self.reads += 1
        return function(*args, **(kwargs or {}))


def reads_of_an_update(monkeypatch: pytest.MonkeyPatch, epochs: int, minibatches: int) -> int:
    agent = agent_with_round(epochs=epochs, num_minibatches=minibatches, target_kl=None)
    monkeypatch.setattr(agent.optimizer, "step", lambda: None)  # Adam reads its step counters, which live on the host
    counter = ReadCounter()
    with counter:
        agent.update()
    return counter.reads


def test_reads_grow_by_one_per_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    once, twice = (reads_of_an_update(monkeypatch, epochs, 4) for epochs in (1, 2))
    few = reads_of_an_update(monkeypatch, 2, 2)
    assert twice - once == 4
    assert twice - few == 4
    assert once <= 4 + 12
