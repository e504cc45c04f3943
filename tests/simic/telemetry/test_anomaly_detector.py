"""Every check alone at its limit, and all together."""

import math
import re
from dataclasses import fields
from typing import Any

import pytest

from esper.simic.config import LearnerConfig, TrainingConfig
from esper.simic.telemetry import ADVICE, AnomalyDetector, AnomalyKind, SeedEpochs
from tests.simic.builders import config_of

KIND = AnomalyKind


def check(detector: AnomalyDetector | None = None, **overrides: Any) -> tuple[AnomalyKind, ...]:
    healthy: dict[str, Any] = {"ratio_max": 1.2, "ratio_min": 0.8, "explained_variance": 0.9}
    return (detector or AnomalyDetector()).check_all(**(healthy | overrides)).kinds


@pytest.mark.parametrize(
    ("numbers", "kinds"),
    [
        ({}, ()),
        ({"ratio_max": 5.0, "ratio_min": 0.1}, ()),
        ({"ratio_max": 5.01}, (KIND.RATIO_EXPLOSION,)),
        ({"ratio_min": 0.09}, (KIND.RATIO_COLLAPSE,)),
        ({"explained_variance": 0.05}, (KIND.VALUE_COLLAPSE,)),
        ({"explained_variance": None}, ()),
        ({"value_growth": 3.0}, (KIND.VALUE_DIVERGENCE,)),
        ({"value_growth": 1.0}, ()),
        ({"has_nan": True}, (KIND.NUMERICAL_INSTABILITY,)),
        ({"has_inf": True}, (KIND.NUMERICAL_INSTABILITY,)),
        ({"has_nan": True, "has_inf": True}, (KIND.NUMERICAL_INSTABILITY,)),
        ({"drift": 9.0}, (KIND.GRADIENT_DRIFT,)),
        ({"drift": 0.5}, ()),
        ({"entropy": 0.05}, (KIND.ENTROPY_COLLAPSE,)),
        ({"entropy": 0.2}, ()),
        ({"kl": 0.11}, (KIND.KL_SPIKE,)),
        ({"kl": 0.09}, ()),
        ({"kl": math.nan}, (KIND.KL_SPIKE,)),
        (
            {"has_nan": True, "ratio_max": 9.0, "kl": 1.0},
            (KIND.NUMERICAL_INSTABILITY, KIND.RATIO_EXPLOSION, KIND.KL_SPIKE),
        ),
    ],
)
def test_each_limit_raises_its_alarm(numbers: dict[str, Any], kinds: tuple[AnomalyKind, ...]) -> None:
    assert check(**numbers) == kinds


def test_only_the_collapsed_head_is_named() -> None:
    report = AnomalyDetector().check_all(
        ratio_max=1.0, ratio_min=1.0, explained_variance=None, head_entropies={"op": 0.4, "blend": 0.05}
    )
    assert report.details[KIND.ENTROPY_COLLAPSE]["heads"] == ["blend"]
    assert "blend 0.050" in report.anomalies[0].message
    assert "op" not in report.anomalies[0].message.replace("entropy", "")


@pytest.mark.parametrize(("episode", "tolerated"), [(5, -0.5), (20, -0.2), (70, 0.0), (90, 0.1)])
def test_a_young_critic_is_given_time(episode: int, tolerated: float) -> None:
    at: dict[str, Any] = {"current_episode": episode, "total_episodes": 100}
    assert check(explained_variance=tolerated, **at) == ()
    assert check(explained_variance=tolerated - 0.01, **at) == (KIND.VALUE_COLLAPSE,)


def test_a_higher_limit_is_more_sensitive() -> None:
    at: dict[str, Any] = {"current_episode": 95, "total_episodes": 100}
    assert check(AnomalyDetector(min_explained_variance=0.3), explained_variance=0.2, **at) == (KIND.VALUE_COLLAPSE,)
    assert check(AnomalyDetector(min_explained_variance=0.1), explained_variance=0.2, **at) == ()


def test_late_in_a_run_a_policy_may_have_decided() -> None:
    entropies: dict[str, Any] = {"head_entropies": {"op": 0.05}}
    assert check(**entropies, current_episode=50, total_episodes=100) == (KIND.ENTROPY_COLLAPSE,)
    assert check(**entropies, current_episode=90, total_episodes=100) == ()
    assert check(head_entropies={"op": 0.001}, current_episode=90, total_episodes=100) == (KIND.ENTROPY_COLLAPSE,)


def test_a_blueprint_that_cannot_learn_is_named() -> None:
    seeds = SeedEpochs({"mlp": 60, "attention": 30}, {"mlp": 2, "attention": 27})
    report = AnomalyDetector().check_all(ratio_max=1.0, ratio_min=1.0, explained_variance=None, seeds=seeds)
    assert report.kinds == (KIND.SEED_GRADIENT_VANISHING,)
    assert report.details[report.kinds[0]]["blueprints"] == ["attention"]
    assert check(seeds=SeedEpochs({"mlp": 9}, {"mlp": 9})) == ()  # too few to tell
    everywhere = SeedEpochs({"mlp": 15, "attention": 15}, {"mlp": 15, "attention": 14})
    assert check(seeds=everywhere) == (KIND.SEED_GRADIENT_VANISHING,)
    assert check(seeds=SeedEpochs({"mlp": 30}, {}, {"mlp": 25})) == (KIND.SEED_GRADIENT_EXPLODING,)


@pytest.mark.parametrize(("suspected", "judged", "raised"), [(20, 60, True), (10, 60, False), (4, 5, False)])
def test_gaming_is_a_matter_of_many_seeds(suspected: int, judged: int, raised: bool) -> None:
    seeds = SeedEpochs(judged=judged, suspected=suspected)
    assert check(seeds=seeds) == ((KIND.REWARD_GAMING,) if raised else ())


def test_limits_come_from_the_config() -> None:
    detector = AnomalyDetector(**config_of(max_ratio=1.01, drift_limit=0.4).to_anomaly_kwargs())
    assert check(detector, drift=0.5) == (KIND.RATIO_EXPLOSION, KIND.GRADIENT_DRIFT)
    assert check(AnomalyDetector(**TrainingConfig().to_anomaly_kwargs())) == ()


def test_what_is_expected_of_a_policy_depends_on_how_it_began() -> None:
    def limit(**settings: Any) -> float:
        return AnomalyDetector(**config_of(**settings).to_anomaly_kwargs()).entropy_limit

    assert limit(teacher=None) == 0.1
    assert limit(teacher="heuristic") == 0.01
    assert limit(teacher="heuristic", entropy_limit=0.3) == 0.3
    kl = AnomalyDetector(**config_of(target_kl=0.05).to_anomaly_kwargs()).kl_limit
    assert kl == pytest.approx(0.2)
    assert AnomalyDetector(**config_of(target_kl=None).to_anomaly_kwargs()).kl_limit == 0.1


def test_the_detector_is_slotted_and_every_alarm_has_advice() -> None:
    with pytest.raises(AttributeError):
        AnomalyDetector().other = 1.0  # type: ignore[attr-defined]
    assert set(ADVICE) == set(AnomalyKind)


def test_advice_names_fields_that_the_training_config_has() -> None:
    names = {spec.name for spec in fields(LearnerConfig)}
    told = {name for advice in ADVICE.values() for name in re.findall(r"`([^`]*)`", advice)}
    assert {"learner.lr", "learner.entropy_coef_per_head", "reward.checks.penalty"} <= told
    for name in told:
        value: Any = TrainingConfig()
        for part in name.split("."):
            assert part in {spec.name for spec in fields(value)}, f"the advice names {name}, which is no field"
            value = getattr(value, part)
    for advice in ADVICE.values():
        plain = re.sub(r"`[^`]*`", "", advice)
        assert "_" not in plain, f"{advice!r} names something that is not in backticks"
        assert not names & set(re.findall(r"\w+", plain)) - {"reward", "seed"}, f"{advice!r}: fields need backticks"
