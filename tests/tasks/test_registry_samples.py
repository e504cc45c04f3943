"""Data that would count silently is refused when a task loads it."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from esper.leyline import InputError
from esper.tasks import Split, Splits, Task
from tests.worlds import tiny_task


def with_test_split(change: Callable[[torch.Tensor, torch.Tensor], Split]) -> Task:
    def load() -> Splits:
        splits = tiny_task().splits()
        return replace(splits, test=change(splits.test.x.clone(), splits.test.y.clone()))

    return tiny_task(load=load)


def _spoil(x: torch.Tensor, value: float) -> torch.Tensor:
    x[3, 1] = x[3, 2] = x[5, 0] = value
    return x


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_samples_that_are_not_finite_are_counted_and_refused(value: float) -> None:
    task = with_test_split(lambda x, y: Split(_spoil(x, value), y))
    with pytest.raises(InputError, match="the test split of task 'tiny-blobs' holds 2 samples with NaN or infinity"):
        task.splits()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, y: Split(x, y + 1), "labels other than the whole numbers 0 to 2"),
        (lambda x, y: Split(x, y - 1), "labels other than the whole numbers 0 to 2"),
        (lambda x, y: Split(x, y.float()), "labels other than the whole numbers"),
        (lambda x, y: Split(x[:0], y[:0]), "0 samples of shape"),
        (lambda x, y: Split(x[:-1], y), "63 samples of shape .* and 64 labels"),
    ],
)
def test_labels_and_sizes_that_do_not_fit_are_refused(
    change: Callable[[torch.Tensor, torch.Tensor], Split], reason: str
) -> None:
    with pytest.raises(InputError, match=f"the test split .*{reason}"):
        with_test_split(change).splits()
