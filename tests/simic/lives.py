"""Scripted lives: situations and outcomes of several hosts under random legal actions, without any training."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import (
    UNLIMITED,
    Catalogue,
    EpochEvidence,
    Family,
    Site,
    SiteShape,
    SlotTable,
    act,
    action_masks,
    begin_epoch,
    end_epoch,
)
from esper.leyline import HEAD_NAMES, SlotConfig, Stage
from esper.simic.control import draw_actions, esper_action_spec
from esper.tolaria import Outcome, SignalTable, Situation, TrackerSettings, track

HOST_PARAMS = 1000
MAX_PANICS = 3


@cache
def make_catalogue(slots: int) -> Catalogue:
    """The prices of those slots, which take longer to measure than a test has."""
    return Catalogue.of([site.shape for site in make_sites(slots)])


def make_sites(slots: int) -> tuple[Site, ...]:
    """Slots of different widths, so that the same blueprint costs something else in each."""
    return tuple(
        Site(f"layer{index}", slot_id, SiteShape(Family.FEATURES, 6 + 2 * index), torch.float32)
        for index, slot_id in enumerate(SlotConfig.of_size(slots).slot_ids)
    )


def make_situation(hosts: int = 3, slots: int = 2, **overrides: Any) -> Situation:
    """Hosts before their first epoch."""
    sites = make_sites(slots)
    signals = SignalTable.empty(hosts)
    signals.score_history[:, -1] = 0.1
    values: dict[str, Any] = {
        "table": SlotTable.empty(hosts, slots),
        "signals": signals,
        "catalogue": make_catalogue(slots),
        "sites": sites,
        "host_params": HOST_PARAMS,
        "price": torch.full((hosts,), 0.03),
        "budget": torch.full((hosts,), UNLIMITED),
        "episode_length": 25,
        **overrides,
    }
    masks = action_masks(values["table"], values["catalogue"], values["budget"])
    return Situation(**{"masks": masks, **values})


def make_outcome(before: Situation, after: Situation | None = None, **overrides: Any) -> Outcome:
    """A step in which everyone waited, unless told otherwise."""
    hosts = before.table.shape[0]
    never = torch.zeros(hosts, dtype=torch.bool)
    values: dict[str, Any] = {
        "actions": torch.zeros((hosts, len(HEAD_NAMES)), dtype=torch.int64),
        "after": after or before,
        "panicked": never,
        "terminated": never,
        "truncated": never,
        "final_score": torch.full((hosts,), torch.nan),
        "final_loss": torch.full((hosts,), torch.nan),
        "final_params": torch.zeros(hosts, dtype=torch.int64),
        "final_flops": torch.zeros(hosts, dtype=torch.int64),
        **overrides,
    }
    return Outcome(before=before, **values)


def random_step(situation: Situation, panics: Tensor, generator: torch.Generator, panic_rate: float) -> Outcome:
    """One step of all hosts with random legal actions and random evidence; `panics [N]` counts, in place."""
    hosts, slots = situation.table.shape
    spec = esper_action_spec(SlotConfig.of_size(slots))
    masks = {name: getattr(situation.masks, name) for name in HEAD_NAMES}
    logits = torch.randn(hosts, len(spec.heads), spec.width, generator=generator)
    actions = draw_actions(spec, 2.0 * logits, masks, deterministic=True)
    table = begin_epoch(act(situation.table, actions, situation.catalogue, situation.budget, situation.score)[0])[0]

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    unhealthy = rand(hosts, slots) < 0.1
    evidence = EpochEvidence(
        score=rand(hosts),
        loss_finite=torch.ones(hosts, dtype=torch.bool),
        seed_gradient=torch.where(unhealthy, 0.0, 10 * rand(hosts, slots)),
        contribution=torch.where(rand(hosts, slots) < 0.1, torch.nan, rand(hosts, slots) - 0.4),
        trial=torch.where(rand(hosts, slots) < 0.5, torch.nan, 0.1 * rand(hosts, slots) - 0.03),
    )
    table = end_epoch(table, evidence)[0]
    losses = {name: 3 * rand(hosts) for name in ("train_loss", "val_loss", "host_grad_norm")}
    scores = {"train_score": rand(hosts), "val_score": evidence.score}
    signals = track(situation.signals, TrackerSettings(), **losses, **scores)
    panicked = rand(hosts) < panic_rate
    panics += panicked
    table = _choose(panicked, situation.table, table)
    signals = replace(_choose(panicked, situation.signals, signals), epoch=situation.signals.epoch + 1)
    masks_after = action_masks(table, situation.catalogue, situation.budget)
    terminated = panics >= MAX_PANICS
    kept = table.stage == Stage.FOSSILIZED
    ended = terminated | (signals.epoch >= situation.episode_length)
    return Outcome(
        before=situation,
        actions=actions,
        after=replace(situation, table=table, signals=signals, masks=masks_after),
        panicked=panicked,
        terminated=terminated,
        truncated=ended & ~terminated,
        final_score=torch.where(ended, rand(hosts), torch.nan),
        final_loss=torch.where(ended, 3 * rand(hosts), torch.nan),
        final_params=torch.where(kept, table.params, 0).sum(1),
        final_flops=torch.where(kept, situation.catalogue.planted_flops(table), 0).sum(1),
    )


def _choose(first: Tensor, one: Any, other: Any) -> Any:
    """A table with the rows of `one` where `first [N]` holds, else those of `other`."""
    names = type(one).__dataclass_fields__
    rows = {
        name: torch.where(
            first.view(-1, *[1] * (getattr(one, name).dim() - 1)), getattr(one, name), getattr(other, name)
        )
        for name in names
    }
    return type(one)(**rows)


def random_life(
    seed: int, hosts: int = 4, slots: int = 2, length: int = 25, panic_rate: float = 0.05, **overrides: Any
) -> list[Outcome]:
    """The outcomes of whole episodes; rows of a host after its own end mean nothing."""
    generator = torch.Generator().manual_seed(seed)
    price = 10 ** (-2 + torch.rand(hosts, generator=generator))
    situation = make_situation(hosts, slots, **{"price": price, "episode_length": length, **overrides})
    panics = torch.zeros(hosts, dtype=torch.int64)
    outcomes = []
    for _ in range(length):
        outcomes.append(random_step(situation, panics, generator, panic_rate))
        situation = outcomes[-1].after
    return outcomes


def last_steps(outcomes: list[Outcome]) -> Tensor:
    """`[N]`: the step with which each host's episode ended."""
    return torch.stack([outcome.ended for outcome in outcomes]).int().argmax(0)
