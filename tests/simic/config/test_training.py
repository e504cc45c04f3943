"""`TrainingConfig`: every default valid, every bad value named, JSON in and out, and every option does something."""

import inspect
import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.leyline import InputError
from esper.simic.agent import PPOAgent
from esper.simic.config import LearnerConfig, Phase, TrainingConfig, WorldConfig
from esper.simic.config.reward import RewardConfig, RewardFamily, ShapingConfig
from esper.simic.training import Trainer, settled
from esper.simic.training.setup import episode_settings, make_agent, require_known
from esper.tolaria import ComputeSettings, EpisodeSettings
from tests.simic.builders import config_of
from tests.simic.training.runs import tiny_config


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("learner.gamma", [1.0], [1.5, 0.0, -0.1, math.nan, math.inf]),
        ("learner.clip_ratio", [0.2, 1.0], [0.0, -0.1, math.nan]),
        ("learner.lr", [1e-5, 3.0], [0.0, -1e-4, math.nan, math.inf]),
        ("learner.entropy_coef", [0.0, 0.5], [-0.1, math.nan]),
        ("world.envs", [1, 100], [0, -3]),
        ("rounds", [0, 1], [-1]),
        ("learner.epochs", [1, 4], [0]),
        ("learner.weight_decay", [0.0], [-1.0]),
        ("learner.gae_lambda", [0.0, 1.0], [-0.1, 1.1]),
        ("learner.target_kl", [None, 0.1], [0.0, -1.0]),
        ("world.price", [0.0, (0.01, 0.02)], [-1.0, math.nan]),
    ],
)
def test_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    group, _, last = name.rpartition(".")
    for value in good:
        config = config_of(**{last: value})
        assert getattr(getattr(config, group) if group else config, last) == value
    for value in bad:
        with pytest.raises(ValueError, match=rf"^{name} must be in [\[(].*[\])]; got "):
            config_of(**{last: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tasks", (), "at least one task"),
        ("tasks", ("digits", "digits"), "twice"),
        ("executor", "warp", "unknown world.executor 'warp'; choose one of: auto, loop, stacked"),
        ("telemetry", "loud", "choose one of: off, minimal, normal, debug"),
        ("lr_schedule", "cosine", "choose one of: constant, linear"),
        ("precision", "float8", "unknown world.precision 'float8'; choose one of: float32, bfloat16, float16"),
        ("compile_hosts", 1, "world.compile_hosts must be bool"),
        ("envs", 2.5, "world.envs must be int"),
        ("envs", 2**64, "must fit into 64 bits"),
        ("lr", "fast", "learner.lr must be float"),
        ("adaptive_entropy_floor", 1, "adaptive_entropy_floor must be bool"),
        ("num_minibatches", 100, "at most the 64 episodes"),
        ("price", (0.1, 0.01), "price range"),
        ("gamma", 0.9, "gamma"),
        ("horizon_is_terminal", False, "horizon_is_terminal is True for the reward and False for PPO"),
        ("value_loss_type", "mae", "unknown learner.value_loss_type 'mae'; choose one of: mse, huber"),
        ("grad_clip_mode", "none", "unknown learner.grad_clip_mode 'none'; choose one of: per_head, global"),
        ("hidden_storage", "last", "unknown learner.hidden_storage 'last'; choose one of: all, first"),
        ("clip_value", 0.2, "clip_value must be bool; got 0.2"),
        ("op_bias", (0.0, 1.0), "op_bias must be tuple"),
        ("head_lr_scale", {"size": 2.0}, "unknown head in learner.head_lr_scale 'size'; choose one of: slot, blue"),
        ("head_lr_scale", {"op": 0.0}, r"head_lr_scale\.op must be in \(0, inf\); got 0"),
        ("head_lr_scale", 2.0, r"head_lr_scale must be Mapping\[str, float\]; got 2.0"),
        ("entropy_coef_per_head", {"op": "much"}, r"entropy_coef_per_head must be Mapping\[str, float\]"),
        ("entropy_coef_per_head", {"op": math.nan}, r"entropy_coef_per_head\.op must be in \[0, inf\); got nan"),
        ("curriculum", (Phase(0.5), Phase(0.2)), r"world.curriculum\[1\].until must be in \(0.5, 1\)"),
        ("curriculum", (Phase(0.5, tasks=("digits",)),), "must name 2 tasks, as many as the run"),
    ],
)
def test_bad_values_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        config_of(None, **{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("mnist3d",)}, "unknown task 'mnist3d'"),
        ({"curriculum": (Phase(0.5, tasks=("mnist3d", "digits")),)}, "unknown task 'mnist3d'"),
        ({"teacher": "nobody"}, "unknown lessons.teacher 'nobody'; choose one of: never"),
        ({"host_devices": ("tpu",)}, "'cpu', 'cuda' or 'cuda:<number>'; got 'tpu'"),
        ({"host_devices": ()}, "at least one device"),
        ({"executor": "stacked", "precision": "bfloat16"}, "'stacked' computes in float32"),
    ],
)
def test_names_that_only_the_package_knows_are_checked_before_a_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_known(config_of(**changes))


@pytest.mark.parametrize(("envs", "minibatches"), [(1, 2), (3, 6), (4, 8), (32, 8)])
def test_there_are_as_many_minibatches_as_fit(envs: int, minibatches: int) -> None:
    assert make_agent(config_of(envs=envs, device="cpu"), 3).num_minibatches == minibatches
    assert make_agent(config_of(envs=envs, device="cpu", num_minibatches=2), 3).num_minibatches == 2


def test_configs_do_not_change_and_have_no_other_fields() -> None:
    with pytest.raises(AttributeError):
        TrainingConfig().rounds = 1  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        TrainingConfig().learning_rate = 1.0  # type: ignore[attr-defined]


def test_json_round_trip(tmp_path: Path) -> None:
    reward = RewardConfig(family=RewardFamily.SPARSE, gamma=0.9, shaping=ShapingConfig(weight=0.5))
    phases = (Phase(0.5, price=0.1),)
    config = config_of(
        tasks=("digits",), gamma=0.9, price=(0.02, 0.05), reward=reward, target_kl=None, curriculum=phases
    )
    config.save(tmp_path / "config.json")
    assert TrainingConfig.load(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"learning_rate": 1}', "unknown config field 'learning_rate'"),
        ('{"learner": {"rate": 1}}', "unknown config field 'learner.rate'; choose one of: learner.device"),
        ('{"reward": {"sacle": 2}}', "unknown config field 'reward.sacle'"),
        ('{"reward": {"family": "bribes"}}', "unknown reward.family 'bribes'; choose one of: objective"),
        ('{"learner": {"lr": -1}}', "learner.lr must be in"),
        ('{"envs": 4, "lr": 0.1}', "options had no groups; write them in groups"),
        ("[1]", "must hold a JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_bad_files_give_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        TrainingConfig.load(path)
    with pytest.raises(InputError, match="No such file"):
        TrainingConfig.load(tmp_path / "absent.json")


def test_the_config_reaches_the_agent_and_the_hosts() -> None:
    config = config_of(weight_decay=0.3, stable_epochs=7, germinate_when_stable=True, device="cpu", budget=9)
    agent = make_agent(config, 3)
    assert agent.config == config.learner
    settings = episode_settings(config.world)
    assert (settings.tracker.stable_epochs, settings.germinate_when_stable, settings.budget) == (7, True, 9)


def test_a_world_of_defaults_has_the_defaults_of_its_episodes() -> None:
    settings, world = EpisodeSettings(), WorldConfig(price=0.03)
    assert episode_settings(world) == settings


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_entropy_weight_decays_over_a_share_of_the_run(decay: float) -> None:
    config = config_of(entropy_decay=decay, rounds=10, envs=2, episode_length=5, device="cpu")
    agent: PPOAgent = make_agent(config, 3)
    agent.total_steps = 50  # of 10 rounds of 4 episodes of 5 steps
    assert agent.get_entropy_coef() == pytest.approx(0.002 if decay else 0.004)


@pytest.mark.parametrize(("schedule", "share"), [("constant", 1.0), ("linear", 0.55)])
def test_the_learning_rate_follows_its_schedule(schedule: str, share: float) -> None:
    """The second of two rounds begins halfway from the whole rate to a tenth of it."""
    sizes: dict[str, Any] = {"rounds": 2, "envs": 2, "episode_length": 1, "validation_episodes": 1}
    trainer = Trainer(tiny_config(lr=0.01, lr_schedule=schedule, twins=False, **sizes))
    trainer.run()
    assert trainer.agent.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * share)


@pytest.mark.parametrize("bias", [(0.0, 0.0, 0.0, 0.0), (2.0, -1.0, 0.5, -3.0)])
def test_a_new_policy_prefers_ops_by_their_bias(bias: tuple[float, ...]) -> None:
    agent = make_agent(config_of(op_bias=bias, device="cpu"), 3)
    obs = torch.randn(64, agent.state_dim)
    logits = agent.policy.network(obs).logits[:, 0, agent.spec.decider_index, : len(bias)]
    torch.testing.assert_close(logits.mean(0), torch.tensor(bias), atol=0.05, rtol=0)


def test_the_config_decides_how_hosts_compute() -> None:
    config = config_of(precision="float16", compile_hosts=True, host_devices=("cpu", "cuda:1"))
    assert episode_settings(config.world).compute == ComputeSettings("float16", True, ("cpu", "cuda:1"))
    assert settled(config_of(precision="bfloat16", tasks=("digits",))).world.executor == "loop"


def test_anomaly_limits_have_defaults_and_can_be_set() -> None:
    limits = TrainingConfig().to_anomaly_kwargs()
    assert (limits["max_ratio_threshold"], limits["min_ratio_threshold"]) == (5.0, 0.1)
    assert config_of(min_explained_variance=0.3).to_anomaly_kwargs()["min_explained_variance"] == 0.3


def test_every_option_of_every_group_has_a_sentence() -> None:
    for group in (LearnerConfig, WorldConfig):
        source = inspect.getsource(group)
        for spec in fields(group):
            after = source.partition(f"    {spec.name}: ")[2].partition("\n")[2].lstrip()
            assert after.startswith('"""'), spec.name


def test_configs_need_no_torch() -> None:
    code = "import sys, esper.simic.config as c; c.preset('pair'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
