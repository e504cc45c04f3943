"""The posterior of effects: against the textbook's formulas, and good enough to find the best plan."""

import numpy as np
import pytest
import torch

from esper.simic.search import Plan, PlanSpace, Posterior
from tests.simic.search.builders import every_plan, random_plans, small_space


def _data(space: PlanSpace, count: int) -> tuple[list[Plan], torch.Tensor, torch.Tensor]:
    plans = [*random_plans(space, count - 4), (), (), (), ()]
    seeds = torch.arange(count) % 4
    generator = torch.Generator().manual_seed(3)
    effects = space.prior() * torch.randn(len(space.prior()), generator=generator, dtype=torch.float64)
    luck = 2.0 * torch.randn(4, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    return plans, seeds, 60 + space.features(plans) @ effects + luck[seeds] + noise


def _textbook(
    posterior: Posterior, plans: list[Plan], seeds: torch.Tensor, scores: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of all effects by the normal equations: mean, features, plans, seeds."""
    space, scales = posterior.space, posterior.scales
    distinct = list(dict.fromkeys(plans))
    own = np.array([[plan == other for other in distinct] for plan in plans], dtype=float)
    luck = np.eye(int(seeds.max()) + 1)[seeds.numpy()]
    design = np.hstack([np.ones((len(plans), 1)), space.features(plans).numpy(), own, luck])
    deviations = np.concatenate([
        [50.0],
        scales["effects"] * space.prior().numpy(),
        np.full(own.shape[1], scales["effects"] * 0.7),
        np.full(luck.shape[1], scales["luck"]),
    ])  # fmt: skip
    precision = design.T @ design / scales["noise"] ** 2 + np.diag(deviations**-2.0)
    covariance = np.linalg.inv(precision)
    expected = np.zeros(design.shape[1])
    expected[1 : 1 + len(space.prior())] = scales["effects"] * space.prior_mean().numpy()
    mean = expected + covariance @ design.T @ (scores.numpy() - 50.0 - design @ expected) / scales["noise"] ** 2
    return mean, covariance


def test_means_are_those_of_the_normal_equations() -> None:
    space = small_space()
    data = _data(space, 40)
    posterior = Posterior(space, *data)
    features, own = posterior.mean_effects()
    mean, _ = _textbook(posterior, *data)
    assert np.allclose(features, mean[1 : 1 + len(features)], atol=1e-8)
    assert np.allclose(own, mean[1 + len(features) : 1 + len(features) + len(own)], atol=1e-8)


def test_draws_have_the_mean_and_spread_of_the_posterior() -> None:
    space = small_space()
    data = _data(space, 40)
    posterior = Posterior(space, *data)
    mean, covariance = _textbook(posterior, *data)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([torch.cat(posterior.draw_effects(generator)) for _ in range(3000)]).numpy()
    width = drawn.shape[1]
    spread = np.sqrt(np.diag(covariance)[1 : 1 + width])
    assert np.abs((drawn.mean(0) - mean[1 : 1 + width]) / spread).max() < 5 / np.sqrt(3000)
    assert np.abs(drawn.std(0) / spread - 1).max() < 0.08


def test_draws_repeat_with_their_generator() -> None:
    posterior = Posterior(small_space(), *_data(small_space(), 20))
    first, second = (posterior.draw_effects(torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_the_luck_of_a_seed_is_not_credited_to_a_plan() -> None:
    space = small_space()
    one, other = (plan for plan in every_plan(space)[1:3])
    # The first plan is played from lucky seeds only, the second from unlucky ones; hosts left alone tell.
    plans = [one, (), one, (), other, (), other, ()]
    seeds = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    scores = torch.tensor([68.0, 66, 67, 65, 56, 54, 57, 55]).double()
    posterior = Posterior(space, plans, seeds, scores)
    values = dict(posterior.ranked(posterior.mean_effects(), 0.0))
    assert abs(values[one] - values[other]) < 1.0


def test_noise_and_size_of_effects_are_read_off_the_data() -> None:
    space = small_space()
    plans, seeds, scores = _data(space, 60)
    calm = Posterior(space, plans, seeds, scores).scales
    noise = torch.randn(60, generator=torch.Generator().manual_seed(1))
    wild = Posterior(space, plans, seeds, scores + 8 * noise).scales
    flat = Posterior(space, plans, seeds, 60 + 0.3 * noise).scales
    assert calm["noise"] < wild["noise"]
    assert flat["effects"] < calm["effects"]


@pytest.mark.parametrize("seed", range(3))
def test_plans_that_draws_prefer_come_close_to_the_best(seed: int) -> None:
    """Thompson sampling on effects that are known: 128 noisy plays of hundreds of plans."""
    space = small_space()
    generator = torch.Generator().manual_seed(seed)
    effects = space.prior() * torch.randn(len(space.prior()), generator=generator, dtype=torch.float64)

    def true(plan: Plan) -> float:
        return float(space.features([plan]) @ effects) - space.rent(plan, 0.03)

    plans: list[Plan] = [(), ()]
    seeds, scores = [0, 0], [60.0, 61.0]
    for batch in range(8):
        posterior = Posterior(space, plans, torch.tensor(seeds), torch.tensor(scores))
        drawn = [posterior.best_plan(posterior.draw_effects(generator), 0.03) for _ in range(16)]
        plans += drawn
        seeds += [batch] * 16
        noise = 2 * torch.randn(16, generator=generator)
        scores += [60 + true(plan) + space.rent(plan, 0.03) for plan in drawn]
        scores[-16:] = (torch.tensor(scores[-16:]) + noise).tolist()
    posterior = Posterior(space, plans, torch.tensor(seeds), torch.tensor(scores))
    chosen, _ = posterior.ranked(posterior.mean_effects(), 0.03)[0]
    best = max(true(plan) for plan in every_plan(space))
    assert true(chosen) > best - 1.5
