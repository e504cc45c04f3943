"""`TrainingConfig`: every default valid, every bad value named, JSON in and out."""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from esper.leyline import InputError
from esper.simic.agent import PPOAgent
from esper.simic.config import RANGES, _validate_range
from esper.simic.rewards import RewardConfig, RewardFamily, ShapingConfig
from esper.simic.training import TrainingConfig, settled
from esper.tolaria import ComputeSettings, TrackerSettings


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("gamma", [1.0], [1.5, 0.0, -0.1, math.nan, math.inf]),
        ("clip_ratio", [0.2, 1.0], [0.0, -0.1, math.nan]),
        ("lr", [1e-5, 3.0], [0.0, -1e-4, math.nan, math.inf]),
        ("entropy_coef", [0.0, 0.5], [-0.1, math.nan]),
        ("envs", [1, 100], [0, -3]),
        ("rounds", [1], [0]),
        ("epochs", [1, 4], [0, 5]),
        ("weight_decay", [0.0], [-1.0]),
        ("gae_lambda", [0.0, 1.0], [-0.1, 1.1]),
        ("target_kl", [None, 0.1], [0.0, -1.0]),
    ],
)
def test_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        settings: dict[str, Any] = {"num_minibatches": 1, name: value}
        assert getattr(TrainingConfig(**settings), name) == value
    for value in bad:
        with pytest.raises(ValueError, match=rf"^{name} must be in [\[(].*[\])]; got "):
            TrainingConfig(**{name: value})


@pytest.mark.parametrize(
    ("inclusive", "text"),
    [((True, True), "[0, 1]"), ((True, False), "[0, 1)"), ((False, True), "(0, 1]"), ((False, False), "(0, 1)")],
)
def test_the_interval_is_shown_with_its_ends(inclusive: tuple[bool, bool], text: str) -> None:
    with pytest.raises(InputError) as error:
        _validate_range(2.0, "x", 0, 1, low_inclusive=inclusive[0], high_inclusive=inclusive[1])
    assert str(error.value) == f"x must be in {text}; got 2.0"


def test_every_number_has_a_range() -> None:
    numbers = {spec.name for spec in fields(TrainingConfig) if "int" in str(spec.type) or "float" in str(spec.type)}
    assert numbers - {name for name, *_ in RANGES} == {"price"}  # checked with the episode's settings


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tasks", ("mnist3d",), "unknown task 'mnist3d'"),
        ("tasks", (), "at least one task"),
        ("tasks", ("digits", "digits"), "twice"),
        ("executor", "warp", "unknown executor 'warp'; choose one of: auto, loop, stacked"),
        ("telemetry", "loud", "choose one of: off, minimal, normal, debug"),
        ("lr_schedule", "cosine", "choose one of: constant, linear"),
        ("precision", "float8", "unknown precision 'float8'; choose one of: float32, bfloat16, float16"),
        ("host_devices", ("tpu",), "'cpu', 'cuda' or 'cuda:<number>'; got 'tpu'"),
        ("host_devices", (), "at least one device"),
        ("compile_hosts", 1, "compile_hosts must be bool"),
        ("envs", 2.5, "envs must be int"),
        ("lr", "fast", "lr must be float"),
        ("adaptive_entropy_floor", 1, "adaptive_entropy_floor must be bool"),
        ("num_minibatches", 100, "at most the 64 episodes"),
        ("price", (0.1, 0.01), "price range"),
        ("gamma", 0.9, "gamma"),
        ("horizon_is_terminal", False, "horizon_is_terminal is True for the reward and False for PPO"),
        ("value_loss_type", "mae", "unknown value_loss_type 'mae'; choose one of: mse, huber"),
        ("grad_clip_mode", "none", "unknown grad_clip_mode 'none'; choose one of: per_head, global"),
        ("hidden_storage", "last", "unknown hidden_storage 'last'; choose one of: all, first"),
        ("clip_value", 0.2, "clip_value must be bool; got 0.2"),
        ("head_lr_scale", {"size": 2.0}, "unknown head in head_lr_scale 'size'; choose one of: slot, blueprint"),
        ("head_lr_scale", {"op": 0.0}, r"head_lr_scale\.op must be in \(0, inf\); got 0"),
        ("head_lr_scale", 2.0, r"head_lr_scale must be dict\[str, float\]; got 2.0"),
        ("entropy_coef_per_head", {"op": "much"}, r"entropy_coef_per_head must be dict\[str, float\]"),
        ("entropy_coef_per_head", {"op": math.nan}, r"entropy_coef_per_head\.op must be in \[0, inf\); got nan"),
    ],
)
def test_bad_values_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainingConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("envs", "minibatches"), [(1, 2), (3, 6), (4, 8), (32, 8)])
def test_there_are_as_many_minibatches_as_fit(envs: int, minibatches: int) -> None:
    assert TrainingConfig(envs=envs).to_ppo_kwargs()["num_minibatches"] == minibatches
    assert TrainingConfig(envs=envs, num_minibatches=2).to_ppo_kwargs()["num_minibatches"] == 2


def test_unknown_attributes_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        TrainingConfig().learning_rate = 1.0  # type: ignore[attr-defined]


def test_json_round_trip(tmp_path: Path) -> None:
    reward = RewardConfig(family=RewardFamily.SPARSE, gamma=0.9, shaping=ShapingConfig(weight=0.5))
    config = TrainingConfig(tasks=("digits",), gamma=0.9, price=(0.02, 0.05), reward=reward, target_kl=None)
    config.save(tmp_path / "config.json")
    assert TrainingConfig.load(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"learning_rate": 1}', "unknown config field 'learning_rate'"),
        ('{"reward": {"sacle": 2}}', "unknown config field 'reward.sacle'"),
        ('{"reward": {"family": "bribes"}}', "unknown reward.family 'bribes'; choose one of: objective"),
        ('{"lr": -1}', "lr must be in"),
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


def test_the_config_reaches_the_agent_and_the_tracker() -> None:
    config = TrainingConfig(weight_decay=0.3, adaptive_entropy_floor=True, stable_epochs=7, germinate_when_stable=True)
    agent = PPOAgent(state_dim=4, num_envs=8, **config.to_ppo_kwargs())
    assert (agent.weight_decay, agent.adaptive_entropy_floor) == (0.3, True)
    assert TrackerSettings(**config.to_tracker_kwargs()).stable_epochs == 7
    settings = config.episode_settings()
    assert (settings.tracker.stable_epochs, settings.germinate_when_stable) == (7, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head_lr_scale", {"op": 2.0}),
        ("entropy_coef_per_head", {"blueprint": 0.0, "op": 3}),
        ("value_loss_type", "huber"),
        ("huber_delta", 0.25),
        ("clip_value", False),
        ("grad_clip_mode", "global"),
        ("hidden_storage", "first"),
        ("compile_network", True),
    ],
)
def test_options_of_the_learner_reach_it_from_json_too(tmp_path: Path, name: str, value: Any) -> None:
    config = TrainingConfig(**{name: value})
    config.save(tmp_path / "config.json")
    assert TrainingConfig.load(tmp_path / "config.json") == config
    assert config.to_ppo_kwargs()[name] == value
    assert TrainingConfig().to_ppo_kwargs()[name] != value


def test_all_but_a_few_options_of_the_learner_can_be_reached() -> None:
    """What is decided by the tasks or the run is not for the config to say."""
    reachable = set(TrainingConfig().to_ppo_kwargs())
    options = {spec.name for spec in fields(PPOAgent) if spec.init}
    others = {"state_dim", "slot_config", "num_envs", "max_steps", "decay_steps", "telemetry_config"}
    assert options - reachable - others == {"action_spec", "network", "lstm_layers", "scale_values"}


def test_every_option_of_the_learner_that_the_config_has_reaches_the_agent() -> None:
    config = TrainingConfig(num_minibatches=4)  # not given, it follows from the number of episodes
    given = config.to_ppo_kwargs()
    shared = {spec.name for spec in fields(TrainingConfig)} & {spec.name for spec in fields(PPOAgent)}
    assert shared - given.keys() == set()
    assert {name: given[name] for name in shared} == {name: getattr(config, name) for name in shared}


def test_the_config_decides_how_hosts_compute() -> None:
    config = TrainingConfig(precision="float16", compile_hosts=True, host_devices=("cpu", "cuda:1"))
    assert config.episode_settings().compute == ComputeSettings("float16", True, ("cpu", "cuda:1"))
    with pytest.raises(InputError, match="'stacked' computes in float32"):
        TrainingConfig(executor="stacked", precision="bfloat16")
    assert settled(TrainingConfig(precision="bfloat16", tasks=("digits",))).executor == "loop"


def test_anomaly_limits_have_defaults_and_can_be_set() -> None:
    limits = TrainingConfig().to_anomaly_kwargs()
    assert (limits["max_ratio_threshold"], limits["min_ratio_threshold"]) == (5.0, 0.1)
    assert TrainingConfig(anomaly_min_explained_variance=0.3).to_anomaly_kwargs()["min_explained_variance"] == 0.3
