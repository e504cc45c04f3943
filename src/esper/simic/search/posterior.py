"""What plans come to: Bayesian linear regression of scores on features of plans, in double precision.

    score = mean + features · effects + own(plan) + luck(seed) + noise

All terms are normal with known means and deviations. `own` is what a plan brings beyond its features, so that playing
a plan again tells more of that plan than of others. `luck` is what all plans that are played from one seed share; the
host that is left alone is one of them, so its score is a control variate, with the weight that the data give it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.simic.search.plans import Plan, PlanSpace

_OWN = 0.7
_MEAN = 50.0
"""Of scores in points, of which nothing is known before."""
_EFFECT_SCALES = (0.5, 1.0, 2.0)
_LUCKS = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.7, 1.5, 3.0, 6.0)
"""Tried values, in points; the most likely ones are taken."""


@dataclass(frozen=True)
class _Scales:
    effects: float
    luck: float
    noise: float


class Posterior:
    """The distribution of effects given `scores [n]`, in points, of `plans` played from `seeds [n]`."""

    def __init__(self, space: PlanSpace, plans: Sequence[Plan], seeds: Tensor, scores: Tensor) -> None:
        self.space = space
        self._observed = {plan: index for index, plan in enumerate(dict.fromkeys(plans))}
        which = torch.tensor([self._observed[plan] for plan in plans], dtype=torch.int64)
        self._plan_features = space.features(list(self._observed))
        self._features = self._plan_features[which]
        self._which = which
        self._scores = scores.double()
        self._prior = space.prior()
        self._expected = space.prior_mean()
        # The parts of the covariance of scores, which the scales then weight.
        self._structure = (self._features * self._prior.square()) @ self._features.T
        self._same_plan = (which[:, None] == which).double()
        self._seed = seeds.unique(return_inverse=True)[1]
        self._same_seed = (self._seed[:, None] == self._seed).double()
        self._scales = max(_grid(), key=self._log_likelihood)
        self._factor = torch.linalg.cholesky(self._covariance(self._scales))
        self._surprise = self._surprises(self._scales)

    @property
    def scales(self) -> dict[str, float]:
        """The deviations that were taken: a factor on the effects, luck and noise in points."""
        return {"effects": self._scales.effects, "luck": self._scales.luck, "noise": self._scales.noise}

    def _covariance(self, scales: _Scales) -> Tensor:
        signal = scales.effects**2 * (self._structure + _OWN**2 * self._same_plan)
        noise = scales.noise**2 * torch.eye(len(self._scores), dtype=torch.float64)
        covariance: Tensor = signal + scales.luck**2 * self._same_seed + noise + _MEAN**2
        return covariance

    def _log_likelihood(self, scales: _Scales) -> float:
        factor = torch.linalg.cholesky(self._covariance(scales))
        white = torch.linalg.solve_triangular(factor, self._surprises(scales)[:, None], upper=False)
        return float(-0.5 * white.square().sum() - factor.diagonal().log().sum())

    def _surprises(self, scales: _Scales) -> Tensor:
        """`[n]`: scores minus what the prior expects."""
        surprises: Tensor = self._scores - _MEAN - scales.effects * (self._features @ self._expected)
        return surprises

    def mean_effects(self) -> tuple[Tensor, Tensor]:
        """Of the features, `[F]`, and of the observed plans themselves."""
        weights = torch.cholesky_solve(self._surprise[:, None], self._factor).squeeze(1)
        effects, own = self._project(weights)
        return effects + self._scales.effects * self._expected, own

    def draw_effects(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One draw from the posterior of what `mean_effects` gives: one of the prior, moved by what it gets wrong."""

        def normal(count: int) -> Tensor:
            return torch.randn(count, generator=generator, dtype=torch.float64)

        scales = self._scales
        effects = scales.effects * self._prior * normal(len(self._prior))
        own = scales.effects * _OWN * normal(len(self._observed))
        mean = _MEAN * normal(1)
        luck = scales.luck * normal(int(self._seed.max()) + 1)[self._seed]
        noise = scales.noise * normal(len(self._scores))
        imagined = mean + self._features @ effects + own[self._which] + luck + noise
        wrong = self._surprise - imagined
        moved = self._project(torch.cholesky_solve(wrong[:, None], self._factor).squeeze(1))
        return effects + moved[0] + scales.effects * self._expected, own + moved[1]

    def _project(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """What the prior covariance of effects and scores makes of weights of the scores."""
        scale = self._scales.effects**2
        effects = scale * self._prior.square() * (self._features.T @ weights)
        own = torch.zeros(len(self._observed), dtype=torch.float64).index_add_(0, self._which, weights)
        return effects, scale * _OWN**2 * own

    def best_plan(self, effects: tuple[Tensor, Tensor], price: float, most: int | None = None) -> Plan:
        """The best of all plans of at most so many seeds under these effects, of features and of played plans."""
        made = self.space.best_plan(effects[0], price, most)
        played = ((plan, value) for plan, value in self.ranked(effects, price) if most is None or len(plan) <= most)
        plan, value = next(played, (made, -torch.inf))
        gain = float(self.space.features([made]) @ effects[0]) - self._own_of_nothing(effects)
        return made if made not in self._observed and gain - self.space.rent(made, price) > value else plan

    def ranked(self, effects: tuple[Tensor, Tensor], price: float) -> list[tuple[Plan, float]]:
        """The plans that were played, the best first, and what each gains over nothing minus its rent, in points."""
        gains = self._plan_features @ effects[0] + effects[1] - self._own_of_nothing(effects)
        values = [
            gain - self.space.rent(plan, price) for plan, gain in zip(self._observed, gains.tolist(), strict=True)
        ]
        return sorted(zip(self._observed, values, strict=True), key=lambda pair: -pair[1])

    def _own_of_nothing(self, effects: tuple[Tensor, Tensor]) -> float:
        """Of the host that is left alone, with which gains are compared."""
        return float(effects[1][self._observed[()]]) if () in self._observed else 0.0


def _grid() -> list[_Scales]:
    return [_Scales(*scales) for scales in itertools.product(_EFFECT_SCALES, _LUCKS, _NOISES)]
