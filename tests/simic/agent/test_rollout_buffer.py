"""The buffer: what it keeps, how advantages follow from it, and how rows become sequences."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.leyline import InputError, SlotConfig
from esper.simic.agent import PolicyStep, TamiyoRolloutBuffer
from esper.simic.agent.rollout_buffer import minibatches
from tests.simic.builders import ESPER_SPEC

OBS_DIM, HIDDEN = 3, 4


def make_buffer(**overrides: object) -> TamiyoRolloutBuffer:
    options: dict[str, object] = {"state_dim": OBS_DIM, "num_envs": 2, "max_steps": 6, "lstm_hidden_dim": HIDDEN}
    return TamiyoRolloutBuffer(**(options | overrides))  # type: ignore[arg-type]


def add_random_step(buffer: TamiyoRolloutBuffer, **overrides: Tensor | None) -> None:
    envs, heads = buffer.num_envs, len(buffer.spec.heads)
    state = torch.randn(2, buffer.lstm_layers, envs, HIDDEN)
    decision = PolicyStep(
        torch.zeros(envs, heads, dtype=torch.long), -torch.rand(envs, heads), torch.randn(envs), (state[0], state[1])
    )
    values = overrides.pop("values", None)
    step = {
        "rewards": torch.randn(envs),
        "dones": torch.zeros(envs, dtype=torch.bool),
        "truncated": torch.zeros(envs, dtype=torch.bool),
        "bootstrap_values": torch.randn(envs),
    }
    buffer.add_step(
        overrides.pop("obs", None) if "obs" in overrides else torch.randn(envs, OBS_DIM),  # type: ignore[arg-type]
        buffer.spec.all_legal((envs,)),
        (state[0], state[1]),
        decision if values is None else decision._replace(values=values),
        **(step | overrides),  # type: ignore[arg-type]
    )


def filled(
    rewards: list[float], values: list[float], dones: list[int], truncated: list[int], bootstrap: list[float] | None
) -> TamiyoRolloutBuffer:
    """One environment with the given steps."""
    buffer = make_buffer(num_envs=1, max_steps=len(rewards))
    for step in range(len(rewards)):
        add_random_step(
            buffer,
            rewards=torch.tensor([rewards[step]]),
            values=torch.tensor([values[step]]),
            dones=torch.tensor([bool(dones[step])]),
            truncated=torch.tensor([bool(truncated[step])]),
            bootstrap_values=None if bootstrap is None else torch.tensor([bootstrap[step]]),
        )
    return buffer


def plain_gae(buffer: TamiyoRolloutBuffer, gamma: float, gae_lambda: float) -> npt.NDArray[np.float64]:
    """One environment and one step at a time, by the definition."""
    result = np.zeros((buffer.num_envs, buffer.max_steps))
    for env in range(buffer.num_envs):
        length = int(buffer.step_counts[env])
        carried = 0.0
        for step in reversed(range(length)):
            done, truncated = bool(buffer.dones[env, step]), bool(buffer.truncated[env, step])
            if done and not truncated:
                following = 0.0
            elif done or step == length - 1:
                following = float(buffer.bootstrap_values[env, step])
            else:
                following = float(buffer.values[env, step + 1])
            if done or step == length - 1:
                carried = 0.0
            delta = float(buffer.rewards[env, step]) + gamma * following - float(buffer.values[env, step])
            carried = delta + gamma * gae_lambda * carried
            result[env, step] = carried
    return result


def test_two_buffers_share_the_default_slot_config_and_have_no_loose_attributes() -> None:
    one, other = make_buffer(), make_buffer()
    assert one.slot_config is other.slot_config is SlotConfig.default()
    with pytest.raises(AttributeError):
        one.scratch = 1  # type: ignore[attr-defined]


def test_slot_masks_follow_the_slot_config() -> None:
    assert make_buffer(slot_config=SlotConfig.of_size(5)).masks["slot"].shape == (2, 6, 4, 5)


def test_memory_is_allocated_once() -> None:
    buffer = make_buffer()
    tensors = [buffer.obs, buffer.actions, buffer.advantages, buffer.returns, buffer.hidden_h, *buffer.masks.values()]
    places = [tensor.data_ptr() for tensor in tensors]
    for _ in range(20):
        for _ in range(buffer.max_steps):
            add_random_step(buffer)
        buffer.compute_advantages_and_returns(0.9, 0.9)
        buffer.normalize_advantages()
        buffer.clear()
    now = [buffer.obs, buffer.actions, buffer.advantages, buffer.returns, buffer.hidden_h, *buffer.masks.values()]
    assert [tensor.data_ptr() for tensor in now] == places


def test_a_full_buffer_refuses_more() -> None:
    buffer = make_buffer(max_steps=1)
    add_random_step(buffer)
    with pytest.raises(InputError, match="full"):
        add_random_step(buffer)


def test_stored_values_are_copies_and_ordinary_tensors() -> None:
    buffer = make_buffer()
    with torch.inference_mode():
        obs = torch.ones(2, OBS_DIM)
        add_random_step(buffer, obs=obs)
        obs.zero_()
    assert (buffer.obs[:, 0] == 1).all()
    assert not any(tensor.is_inference() for tensor in (buffer.obs, buffer.log_probs, buffer.hidden_c))


def test_keeping_only_the_first_state_takes_a_fraction_of_the_memory() -> None:
    every, first = make_buffer(max_steps=25), make_buffer(max_steps=25, hidden_storage="first")
    assert every.hidden_h.numel() == 25 * first.hidden_h.numel()


def test_terminal_truncated_and_unfinished_ends_by_hand() -> None:
    gamma, lam = 0.5, 0.5
    terminal = filled([1, 1], [2, 2], [0, 1], [0, 0], [9, 9])
    terminal.compute_advantages_and_returns(gamma, lam)
    # The last step: 1 + 0 - 2 is -1. The first: 1 + 0.5*2 - 2, and a quarter of the -1 behind it.
    torch.testing.assert_close(terminal.advantages[0], torch.tensor([-0.25, -1.0]))
    truncated = filled([1, 1], [2, 2], [0, 1], [0, 1], [9, 6])
    truncated.compute_advantages_and_returns(gamma, lam)
    # The last step: 1 + 0.5*6 - 2 is 2. The first: 0, and a quarter of the 2.
    torch.testing.assert_close(truncated.advantages[0], torch.tensor([0.5, 2.0]))
    unfinished = filled([1, 1], [2, 2], [0, 0], [0, 0], [9, 4])
    unfinished.compute_advantages_and_returns(gamma, lam)
    torch.testing.assert_close(unfinished.advantages[0], torch.tensor([0.25, 1.0]))
    torch.testing.assert_close(unfinished.returns[0], torch.tensor([2.25, 3.0]))


def test_returns_may_have_a_lambda_of_their_own() -> None:
    buffer = filled([1, 1], [2, 2], [0, 1], [0, 0], [9, 9])
    buffer.compute_advantages_and_returns(0.5, 0.5, value_lambda=1.0)
    torch.testing.assert_close(buffer.advantages[0], torch.tensor([-0.25, -1.0]))
    torch.testing.assert_close(buffer.returns[0], torch.tensor([1.5, 1.0]))  # what came of it, discounted


def test_a_horizon_that_ends_the_problem_is_worth_nothing_afterwards() -> None:
    buffer = filled([1, 1], [2, 2], [0, 1], [0, 1], [9, 6])
    buffer.compute_advantages_and_returns(0.5, 0.5, horizon_is_terminal=True)
    torch.testing.assert_close(buffer.advantages[0], torch.tensor([-0.25, -1.0]))
    assert buffer.truncated[0, 1]


@pytest.mark.parametrize("bootstrap", [None, [math.nan, math.nan]], ids=["none", "nan"])
@pytest.mark.parametrize(("dones", "truncated"), [([0, 0], [0, 0]), ([0, 1], [0, 1])])
def test_a_missing_bootstrap_value_is_an_error(
    dones: list[int], truncated: list[int], bootstrap: list[float] | None
) -> None:
    buffer = filled([1, 1], [2, 2], dones, truncated, bootstrap)
    with pytest.raises(InputError, match="bootstrap_values"):
        buffer.compute_advantages_and_returns(0.9, 0.9)


@given(seed=st.integers(0, 2**31), gamma=st.floats(0.5, 1.0), lam=st.floats(0.0, 1.0))
@settings(max_examples=50)
def test_advantages_equal_the_plain_definition_with_random_ends(seed: int, gamma: float, lam: float) -> None:
    torch.manual_seed(seed)
    buffer = make_buffer(num_envs=3, max_steps=12)
    finished = torch.randint(1, 13, (3,))
    for step in range(12):
        dones = torch.rand(3) < 0.3
        add_random_step(buffer, dones=dones, truncated=dones & (torch.rand(3) < 0.5), active=step < finished)
    buffer.compute_advantages_and_returns(gamma, lam)
    np.testing.assert_allclose(
        np.where(buffer.valid, buffer.advantages, 0.0), plain_gae(buffer, gamma, lam), atol=1e-5, rtol=1e-5
    )
    before = buffer.advantages[0].clone()
    buffer.rewards[1] += 100.0
    buffer.compute_advantages_and_returns(gamma, lam)
    torch.testing.assert_close(buffer.advantages[0], before)


def test_nothing_leaks_across_the_end_of_an_episode_not_even_nan() -> None:
    buffer = filled([1, math.nan, 1], [1, 1, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0])
    buffer.compute_advantages_and_returns(0.9, 0.9)
    assert buffer.advantages[0, 0] == 0.0
    assert buffer.advantages[0, 1].isnan()


def test_environments_that_finished_cannot_come_back() -> None:
    buffer = make_buffer()
    add_random_step(buffer, active=torch.tensor([True, False]))
    with pytest.raises(InputError, match="finished"):
        add_random_step(buffer, active=torch.tensor([True, True]))


@pytest.mark.parametrize(("spread", "expected"), [(1.0, 1.0), (5.0, 1.0), (1e-6, 1e-3), (0.0, 0.0)])
def test_normalised_advantages_have_unit_spread_but_noise_is_not_blown_up(spread: float, expected: float) -> None:
    torch.manual_seed(0)
    buffer = make_buffer(num_envs=8, max_steps=50)
    for _ in range(50):
        add_random_step(buffer)
    noise = torch.randn(8, 50)
    buffer.advantages.copy_(spread * (noise - noise.mean()) / noise.std(correction=0))
    buffer.normalize_advantages()
    assert buffer.advantages.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert buffer.advantages.std(correction=0).item() == pytest.approx(expected, rel=1e-3)


def test_normalising_one_step_or_none_is_harmless() -> None:
    buffer = make_buffer(num_envs=1)
    buffer.advantages.fill_(7.0)
    buffer.normalize_advantages()
    assert (buffer.advantages == 7.0).all()
    add_random_step(buffer)
    buffer.normalize_advantages()
    assert buffer.advantages[0, 0] == 0.0
    buffer.step_counts -= 2
    with pytest.raises(InputError, match="negative"):
        buffer.normalize_advantages()


def test_sequences_start_from_the_stored_state_at_the_row_start_and_from_zero_inside() -> None:
    buffer = make_buffer(lstm_layers=2)
    for step in range(6):
        add_random_step(buffer, dones=torch.tensor([step == 3, False]))
    batch = buffer.get_batched_sequences()
    assert batch.lengths.tolist() == [4, 2, 6]
    assert torch.equal(batch.valid.sum(1), torch.tensor([4, 2, 6]))
    assert batch.hidden[0].shape == (2, 3, HIDDEN)
    assert torch.equal(batch.hidden[0][:, 0], buffer.hidden_h[0, 0])
    assert torch.equal(batch.hidden[1][:, 2], buffer.hidden_c[1, 0])
    assert not batch.hidden[0][:, 1].any()
    assert torch.equal(batch.obs[1, :2], buffer.obs[0, 4:6])
    assert not batch.obs[1, 2:].any()
    assert not batch.active[1, 2:].any()


def test_a_shorter_round_shows_nothing_of_the_one_before() -> None:
    buffer = make_buffer()
    for _ in range(6):
        add_random_step(buffer)
    buffer.clear()
    for _ in range(2):
        add_random_step(buffer)
    batch = buffer.get_batched_sequences()
    assert batch.obs.shape == (2, 2, OBS_DIM)
    assert torch.equal(buffer.valid.sum(1), torch.tensor([2, 2]))


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30), count=st.integers(1, 8))
def test_minibatches_hold_every_sequence_exactly_once(lengths: list[int], count: int) -> None:
    groups = list(minibatches(torch.tensor(lengths), count))
    assert sorted(torch.cat(groups).tolist()) == list(range(len(lengths)))
    assert 1 <= len(groups) <= count


def test_minibatches_of_equal_sequences_are_equal_and_shuffled() -> None:
    torch.manual_seed(0)
    epochs = [list(minibatches(torch.full((8,), 150), 4)) for _ in range(5)]
    assert all([len(group) for group in epoch] == [2, 2, 2, 2] for epoch in epochs)
    assert len({tuple(torch.cat(epoch).tolist()) for epoch in epochs}) > 1


def test_spec_of_the_buffer_is_espers_by_default() -> None:
    assert make_buffer().spec == ESPER_SPEC
    with pytest.raises(InputError, match="environments and steps"):
        make_buffer(num_envs=0)
