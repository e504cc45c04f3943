"""The benchmark gives plain numbers, and says so where there is nothing to compare with."""

import json

import pytest

from esper_lab import learner_speed


def test_without_the_peer_the_benchmark_says_so_and_still_times_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_speed, "_peer_missing", lambda: "sb3-contrib is not installed")
    result = json.loads(json.dumps(learner_speed.bench_ppo_update((16,), repeats=1)))
    assert set(result["ppo_update"]["ours_s"]) == set(result["act_step_ms"]) == {"16"}
    assert min(result["ppo_update"][name]["16"] for name in ("ours_s", "lstm_s")) > 0
    assert result["ppo_update"]["sb3_s"] is None
    assert "not installed" in result["ppo_update"]["note"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_with_the_peer_both_are_timed() -> None:
    pytest.importorskip("sb3_contrib")
    result = learner_speed.bench_ppo_update((16,), repeats=1)
    assert result["ppo_update"]["note"] is None
    assert result["ppo_update"]["speedup"]["16"] > 0
