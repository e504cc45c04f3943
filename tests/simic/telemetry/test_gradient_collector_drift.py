"""The running means of gradients: what drifts is flagged, and nothing poisons them."""

import math

import pytest

from esper.simic.telemetry import AnomalyDetector, AnomalyKind, GradientEMATracker


def warm(value: float = 2.0, samples: int = 10) -> GradientEMATracker:
    tracker = GradientEMATracker(decay=0.9)
    for _ in range(samples):
        tracker.update(value)
    return tracker


def test_the_first_sample_starts_the_means() -> None:
    tracker = GradientEMATracker()
    assert tracker.update(3.0, 0.8).norm == 0.0
    assert (tracker.norm, tracker.health) == (3.0, 0.8)


def test_a_constant_series_does_not_drift() -> None:
    drift = warm().update(2.0)
    assert drift.norm == pytest.approx(0.0)
    assert not drift.drifted


def test_a_tenfold_jump_is_flagged_and_fades_at_the_rate_of_the_mean() -> None:
    tracker = warm(1.0)
    seen = [tracker.update(10.0).norm for _ in range(3)]
    means = [10.0 - 9.0 * 0.9**step for step in range(3)]
    assert seen == pytest.approx([(10.0 - mean) / mean for mean in means])
    assert warm(1.0).update(10.0).drifted


def test_young_means_flag_nothing() -> None:
    tracker = GradientEMATracker()
    tracker.update(1.0)
    assert not tracker.update(50.0).drifted


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sample_that_is_no_number_is_told_and_left_out(bad: float) -> None:
    tracker = warm()
    drift = tracker.update(bad)
    assert not drift.finite
    assert drift.drifted
    assert tracker.norm == pytest.approx(2.0)
    assert tracker.update(2.0).norm == pytest.approx(0.0)


def test_a_saved_tracker_goes_on_the_same() -> None:
    tracker, other = warm(), GradientEMATracker()
    other.load_state_dict(tracker.state_dict())
    assert other.update(7.0) == tracker.update(7.0)


def test_drift_reaches_the_detector() -> None:
    report = AnomalyDetector().check_all(
        ratio_max=1.0, ratio_min=1.0, explained_variance=None, drift=warm(1.0).update(10.0).indicator
    )
    assert report.kinds == (AnomalyKind.GRADIENT_DRIFT,)
