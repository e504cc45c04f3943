"""Plan search: play plans that may be the best, and model what they come to (Thompson sampling).

Batch after batch, each host of a population is given a plan of its own: the best one under effects that are drawn from
their posterior. A few seeds are shared by all plans of a batch, and one host of each seed is left alone. At the end the
best plans at each price are played again, from fresh seeds, half as many in each round as in the one before (successive
halving), and the posterior of everything decides among them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import catalogue_names, check_catalogue, find_blueprint
from esper.leyline import DEFAULT_PRICE, HEAD_NAMES, POINTS, Blend, InputError, charge
from esper.nissa.state_files import checked_keys, checked_tensor, checked_whole
from esper.simic.search.plans import Plan, PlanSpace
from esper.simic.search.posterior import Posterior
from esper.tamiyo import Plans, Planting, play
from esper.tasks import Task
from esper.tolaria import EpisodeSettings, Population

FIRST_SEARCH_SEED = 20_000_000
"""Episodes of searches are seeded from here on, far from those of training, validation and reports."""
_SEEDS_PER_SEARCH = 100_000
_FINAL_SEEDS = _SEEDS_PER_SEARCH // 2
"""From here on, of a search's own seeds, those of the plans that are played again."""
_FINAL_ROUNDS = 4
_LIMITED_BATCHES = 2
"""First batches, in which the number of seeds is limited by lot."""
_NONE = -1


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How long and how wide a search is."""

    episodes: int = 256
    """Episodes of each task, in batches."""
    hosts: int = 32
    """Hosts of a batch, which train side by side."""
    seeds_per_batch: int = 4
    """Seeds that the hosts of a batch share; one host of each is left alone."""
    max_seeds: int = 3
    """Most seeds of a plan."""
    prices: tuple[float, ...] = (0.01, DEFAULT_PRICE, 0.1)
    """Prices that plans are wanted for; batches draw from between the lowest and the highest."""
    finalists: int = 8
    """Plans at each price that are played again, half as many in each round as in the one before."""
    final_seeds: int = 32
    """Fresh seeds from which the last ones of them are played, in four rounds."""
    seed: int = 0
    """Decides all plans that are played, and the seeds of their episodes."""

    def __post_init__(self) -> None:
        least = dict.fromkeys(("episodes", "seeds_per_batch", "max_seeds", "finalists"), 1)
        for name, minimum in (least | {"hosts": 2, "final_seeds": _FINAL_ROUNDS}).items():
            if getattr(self, name) < minimum:
                raise InputError(f"{name} must be {minimum} or more; got {getattr(self, name)}")
        if 2 * self.seeds_per_batch > self.hosts:
            raise InputError(f"seeds_per_batch must be at most {self.hosts // 2}, half of the hosts")
        if not self.prices or not all(0 < price < torch.inf for price in self.prices):
            raise InputError(f"prices must be numbers above 0; got {self.prices}")
        if self.seed < 0:
            raise InputError(f"seed must be 0 or more; got {self.seed}")


@dataclass(frozen=True, slots=True)
class Finalist:
    """A plan that was played from fresh seeds."""

    plan: Plan
    added_params: int
    gain: float
    """Posterior mean of the gain in score over the host that is left alone, in points, before any rent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a search found at one price; gains are in points, relative to the host that is left alone."""

    price: float
    plan: Plan
    described: str
    """The plan in words: "far_wide in r0c3 from epoch 0"; those that do not join at once say how they do."""
    added_params: int
    expected: float
    """Posterior mean of the gain in score minus the rent."""


@dataclass(slots=True)
class _Played:
    """Finished episodes."""

    plans: list[Plan] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """Validation scores of the committed networks, in points."""


class PlanSearch:
    """The search on one task; `run` goes on to its end from wherever `load_state_dict` has put it."""

    def __init__(
        self,
        task: Task,
        settings: SearchSettings | None = None,
        episode: EpisodeSettings | None = None,
        *,
        executor: str = "auto",
    ) -> None:
        self.settings = settings or SearchSettings()
        self._population = Population(task, self.settings.hosts, episode, executor=executor)
        self.space = PlanSpace.of(self._population.situation, self.settings.max_seeds)
        self._sites = self._population.situation.sites
        self.played = _Played()
        self.round = 0
        """Of the final rounds, how many have begun."""
        self.queue: list[tuple[Plan, int]] = []
        """Plans and seeds of that round which are still to be played."""
        # A stream of its own: what is decided here changes nothing in any host.
        self._generator = torch.Generator().manual_seed(self.settings.seed)

    @property
    def total(self) -> int:
        """Episodes from start to end at most; finalists at different prices may coincide, so that there are fewer."""
        each = self.settings.final_seeds // _FINAL_ROUNDS
        plans = [len(self.settings.prices) * self._places(index) + 1 for index in range(_FINAL_ROUNDS)]
        return self._batches * self.settings.hosts + each * sum(plans)

    def _places(self, index: int) -> int:
        """Plans at each price in a final round, counted from 0."""
        return max(1, self.settings.finalists >> index)

    @property
    def _batches(self) -> int:
        return -(-self.settings.episodes // self.settings.hosts)

    def run(self, after_batch: Callable[["PlanSearch"], None] = lambda _: None) -> list[Finding]:
        """Search to the end; `after_batch` may save, and may raise."""
        while len(self.played.plans) < self._batches * self.settings.hosts:
            self._play(*self._next_batch())
            after_batch(self)
        while self.queue or self.round < _FINAL_ROUNDS:
            if not self.queue:
                self._begin_final_round()
            now = self.queue[: self.settings.hosts]
            self._play([plan for plan, _ in now], [seed for _, seed in now])
            self.queue = self.queue[len(now) :]
            after_batch(self)
        return [self.finding(price) for price in self.settings.prices]

    def posterior(self) -> Posterior:
        """Given all finished episodes."""
        played = self.played
        scores = torch.tensor(played.scores, dtype=torch.float64)
        return Posterior(self.space, played.plans, torch.tensor(played.seeds), scores)

    def finding(self, price: float) -> Finding:
        """The best of the finalists, nothing among them, at this price."""
        best = best_finalist(self.finalists(), self.space.host_params, price)
        value = best.gain - self.space.rent(best.plan, price)
        return Finding(price, best.plan, self._describe(best.plan), best.added_params, value)

    def finalists(self) -> tuple[Finalist, ...]:
        """The plans of the final rounds, those of all prices, with nothing among them."""
        posterior, plans = self.posterior(), self._final_plans()
        gains = posterior.ranked(posterior.mean_effects(), 0.0)
        return tuple(Finalist(plan, self.space.added(plan), gain) for plan, gain in gains if plan in plans)

    def _describe(self, plan: Plan) -> str:
        words = []
        for planting in plan:
            site = self._sites[planting.slot]
            kind = find_blueprint(site.shape.family, planting.blueprint + 1).name
            blend = "" if planting.blend is Blend.INSTANT else f", {planting.blend.name.lower()}"
            words.append(f"{kind} in {site.slot_id} from epoch {planting.step}{blend}")
        return "; ".join(words) or "nothing"

    def _next_batch(self) -> tuple[list[Plan], list[int]]:
        """Plans and seeds: per seed, one host that is left alone, and plans that may be the best."""
        settings = self.settings
        batch = len(self.played.plans) // settings.hosts
        first = FIRST_SEARCH_SEED + settings.seed * _SEEDS_PER_SEARCH + batch * settings.seeds_per_batch
        seeds = [first + host % settings.seeds_per_batch for host in range(settings.hosts)]
        posterior = self.posterior() if self.played.plans else None
        wanted = [self._draw_plan(posterior) for _ in range(settings.hosts - settings.seeds_per_batch)]
        return [()] * settings.seeds_per_batch + wanted, seeds

    def _draw_plan(self, posterior: Posterior | None) -> Plan:
        """The best plan under drawn effects, at a drawn price, at first of at most a drawn number of seeds.

        Plans of few seeds tell what each brings; without a limit nearly all would have as many as they may.
        """
        low, high = (torch.tensor(bound).log() for bound in (min(self.settings.prices), max(self.settings.prices)))
        price = float((low + (high - low) * torch.rand((), generator=self._generator)).exp())
        most = int(torch.randint(1, self.settings.max_seeds + 1, (), generator=self._generator))
        if len(self.played.plans) >= _LIMITED_BATCHES * self.settings.hosts:
            most = self.settings.max_seeds
        if posterior is not None:
            return posterior.best_plan(posterior.draw_effects(self._generator), price, most)
        # Before anything was played all moments and blends are tried alike.
        prior = self.space.prior()
        drawn = prior * torch.randn(len(prior), generator=self._generator, dtype=torch.float64)
        return self.space.best_plan(drawn, price, most)

    def _final_plans(self) -> dict[Plan, None]:
        """Plans that were played in final rounds."""
        return dict.fromkeys(self.played.plans[self._batches * self.settings.hosts :])

    def _begin_final_round(self) -> None:
        """Nothing and the best few at each price are to be played, from the next fresh seeds."""
        posterior, finalists = self.posterior(), self._final_plans()
        effects = posterior.mean_effects()
        chosen: dict[Plan, None] = {(): None}
        for price in self.settings.prices:
            best = [plan for plan, _ in posterior.ranked(effects, price) if not finalists or plan in finalists]
            if not finalists:
                best.insert(0, posterior.best_plan(effects, price))
            chosen |= dict.fromkeys(list(dict.fromkeys(best))[: self._places(self.round)])
        each = self.settings.final_seeds // _FINAL_ROUNDS
        first = FIRST_SEARCH_SEED + self.settings.seed * _SEEDS_PER_SEARCH + _FINAL_SEEDS + self.round * each
        self.queue = [(plan, first + index) for index in range(each) for plan in chosen]
        self.round += 1

    def _play(self, plans: list[Plan], seeds: list[int]) -> None:
        """One episode per plan; hosts beyond are left alone and count nowhere."""
        idle = self._population.num_hosts - len(plans)
        self._population.start(seeds + [seeds[-1]] * idle)
        play(self._population, Plans(plans + [()] * idle), seed=0)
        results = self._population.results(test=False)[: len(plans)]
        self.played.plans += plans
        self.played.seeds += seeds
        self.played.scores += [POINTS * result.val_score for result in results]

    def state_dict(self) -> dict[str, Any]:
        """Finished episodes and the generator, as tensors; the posterior follows from them."""
        return {
            "catalogue": self._catalogue_names(),
            "plans": _packed(self.played.plans, self.settings.max_seeds),
            "seeds": torch.tensor(self.played.seeds, dtype=torch.int64),
            "scores": torch.tensor(self.played.scores, dtype=torch.float64),
            "round": self.round,
            "queued_plans": _packed([plan for plan, _ in self.queue], self.settings.max_seeds),
            "queued_seeds": torch.tensor([seed for _, seed in self.queue], dtype=torch.int64),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of the same task and settings; nothing changes if it does not fit."""
        checked_keys(state, self.state_dict(), "a search")
        check_catalogue(state["catalogue"], self._catalogue_names(), "the search", "begin it anew")
        scores = checked_tensor(state["scores"], "scores", None, torch.float64)
        seeds = checked_tensor(state["seeds"], "seeds", scores.shape, torch.int64)
        shape = (self.settings.max_seeds, len(HEAD_NAMES))
        plans = _unpacked(checked_tensor(state["plans"], "plans", (*scores.shape, *shape), torch.int64))
        index = checked_whole(state["round"], "round", high=_FINAL_ROUNDS)
        queued_seeds = checked_tensor(state["queued_seeds"], "queued_seeds", None, torch.int64)
        queued_shape = (*queued_seeds.shape, *shape)
        queued = _unpacked(checked_tensor(state["queued_plans"], "queued_plans", queued_shape, torch.int64))
        drawn = self._generator.get_state()
        generator = checked_tensor(state["generator"], "generator", drawn.shape, drawn.dtype)
        for plan in (*plans, *queued):
            self.space.check(plan)
        # Everything is in order: now it is taken over.
        self.played = _Played(plans, seeds.tolist(), scores.tolist())
        self.round, self.queue = index, list(zip(queued, queued_seeds.tolist(), strict=True))
        self._generator.set_state(generator)

    def _catalogue_names(self) -> dict[str, list[str]]:
        return catalogue_names(site.shape.family for site in self._sites)


def best_finalist(finalists: Sequence[Finalist], host_params: int, price: float) -> Finalist:
    """The one whose gain minus its rent is largest."""
    return max(finalists, key=lambda one: one.gain - POINTS * charge(float(one.added_params), host_params, price))


def _packed(plans: Sequence[Plan], max_seeds: int) -> Tensor:
    """`[n, max_seeds, 4]`: step, slot, blueprint and blend of each planting; -1 where there is none."""
    rows = torch.full((len(plans), max_seeds, len(HEAD_NAMES)), _NONE)
    for row, plan in zip(rows, plans, strict=True):
        for place, planting in enumerate(plan):
            row[place] = torch.tensor([planting.step, planting.slot, planting.blueprint, planting.blend])
    return rows


def _unpacked(rows: Tensor) -> list[Plan]:
    """The inverse of `_packed`; numbers that no planting can have are refused."""
    plans = []
    for row in rows.tolist():
        plantings = [planting for planting in row if planting != [_NONE] * len(HEAD_NAMES)]
        if any(min(planting) < 0 or planting[3] >= len(Blend) for planting in plantings):
            raise InputError(f"the search holds a plan that is none: {plantings}")
        plans.append(tuple(Planting(step, slot, kind, Blend(blend)) for step, slot, kind, blend in plantings))
    return plans
