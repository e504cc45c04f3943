"""Scores of outputs that are not numbers: never right, whatever class the argmax of NaN seems to name."""

import math
from dataclasses import replace

import pytest
import torch

from esper.tasks import Split, Splits
from esper.tolaria import Population
from esper.tolaria.executors.base import losses_and_accuracies
from tests.tolaria.test_governor import WAIT
from tests.worlds import poison, tiny_task


def load_one_class() -> Splits:
    """Every label is 0, the class that the argmax of a row of NaN names."""
    splits = tiny_task().splits()
    return Splits(*(Split(part.x, part.y * 0) for part in (splits.train, splits.val, splits.test)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_answer_without_a_finite_loss_is_not_right(bad: float) -> None:
    logits = torch.zeros(1, 4, 3)
    logits[0, :, 0] = 1.0  # all name class 0 ...
    logits[0, 1] = bad  # ... and of these two the argmax does, too
    logits[0, 2, 0] = math.nan
    _, accuracy = losses_and_accuracies(logits, torch.zeros(1, 4, dtype=torch.int64))
    assert accuracy.tolist() == [0.5]


@pytest.mark.parametrize("executor", ["loop", "stacked", "native"])
def test_a_host_whose_outputs_are_nan_scores_nothing_and_is_rolled_back(executor: str) -> None:
    population = Population(replace(tiny_task(), load=load_one_class), 2, executor=executor)
    population.start([0, 1])
    for _ in range(2):
        population.step(WAIT)
    before = population.signals.val_score.clone()
    poison(population, 0)
    measured = population.executor.measure(population.task.splits().val)
    assert measured.loss[0].isnan()
    assert measured.score.tolist() == [0.0, float(before[1])]
    trained = population.executor.train_epoch()
    assert trained.score[0] == 0
    assert trained.score[1] > 0.5
    outcome = population.step(WAIT)
    assert outcome.panicked.tolist() == [True, False]
    assert population.signals.val_score[0] == before[0]
