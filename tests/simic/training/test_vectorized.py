"""The training loop: rounds of whole episodes, repeatable, resumed bit for bit, nothing lost."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.leyline import HEAD_NAMES, EsperError, InputError
from esper.simic.agent.checkpoint import pack_checkpoint
from esper.simic.config.reward import ChecksConfig, RewardConfig
from esper.simic.training import (
    InterruptedRunError,
    LearnedController,
    RunFolder,
    Trainer,
    TrainingConfig,
    collect_round,
    load_controller,
)
from esper.tamiyo import run_episode
from esper.tasks import find_task
from tests.simic.builders import config_of, normalizer_of
from tests.worlds import TINY, slots_of, tiny_task


def tiny_config(**overrides: Any) -> TrainingConfig:
    settings: dict[str, Any] = {
        "tasks": (TINY,),
        "envs": 4,
        "rounds": 4,
        "episode_length": 8,
        "executor": "loop",
        "validation_episodes": 2,
        "validate_every": 2,
        "lstm_hidden_dim": 16,
        "num_minibatches": 2,
        "teacher": None,
    }
    return config_of(**(settings | overrides))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "straight"
    esper.train(tiny_config(), out)
    return out


def final_weights(folder: Path) -> list[torch.Tensor]:
    newest = RunFolder(folder).newest()
    assert newest is not None
    return list(load_controller(newest)._policy.network.state_dict().values())


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def assert_same_run(folder: Path, other: Path) -> None:
    assert all(torch.equal(a, b) for a, b in zip(final_weights(folder), final_weights(other), strict=True))
    histories = [json.loads((path / "summary.json").read_text())["history"] for path in (folder, other)]
    assert histories[0] == histories[1]


def test_a_round_holds_whole_episodes_from_their_start() -> None:
    trainer = Trainer(tiny_config())
    mean = normalizer_of(trainer.agent).mean.clone()
    outcome = collect_round(trainer.agent, trainer.world, 0)
    buffer = trainer.agent.buffer
    assert buffer.step_counts.tolist() == [8] * 4
    assert buffer.dones[:, -1].all()
    assert not buffer.dones[:, :-1].any()
    assert buffer.truncated[:, -1].all()
    assert torch.equal(normalizer_of(trainer.agent).mean, mean)  # frozen while it acts
    assert not buffer.hidden_h[:, 0].any()
    assert outcome.returns.tolist() == pytest.approx(buffer.rewards.sum(1).tolist(), abs=1e-4)
    assert sum(outcome.means()["ops"].values()) == pytest.approx(8.0)
    metrics = trainer.agent.update()
    assert float(normalizer_of(trainer.agent).count) == 32
    assert metrics["optimizer_steps"] > 0


def test_the_first_update_of_a_round_starts_at_the_policy_that_acted() -> None:
    trainer = Trainer(tiny_config(epochs=1, num_minibatches=1))
    for index in range(2):
        collect_round(trainer.agent, trainer.world, index)
        metrics = trainer.agent.update()
        assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)


def test_the_same_seed_gives_the_same_run(straight: Path, tmp_path: Path) -> None:
    torch.randn(3)
    esper.train(tiny_config(), tmp_path / "again")
    assert_same_run(straight, tmp_path / "again")
    esper.train(tiny_config(seed=1), tmp_path / "other")
    assert not torch.equal(final_weights(straight)[0], final_weights(tmp_path / "other")[0])


def test_telemetry_changes_nothing_but_what_is_recorded(straight: Path, tmp_path: Path) -> None:
    esper.train(tiny_config(telemetry="off"), tmp_path / "off")
    assert_same_run(straight, tmp_path / "off")
    assert not (tmp_path / "off" / "events.jsonl").read_text()
    esper.train(tiny_config(telemetry="debug"), tmp_path / "debug")
    assert_same_run(straight, tmp_path / "debug")
    counts = [Counter(event["type"] for event in events(path)) for path in (straight, tmp_path / "debug")]
    assert counts[0]["run_started"] == 1
    assert counts[0]["round_completed"] == 4
    assert counts[0]["episode_started"] == 4 * 4  # twins are not told of
    assert (counts[0]["epoch_completed"], counts[1]["epoch_completed"]) == (0, 4 * 4 * 8)


def test_events_of_hosts_tell_where_and_when(straight: Path, tmp_path: Path) -> None:
    pooled = tiny_config(tasks=("digits", "mnist1d"), workers=2, rounds=2, episode_length=2)
    esper.train(pooled, tmp_path / "pool")
    for folder, tasks, rounds in ((straight, (TINY,), 4), (tmp_path / "pool", pooled.world.tasks, 2)):
        starts = [event for event in events(folder) if event["type"] == "episode_started"]
        hosts = [(task, 4 * index + host) for index, task in enumerate(tasks) for host in range(4)]
        assert [(event["payload"]["task"], event["env_id"]) for event in starts] == hosts * rounds
        assert [event["round"] for event in starts[:: len(hosts)]] == [*range(1, rounds + 1)]
        assert len({event["payload"]["seed"] for event in starts}) == len(starts)


def test_suspicious_seeds_are_told_of(tmp_path: Path) -> None:
    easily = ChecksConfig(hacking_contribution=0.0, hacking_ratio=0.0)
    reward = RewardConfig(gamma=1.0, checks=easily)
    # Every seed that helps a little is suspicious now.
    esper.train(tiny_config(reward=reward, rounds=1, episode_length=14, envs=8), tmp_path / "run")
    told = [event for event in events(tmp_path / "run") if event["type"] == "reward_hacking_suspected"]
    assert told
    assert all(event["payload"]["ratio"] > 0 and event["slot_id"] and event["env_id"] < 8 for event in told)


@pytest.mark.parametrize("steps", [1, 13, 40, 50, 55, 70])
def test_a_run_stopped_anywhere_resumes_bit_for_bit(straight: Path, tmp_path: Path, steps: int) -> None:
    calls = iter(range(10_000))
    with pytest.raises(InterruptedRunError):
        esper.train(tiny_config(), tmp_path / "run", should_stop=lambda: next(calls) >= steps)
    torch.randn(7)
    esper.train(RunFolder(tmp_path / "run").stored_config(), tmp_path / "run", resume=True)
    assert_same_run(straight, tmp_path / "run")


def test_only_the_newest_checkpoints_and_the_best_stay(straight: Path) -> None:
    names = sorted(path.name for path in (straight / "checkpoints").iterdir())
    assert names == ["best.pt", "round-000002.pt", "round-000003.pt", "round-000004.pt"]


def test_the_controller_of_a_run_decides_like_any_other(straight: Path) -> None:
    controller = load_controller(straight)
    assert isinstance(controller, LearnedController)
    first, second = (run_episode(tiny_task(), controller, seed=3) for _ in range(2))
    assert first == second


def test_a_controller_refuses_hosts_with_another_number_of_slots(straight: Path) -> None:
    small = tiny_task(host_settings={"inputs": 6, "widths": (4, 4), "classes": 3})
    with pytest.raises(InputError, match=f"trained for {slots_of(tiny_task())} slots; the host has {slots_of(small)}"):
        run_episode(small, load_controller(straight), seed=0)


def test_evaluation_reads_the_test_split_over_paired_seeds(straight: Path) -> None:
    never = esper.evaluate("never", TINY, range(3), executor="loop")
    learned = esper.evaluate(str(straight), TINY, range(3), executor="loop")
    assert learned.gain_over(never).mean == pytest.approx(learned.objective.mean - never.objective.mean)
    assert never.parameters.mean == never.results[0].host_params
    with pytest.raises(InputError, match="unknown controller 'nobody'; choose one of: never, random"):
        esper.evaluate("nobody", TINY, [0])


def test_a_folder_with_a_run_is_not_overwritten(straight: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a run already; go on with --resume"):
        esper.train(tiny_config(), straight)
    with pytest.raises(InputError, match="holds no run to resume"):
        RunFolder(tmp_path).stored_config()
    with pytest.raises(InputError, match="holds no checkpoint"):
        load_controller(tmp_path)


def test_a_failed_checkpoint_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    trainer = Trainer(tiny_config())
    packed = pack_checkpoint(trainer.agent)
    with folder.held():
        folder.create(tiny_config())
        folder.save(1, packed, keep=3)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(EsperError, match=r"No space left on device.*earlier ones are untouched"):
            folder.save(2, packed, keep=1)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["round-000001.pt"]
    load_controller(folder.checkpoints / "round-000001.pt")


def test_a_cut_checkpoint_gives_one_clear_error(straight: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pt"
    cut.write_bytes((straight / "checkpoints" / "best.pt").read_bytes()[:1000])
    with pytest.raises(InputError, match="is cut short or is no checkpoint"):
        load_controller(cut)


def test_reward_and_learner_must_share_their_discount() -> None:
    with pytest.raises(ValueError, match=r"0\.9"):
        tiny_config(gamma=0.9)


def test_mixed_tasks_need_the_same_number_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "esper.tasks.registry._REGISTRY",
        {TINY: find_task(TINY), "two": tiny_task(host_settings={"inputs": 6, "widths": (4, 4), "classes": 3})},
    )
    with pytest.raises(InputError, match="same number of slots"):
        Trainer(tiny_config(tasks=(TINY, "two")))


def test_entropies_of_all_heads_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="esper.simic.training.trainer"):
        Trainer(tiny_config(rounds=1)).run()
    for name in HEAD_NAMES:
        assert sum(f"entropy of {name}" in message for message in caplog.messages) == 1


def test_a_host_is_paid_relative_to_its_twin_left_alone() -> None:
    """On average what is summed is the gain over the twins; paid wholly by its own, a host that waits gains nothing."""
    trainer = Trainer(tiny_config(op_bias=(10.0, 0.0, 0.0, 0.0), price=0.03, twin_weight=1.0))
    outcome = collect_round(trainer.agent, trainer.world, 0)
    assert outcome.means()["ops"]["WAIT"] == pytest.approx(8.0)
    assert not outcome.returns.any()
    reward = RewardConfig(gamma=1.0, scale=10.0)  # without the cost of holding, which is no part of the objective
    busy = Trainer(tiny_config(op_bias=(-5.0, 0.0, 0.0, 0.0), price=0.03, episode_length=12, reward=reward))
    outcome = collect_round(busy.agent, busy.world, 0)
    scale = busy.config.reward.scale
    assert float(outcome.returns.mean()) / scale == pytest.approx(outcome.means()["gain"][TINY], abs=1e-5)
    assert outcome.means()["gain"][TINY] != 0.0


def test_twins_are_trained_once_for_the_same_seeds() -> None:
    trainer = Trainer(tiny_config(distinct_rounds=2))
    steps: list[None] = []
    played = []
    for round_index in range(4):
        before = len(steps)
        outcome = collect_round(trainer.agent, trainer.world, round_index, lambda: steps.append(None))
        played.append((len(steps) - before, outcome.means()["objective"][TINY] - outcome.means()["gain"][TINY]))
    assert [count for count, _ in played] == [16, 16, 8, 8]
    assert played[0][1] == pytest.approx(played[2][1])
    assert played[1][1] == pytest.approx(played[3][1])
    assert played[0][1] != pytest.approx(played[1][1])


def test_without_twins_the_rewards_are_those_of_the_host() -> None:
    trainer = Trainer(tiny_config(twins=False, price=0.03))
    outcome = collect_round(trainer.agent, trainer.world, 0)
    assert outcome.means()["gain"][TINY] != outcome.means()["gain"][TINY]  # unknown
    assert float(outcome.returns.mean()) > 0


def test_hosts_in_workers_give_the_same_run(tmp_path: Path) -> None:
    shared = {"tasks": ("digits",), "envs": 2, "rounds": 1, "episode_length": 4, "validation_episodes": 1}
    for workers in (1, 2):
        esper.train(tiny_config(workers=workers, **shared), tmp_path / str(workers))
    assert_same_run(tmp_path / "1", tmp_path / "2")


def test_the_executor_is_settled_once_for_the_whole_run(tmp_path: Path) -> None:
    esper.train(tiny_config(executor="auto", rounds=1), tmp_path / "run")
    assert RunFolder(tmp_path / "run").stored_config().world.executor in ("loop", "stacked")
