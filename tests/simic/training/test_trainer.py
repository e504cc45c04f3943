"""The trainer: parts that fit together before anything runs, options that reach the learner, runs that repeat."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.kasmina import blueprints_of, num_blueprints
from esper.leyline import HEAD_NAMES, InputError, Op
from esper.simic.config.reward import RewardConfig
from esper.simic.training import InterruptedRunError, RunFolder, Trainer, load_controller
from esper.tamiyo import Random, run_episode
from esper.tolaria import Population
from tests.catalogues import one_more_kind
from tests.simic.training.runs import assert_same_run, events, final_weights, tiny_config
from tests.worlds import tiny_task

MISMATCHES = [("gamma", 0.9, r"gamma 1\.0 and PPO gamma 0\.9"), ("horizon_is_terminal", False, "is True .* and False")]


@pytest.mark.parametrize(("name", "value", "message"), MISMATCHES)
def test_a_config_compares_reward_and_learner(name: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny_config(**{name: value})
    agreed = tiny_config(**{name: value}, reward=replace(tiny_config().reward, **{name: value}))
    assert getattr(agreed.learner, name) == value


def test_a_resumed_agent_is_compared_with_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    esper.train(tiny_config(rounds=1, episode_length=1), tmp_path)
    other = tiny_config(gamma=0.9, reward=RewardConfig(gamma=0.9), episode_length=1)
    monkeypatch.setattr("esper.simic.training.trainer.GrowthWorld", None)
    with pytest.raises(InputError, match=r"config\.gamma is 1\.0, but the config of the run asks for 0\.9"):
        Trainer(other, RunFolder(tmp_path), resume=True)


def test_heads_keep_their_factors_on_the_learning_rate_as_it_falls() -> None:
    trainer = Trainer(tiny_config(head_lr_scale={"op": 3.0, "blend": 0.5}, lr=0.01))
    for trainer.state.round, factor in ((0, 1.0), (2, 0.55), (4, 0.1)):
        trainer._set_learning_rate()
        rates = {group["name"]: group["lr"] for group in trainer.agent.optimizer.param_groups}
        shared = 0.01 * factor
        expected = {"actor": shared, "shared": shared, "critic": shared, "actor_op": 3 * shared}
        assert rates == pytest.approx(expected | {"actor_blend": 0.5 * shared})


def test_a_run_with_every_option_of_the_learner_goes_through_and_resumes(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "head_lr_scale": {"op": 2.0},
        "entropy_coef_per_head": {"blueprint": 3.0},
        "value_loss_type": "huber",
        "huber_delta": 0.5,
        "clip_value": False,
        "grad_clip_mode": "global",
        "hidden_storage": "first",
    }
    config = tiny_config(rounds=1, episode_length=2, **options)
    esper.train(config, tmp_path)
    assert RunFolder(tmp_path).stored_config() == config
    trainer = Trainer(config, RunFolder(tmp_path), resume=True)
    assert {name: getattr(trainer.agent.config, name) for name in options} == options
    trainer.world.close()


@pytest.mark.parametrize(("epochs", "opened"), [(2, [3, 4, 5, 6, 7]), (9, [])])
def test_seeds_wait_for_hosts_that_are_stable_if_the_config_says_so(epochs: int, opened: list[int]) -> None:
    """Every epoch counts as stable here, but for the first one, which has none to be compared with."""
    config = tiny_config(germinate_when_stable=True, stable_improvement=10.0, stable_epochs=epochs, twins=False)
    world = Trainer(config).world
    _, masks = world.reset(0)
    legal = []
    for _ in range(8):
        legal.append(bool(masks["op"][:, Op.GERMINATE].all()))
        masks = world.step(torch.zeros(4, 4, dtype=torch.int64)).masks
    assert [step for step, possible in enumerate(legal) if possible] == opened


def test_a_controller_learns_and_decides_with_a_kind_more(tmp_path: Path) -> None:
    with one_more_kind() as kind:
        esper.train(
            tiny_config(rounds=1, episode_length=4, envs=2, teacher="random", lessons=1, executor="loop"), tmp_path
        )
        controller = load_controller(tmp_path)
        assert controller.policy.spec.head("blueprint").size == num_blueprints() >= kind.id
        run_episode(tiny_task(episode_length=2), controller, seed=0)
        dice, drawn = Random(), set()
        population = Population(tiny_task(), 8, executor="loop")
        population.start(range(8))
        dice.reset(8, 0)
        for _ in range(20):
            actions = dice.decide(population.situation)
            assert population.situation.masks.allow(actions).all()
            drawn |= set(actions[actions[:, 3] == Op.GERMINATE, 1].tolist())
        assert drawn == set(range(len(blueprints_of(kind.family)))) - {4}  # attention needs a sequence


def test_the_same_seed_gives_the_same_run(straight: Path, tmp_path: Path) -> None:
    torch.randn(3)
    esper.train(tiny_config(), tmp_path / "again")
    assert_same_run(straight, tmp_path / "again")
    esper.train(tiny_config(seed=1), tmp_path / "other")
    assert not torch.equal(final_weights(straight)[0], final_weights(tmp_path / "other")[0])


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_run_by_any_executor_resumes_bit_for_bit(tmp_path: Path, executor: str) -> None:
    config = tiny_config(rounds=1, executor=executor)
    esper.train(config, tmp_path / "straight")
    calls = iter(range(10_000))
    with pytest.raises(InterruptedRunError):
        esper.train(config, tmp_path / "run", should_stop=lambda: next(calls) >= 29)  # within the round
    esper.train(config, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "straight", tmp_path / "run")


@pytest.mark.parametrize("steps", [1, 13, 40, 50, 55, 70])
def test_a_run_stopped_anywhere_resumes_bit_for_bit(straight: Path, tmp_path: Path, steps: int) -> None:
    calls = iter(range(10_000))
    with pytest.raises(InterruptedRunError):
        esper.train(tiny_config(), tmp_path / "run", should_stop=lambda: next(calls) >= steps)
    torch.randn(7)
    esper.train(RunFolder(tmp_path / "run").stored_config(), tmp_path / "run", resume=True)
    assert_same_run(straight, tmp_path / "run")


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


def test_entropies_of_all_heads_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="esper.simic.training.trainer"):
        Trainer(tiny_config(rounds=1)).run()
    for name in HEAD_NAMES:
        assert sum(f"entropy of {name}" in message for message in caplog.messages) == 1
