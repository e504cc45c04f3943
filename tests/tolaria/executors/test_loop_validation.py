"""Validation of one network: evaluation with forced alphas."""

import pytest
import torch
from torch import nn

from esper.kasmina import GraftedModel
from esper.tamiyo import Random
from esper.tolaria import Population
from esper.tolaria.executors.loop import evaluate_variants, measure
from tests.worlds import tiny_task


def grown() -> tuple[Population, GraftedModel]:
    """A host with a blended and an isolated seed."""
    population, dice = Population(tiny_task(), 1, executor="loop"), Random()
    population.start([0])
    dice.reset(1, 0)
    while not (
        (population.table.alpha > 0).any() and (population.table.occupied & (population.table.alpha == 0)).any()
    ):
        population.step(dice.decide(population.situation))
    return population, population.executor.network(0)


def test_forced_alphas_are_evaluated_in_one_pass_as_one_by_one() -> None:
    population, model = grown()
    split = population.task.splits().val
    occupied = model.table.occupied[0].nonzero().flatten().tolist()
    alphas = torch.zeros(3, len(model.sites))
    alphas[1, occupied] = 1.0
    alphas[2, occupied[0]] = 0.5
    loss, score = evaluate_variants(model, population.task, split, alphas)
    for row, alpha in enumerate(alphas):
        with model.override_alphas({slot: float(alpha[slot]) for slot in occupied}), torch.inference_mode():
            logits = model(split.x)
        assert loss[row] == pytest.approx(float(nn.functional.cross_entropy(logits, split.y)), rel=1e-5)
        assert score[row] == (logits.argmax(-1) == split.y).float().mean()


def test_measuring_runs_in_inference_and_eval_mode() -> None:
    seen: list[tuple[bool, bool]] = []
    population, model = grown()
    model.host.register_forward_hook(lambda *_: seen.append((torch.is_inference_mode_enabled(), model.training)))
    measure(model, population.task, population.task.splits().val, what_if=True)
    assert seen == [(True, False)]
