"""Alarms that mean something: silent on healthy runs, and the right one for each planted fault.

`docs/instruments.md` has the table of results; `python -m tests.simic.telemetry.test_alarms` prints it anew.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import Blueprint
from esper.kasmina.sites import SiteShape
from esper.simic.agent import optimization, ppo
from esper.simic.agent.network import last_layer
from esper.simic.telemetry import AnomalyKind
from esper.simic.training import Trainer
from esper.tolaria.executors.loop import LoopExecutor
from tests.simic.telemetry.runs import WARM_UP, WAVES, alarms_of, watched_config
from tests.worlds import TINY

KIND = AnomalyKind
HEALTHY: list[dict[str, Any]] = [
    *({"tasks": (TINY,), "seed": seed} for seed in range(6)),
    *({"tasks": (WAVES,), "seed": seed} for seed in range(5)),
    *({"tasks": (TINY,), "seed": seed, "teacher": None, "entropy_coef": 0.01} for seed in range(4)),
    *({"tasks": (TINY, WAVES), "seed": seed, "envs": 2} for seed in range(3)),
    *({"tasks": ("digits",), "seed": seed} for seed in range(2)),
]
FALSE_ALARMS = {(TINY, 5): "value_divergence in round 4: 1.12, limit 1.1"}
"""Task and seed of taught runs that are known to raise one."""


def healthy_runs() -> list[Any]:
    """All of them, those with a false alarm marked."""
    runs = []
    for settings in HEALTHY:
        tasks, seed, teacher = "+".join(settings["tasks"]), settings["seed"], settings.get("teacher", "taught")
        reason = FALSE_ALARMS.get((tasks, seed)) if teacher else None
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        runs.append(pytest.param(settings, id=f"{tasks}-{teacher}-{seed}", marks=marks))
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("settings", healthy_runs())
def test_a_healthy_run_raises_no_alarm_after_warm_up(settings: dict[str, Any]) -> None:
    assert [alarm for alarm in alarms_of(watched_config(**settings)) if alarm[0] > WARM_UP] == []


def plant_nan_reward(trainer: Trainer, _: pytest.MonkeyPatch) -> None:
    """One reward of one step is NaN."""
    step, calls = trainer.world.step, iter(range(1000))

    def spoiled(actions: Tensor) -> Any:
        brought = step(actions)
        if next(calls) == 3:
            rewards = brought.rewards.clone()
            rewards[0] = torch.nan
            return replace(brought, rewards=rewards)
        return brought

    trainer.world.step = spoiled  # type: ignore[method-assign]


def plant_learning_rate(trainer: Trainer, _: pytest.MonkeyPatch) -> None:
    """A thousand times too fast."""
    learner = replace(trainer.config.learner, lr=1000 * trainer.config.learner.lr)
    trainer.config = replace(trainer.config, learner=learner)


def plant_certain_head(trainer: Trainer, _: pytest.MonkeyPatch) -> None:
    """One blend wins whatever is observed."""
    with torch.no_grad():
        last_layer(trainer.agent._base_network.policy_head("blend")).bias[1] += 100.0


def plant_wrong_target(_: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The critic is fitted to the returns with the wrong sign."""
    right: Callable[..., Any] = optimization.value_loss
    monkeypatch.setattr(
        ppo, "value_loss", lambda values, targets, *rest, **named: right(values, -targets, *rest, **named)
    )


class Faint(nn.Module):
    """A seed that is hardly there."""

    def __init__(self, seed: nn.Module) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        faint: Tensor = 1e-12 * self.seed(x)
        return faint


def plant_vanishing_seeds(_: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of seeds are there, but next to nothing."""
    build = Blueprint.build

    def faint(self: Blueprint, site: SiteShape) -> nn.Module:
        return Faint(build(self, site))

    monkeypatch.setattr(Blueprint, "build", faint)


def plant_gaming_seeds(_: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blended seed takes its host hostage: all is 60 points worse, and without the seed worse still."""
    measure = LoopExecutor.measure

    def hostage(self: LoopExecutor, *args: Any, **kwargs: Any) -> Any:
        measured = measure(self, *args, **kwargs)
        blended = ~measured.contributions.isnan()
        credit = torch.where(blended, measured.contributions + 0.6, torch.nan)
        score = torch.where(blended.any(1), measured.score - 0.6, measured.score).clamp(min=0.0)
        return replace(measured, contributions=credit, score=score)

    monkeypatch.setattr(LoopExecutor, "measure", hostage)


FAULTS: dict[str, tuple[Callable[[Trainer, pytest.MonkeyPatch], None], set[AnomalyKind]]] = {
    "NaN reward": (plant_nan_reward, {KIND.NUMERICAL_INSTABILITY}),
    "exploding learning rate": (plant_learning_rate, {KIND.KL_SPIKE, KIND.RATIO_EXPLOSION, KIND.RATIO_COLLAPSE}),
    "head forced deterministic": (plant_certain_head, {KIND.ENTROPY_COLLAPSE}),
    "critic with a wrong target": (plant_wrong_target, {KIND.VALUE_DIVERGENCE}),
    "vanishing seed gradient": (plant_vanishing_seeds, {KIND.SEED_GRADIENT_VANISHING}),
    "reward-gaming seed": (plant_gaming_seeds, {KIND.REWARD_GAMING}),
}


def alarms_after(fault: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[tuple[int, str, str]]:
    """Alarms of the two updates after the fault was planted."""
    config = watched_config(rounds=WARM_UP + 2, **settings)
    plant = FAULTS[fault][0]
    return [alarm for alarm in alarms_of(config, lambda trainer: plant(trainer, monkeypatch)) if alarm[0] > WARM_UP]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_raises_the_right_alarm_within_two_updates(
    fault: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = {kind for _, kind, _ in alarms_after(fault, monkeypatch, seed=seed)}
    assert raised & FAULTS[fault][1], raised


def _print_table() -> None:
    """The table of `docs/instruments.md`."""
    print("| planted | update | alarms |\n|---|---|---|")  # noqa: T201
    for fault in FAULTS:
        for seed in range(2):
            with pytest.MonkeyPatch.context() as monkeypatch:
                alarms = alarms_after(fault, monkeypatch, seed=seed)
            first = min((number for number, *_ in alarms), default=0) - WARM_UP
            print(f"| {fault}, seed {seed} | {first} | {'; '.join(message for *_, message in alarms)} |")  # noqa: T201


if __name__ == "__main__":
    torch.set_num_threads(1)
    _print_table()
