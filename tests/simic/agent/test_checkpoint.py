"""An agent that is saved and loaded goes on as if nothing had happened; anything else is refused in a sentence."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.kasmina import Family
from esper.leyline import DamagedFileError, InputError, OtherCatalogueError
from esper.nissa.state_files import pack_state
from esper.simic.agent import (
    CHECKPOINT_VERSION,
    PPOAgent,
    checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from esper.simic.agent.checkpoint import agent_state
from esper.simic.control import RewardNormalizer
from esper_lab.player import Player
from tests.catalogues import one_more_kind
from tests.fuzzing import Change, changed, little_memory
from tests.simic.builders import BANDIT_SPEC, RandomWorld, agent_with_round, make_agent, normalizer_of, parameters_of


def learn(agent: PPOAgent, rounds: int) -> None:
    world = RandomWorld(agent.num_envs)
    for _ in range(rounds):
        Player(agent, world).fill_buffer()
        agent.update()


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.01, "head_lr_scale": {"op": 2.0}, "num_minibatches": 2}, {"value_memory": 3}],
)
def test_learning_goes_on_bit_for_bit_after_a_reload(tmp_path: Path, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    agent = make_agent(**options)
    learn(agent, 2)
    save_checkpoint(tmp_path / "agent.pt", agent)
    loaded, extra = load_checkpoint(tmp_path / "agent.pt", device="cpu")
    assert extra == {}
    assert (loaded.total_steps, loaded.updates) == (agent.total_steps, agent.updates)
    for each in (agent, loaded):
        torch.manual_seed(1)
        learn(each, 2)
    assert torch.equal(parameters_of(agent), parameters_of(loaded))
    assert torch.equal(agent.policy.return_scale.scale, loaded.policy.return_scale.scale)


def test_normaliser_states_travel_with_the_agent(tmp_path: Path) -> None:
    agent, rewards = make_agent(normalize=True), RewardNormalizer()
    assert agent.policy.normalizer is not None
    normalizer_of(agent).update(torch.randn(20, 6))
    rewards.update_and_normalize(3.0)
    save_checkpoint(tmp_path / "agent.pt", agent, {"reward_normalizer": rewards.state_dict()})
    loaded, extra = load_checkpoint(tmp_path / "agent.pt", device="cpu")
    raw = torch.randn(3, 6)
    assert torch.equal(loaded.policy.normalized(raw), agent.policy.normalized(raw))
    assert not torch.equal(loaded.policy.normalized(raw), raw)
    again_rewards = RewardNormalizer()
    again_rewards.load_state_dict(extra["reward_normalizer"])
    assert again_rewards.state_dict() == rewards.state_dict()


def test_the_file_holds_plain_data_under_documented_keys(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "agent.pt", make_agent())
    state = torch.load(tmp_path / "agent.pt", weights_only=True)
    assert state["version"] == CHECKPOINT_VERSION == 5
    assert state["state_dim"] == 6
    assert state["slot_config"] == {"slot_ids": ["r0c0", "r0c1", "r0c2"]}
    assert {"network_state_dict", "optimizer_state_dict", "config", "action_spec", "extra"} <= set(state)


def test_a_compiled_agent_saves_the_same_names_as_a_plain_one(tmp_path: Path) -> None:
    plain = make_agent()
    wrapped = make_agent(network=torch.compile(plain._base_network, backend="eager"))
    assert wrapped._base_network is plain._base_network
    save_checkpoint(tmp_path / "wrapped.pt", wrapped)
    loaded, _ = load_checkpoint(tmp_path / "wrapped.pt", device="cpu")
    obs, hidden = torch.randn(4, 6), plain.initial_hidden()
    torch.testing.assert_close(loaded.policy.value(obs, hidden), plain.policy.value(obs, hidden))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"format": "esper-agent", "version": 99}, "version 99"),
        ({"format": "esper-agent", "version": 1}, "does not say with which blueprints it was made; train a controller"),
        ({"weights": torch.zeros(3)}, "not a checkpoint of an Esper agent"),
    ],
)
def test_foreign_and_newer_files_are_refused(tmp_path: Path, content: dict[str, object], reason: str) -> None:
    (tmp_path / "other.pt").write_bytes(pack_state(content))
    with pytest.raises(InputError, match=reason):
        load_checkpoint(tmp_path / "other.pt")


def test_truncated_and_absent_files_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "agent.pt", make_agent())
    whole = (tmp_path / "agent.pt").read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 10):
        (tmp_path / "cut.pt").write_bytes(whole[:size])
        with pytest.raises(InputError, match="is cut short or is no checkpoint"):
            load_checkpoint(tmp_path / "cut.pt")
    with pytest.raises(InputError, match="no checkpoint"):
        load_checkpoint(tmp_path / "absent.pt")


WIDTH = ("config", "lstm_hidden_dim")


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (WIDTH, lambda _: 10**12, "config.lstm_hidden_dim must be a whole number from 1 to"),
        (WIDTH, lambda old: 2 * old, "network_state_dict.lstm.weight_ih_l0 must have shape [128, 128]"),
        (("round", "num_envs"), lambda _: 2**29, "a round of 536870912 environments and 12 steps is too large"),
        (("config", "lr"), lambda _: "fast", "learner.lr must be float; got 'fast'"),
        (("config", "gamma"), lambda _: -1.0, "learner.gamma must be in (0, 1]; got -1.0"),
        (("config", "grad_clip_mode"), lambda _: "none", "unknown learner.grad_clip_mode 'none'"),
        (("config", "head_lr_scale"), lambda _: {"tail": 2.0}, "unknown head 'tail'"),
        (("config", "num_minibatches"), lambda _: 9, "config.num_minibatches must be a whole number from 1 to 4"),
        (("action_spec", "heads", 3, "size"), lambda _: 10**12, "every head needs 1 to 65536 actions"),
        (("action_spec", "heads", 3, "name"), lambda _: "o.p", "the name of a head must be a plain word"),
        (("slot_config", "slot_ids"), lambda old: old[:2], "action_spec does not fit the 2 slots of slot_config"),
        (("network_state_dict", "op_head.0.bias"), lambda old: old * torch.nan, "op_head.0.bias holds NaN or infinity"),
        (("network_options", "feature_layers"), lambda _: 2, "network_state_dict lacks"),
        (("optimizer_state_dict", "state", 3), lambda _: {}, "optimizer_state_dict.state.3 lacks step, exp_avg"),
        (("optimizer_state_dict", "param_groups"), lambda _: [], "param_groups must be a list of 1"),
        (("return_scale", "var"), lambda old: -old, "return_scale.var must be 0 or more"),
        (("value_memory", 0, "lengths"), lambda old: old + 99, "value_memory.0.lengths must be from 1 to"),
        (("catalogue",), lambda _: {}, "catalogue must list blueprints if one of the heads chooses among them"),
        (("extra",), lambda _: [], "extra must be a dictionary"),
    ],
)
def test_what_no_agent_can_be_made_of_is_named_before_one_is_built(
    tmp_path: Path, place: tuple[Any, ...], change: Change, message: str
) -> None:
    agent = agent_with_round(value_memory=1)
    agent.update()
    state: dict[str, Any] = agent_state(agent) | {"extra": {}}
    path = tmp_path / "agent.pt"
    path.write_bytes(pack_state(changed(state, place, change)))
    with little_memory(1), pytest.raises(DamagedFileError) as error:
        load_checkpoint(path, device="cpu")
    assert message in str(error.value)
    assert str(error.value).startswith(f"the checkpoint {path} cannot be used: ")
    assert "take another one" in str(error.value)


def test_kernels_and_device_are_the_agents_own_and_not_those_of_the_file(tmp_path: Path) -> None:
    agent = agent_with_round()
    agent.update()
    state = agent_state(agent) | {"extra": {}}
    group: dict[str, Any] = {"fused": True, "foreach": None, "lr": 0.125}  # as on CUDA
    state = changed(state, ("optimizer_state_dict", "param_groups", 0), lambda old: old | group)
    (tmp_path / "agent.pt").write_bytes(pack_state(state))
    loaded, _ = load_checkpoint(tmp_path / "agent.pt", device="cpu")
    (found,) = loaded.optimizer.param_groups
    assert (found["fused"], found["foreach"], found["lr"]) == (None, True, 0.125)


def test_a_failed_save_leaves_the_old_checkpoint_and_no_litter(tmp_path: Path) -> None:
    agent = make_agent()
    save_checkpoint(tmp_path / "agent.pt", agent)
    before = (tmp_path / "agent.pt").read_bytes()
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(tmp_path / "agent.pt", agent, {"unsavable": lambda: None})
    assert (tmp_path / "agent.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["agent.pt"]


def test_the_loaded_weights_are_released_before_the_agent_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "agent.pt", agent_with_round())
    load, references = torch.load, []

    def remember(*arguments: Any, **options: Any) -> Any:
        state = load(*arguments, **options)
        references.append(weakref.ref(state["network_state_dict"]["lstm.weight_hh_l0"]))
        return state

    def build(*arguments: Any, **options: Any) -> PPOAgent:
        gc.collect()
        assert references[0]() is None
        return PPOAgent(*arguments, **options)

    monkeypatch.setattr(torch, "load", remember)
    monkeypatch.setattr(checkpoint, "PPOAgent", build)
    load_checkpoint(tmp_path / "agent.pt", device="cpu")


def test_an_agent_of_another_catalogue_is_refused_and_one_without_blueprints_is_not(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "agent.pt", make_agent())
    save_checkpoint(tmp_path / "bandit.pt", make_agent(action_spec=BANDIT_SPEC))
    with one_more_kind(Family.CONV1D):
        with pytest.raises(OtherCatalogueError, match=r"agent.pt was made with another .*conv1d \d+ was nothing"):
            load_checkpoint(tmp_path / "agent.pt", device="cpu")
        load_checkpoint(tmp_path / "bandit.pt", device="cpu")
