"""The network: its parts and sizes, its initialisation, and that acting and replaying agree."""

import math

import pytest
import torch
from torch import nn

from esper.leyline import HEAD_NAMES, InputError, SlotConfig
from esper.simic.agent import FactoredRecurrentActorCritic
from esper.simic.agent.network import ResidualFeatures, last_layer
from esper.simic.control import MaskedCategorical, esper_action_spec, select_masks
from tests.simic.builders import ESPER_SPEC, random_masks

OBS_DIM = 11


def network(num_slots: int = 3, **overrides: float | None) -> FactoredRecurrentActorCritic:
    return FactoredRecurrentActorCritic(
        esper_action_spec(SlotConfig.of_size(num_slots)),
        OBS_DIM,
        **overrides,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("num_slots", "hidden", "layers"), [(1, 16, 1), (3, 128, 1), (5, 32, 2)])
def test_parts_have_the_sizes_asked_for(num_slots: int, hidden: int, layers: int) -> None:
    net = network(num_slots, lstm_hidden_dim=hidden, lstm_layers=layers)
    assert [name for name, _ in net.named_children()] == [
        "lstm",
        "lstm_ln",
        "feature_net",
        *(f"{name}_head" for name in HEAD_NAMES),
        "value_head",
    ]
    assert net.lstm_ln.normalized_shape == (hidden,)
    assert last_layer(net.policy_head("slot")).out_features == num_slots
    assert last_layer(net.value_head).out_features == 1
    output = net(torch.randn(4, 6, OBS_DIM))
    assert output.logits.shape == (4, 6, 4, net.spec.width)
    assert output.values.shape == (4, 6)
    assert output.hidden[0].shape == output.hidden[1].shape == (layers, 4, hidden)


@pytest.mark.parametrize(("hidden", "override", "width"), [(16, None, 32), (128, None, 64), (128, 20, 20)])
def test_heads_are_half_the_state_wide_but_at_least_32(hidden: int, override: int | None, width: int) -> None:
    net = network(lstm_hidden_dim=hidden, head_dim=override)
    first = net.policy_head("op")[0]
    assert isinstance(first, nn.Linear)
    assert first.out_features == width


def test_two_feature_layers_add_a_residual_path() -> None:
    deep, plain = network(feature_layers=2), network()
    assert isinstance(deep.feature_net, ResidualFeatures)
    extra = sum(p.numel() for p in deep.parameters()) - sum(p.numel() for p in plain.parameters())
    # (11*256 + 256) + two LayerNorm vectors of 256 + (256*128 + 128) + 11*128, against (11*128 + 128) + 2*128
    assert extra == 11 * 256 + 256 + 512 + 256 * 128 + 128 + 11 * 128 - (11 * 128 + 128 + 256)
    assert deep(torch.randn(2, OBS_DIM)).values.isfinite().all()
    with pytest.raises(InputError, match="feature_layers"):
        network(feature_layers=3)


def test_input_norm_takes_out_the_scale_of_the_observation_unless_switched_off() -> None:
    obs = torch.randn(5, OBS_DIM)
    for input_norm, same in ((True, True), (False, False)):
        net = network(input_norm=input_norm)
        close = torch.allclose(net(obs).values, net(100.0 * obs).values, atol=1e-4)
        assert close is same


def test_heads_read_normalised_features_whatever_the_hidden_magnitude() -> None:
    torch.manual_seed(0)
    net = network(lstm_hidden_dim=64)
    seen = []
    net.lstm_ln.register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach()))
    hidden = net.get_initial_hidden(2)
    with torch.no_grad():
        for _ in range(1000):
            hidden = net(5.0 * torch.randn(2, OBS_DIM), hidden).hidden
    features = torch.cat(seen, 1)
    torch.testing.assert_close(features.mean(-1), torch.zeros(2, 1000), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.var(-1, correction=0), torch.ones(2, 1000), atol=1e-2, rtol=0)


def test_the_first_policy_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    logits = network()(torch.randn(200, OBS_DIM)).logits
    for index, head in enumerate(ESPER_SPEC.heads):
        probabilities = logits[:, 0, index, : head.size].softmax(-1)
        assert (probabilities * head.size - 1.0).abs().max() < 0.05


@pytest.mark.parametrize("hidden", [16, 64])
def test_the_lstm_starts_with_orthogonal_weights_and_no_bias_but_for_the_forget_gate(hidden: int) -> None:
    net = network(lstm_hidden_dim=hidden, lstm_layers=2)
    for name, parameter in net.lstm.named_parameters():
        weight = parameter.detach()
        if name.startswith("weight"):
            rows, columns = weight.shape
            gram = weight.T @ weight if rows >= columns else weight @ weight.T
            torch.testing.assert_close(gram, torch.eye(min(rows, columns)), atol=1e-5, rtol=0)
        else:
            gates = weight.view(4, hidden)
            assert (gates[1] == (1.0 if name.startswith("bias_ih") else 0.0)).all()
            assert not gates[[0, 2, 3]].any()


def test_the_forget_gate_starts_at_sigmoid_one() -> None:
    net = network(lstm_hidden_dim=4)
    with torch.no_grad():
        for name, parameter in net.lstm.named_parameters():
            if name.startswith("weight"):
                parameter.zero_()
        dict(net.lstm.named_parameters())["bias_hh_l0"][:4] = -100.0  # close the input gate: the cell can only decay
    state = (torch.zeros(1, 1, 4), torch.ones(1, 1, 4))
    for step in range(1, 4):
        state = net(torch.randn(1, OBS_DIM), state).hidden
        expected = torch.full((1, 1, 4), torch.sigmoid(torch.tensor(1.0)).item() ** step)
        torch.testing.assert_close(state[1].detach(), expected)


@pytest.mark.parametrize("layers", [1, 2])
def test_initial_state_is_zero_in_the_layout_of_the_lstm(layers: int) -> None:
    h, c = network(lstm_layers=layers, lstm_hidden_dim=16).get_initial_hidden(5, "cpu")
    assert h.shape == c.shape == (layers, 5, 16)
    assert not h.any()
    assert not c.any()


def test_an_lstm_that_disagrees_with_the_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lstm = nn.LSTM
    monkeypatch.setattr(
        nn, "LSTM", lambda inputs, hidden, layers, **options: lstm(inputs, hidden, layers + 1, **options)
    )
    with pytest.raises(InputError, match="2 layers of 64"):
        network()


def test_single_observations_are_sequences_of_one_step() -> None:
    net, obs = network(), torch.randn(3, OBS_DIM)
    flat, sequence = net(obs), net(obs.unsqueeze(1))
    torch.testing.assert_close(flat.logits, sequence.logits)
    torch.testing.assert_close(flat.values, sequence.values)


def test_stepwise_acting_equals_replaying_the_sequence() -> None:
    torch.manual_seed(0)
    net = network(lstm_hidden_dim=32, lstm_layers=2)
    steps, envs = 20, 5
    hidden = start = net.get_initial_hidden(envs)
    obs = torch.randn(envs, steps, OBS_DIM)
    actions, log_probs, values, selected = [], [], [], []
    for step in range(steps):
        masks = random_masks(net.spec, envs)
        decision = net.get_action(obs[:, step], masks, hidden)
        assert decision.log_probs.is_inference()
        hidden = decision.hidden
        actions.append(decision.actions.clone())
        log_probs.append(decision.log_probs)
        values.append(decision.values)
        selected.append(select_masks(net.spec, masks, decision.actions))
    replay = net.evaluate_actions(obs, torch.stack(actions, 1), torch.stack(selected, 1), start)
    torch.testing.assert_close(replay.log_probs.detach(), torch.stack(log_probs, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(replay.values.detach(), torch.stack(values, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(replay.hidden[1].detach(), hidden[1], atol=1e-5, rtol=0)
    assert ((replay.entropies >= 0) & (replay.entropies <= 1)).all()


def test_every_head_receives_gradient_from_evaluated_actions() -> None:
    torch.manual_seed(0)
    net = network(lstm_hidden_dim=16)
    actions = torch.zeros(4, 3, 4, dtype=torch.long)
    actions[..., net.spec.decider_index] = 1  # germinate: every head matters
    selected = select_masks(net.spec, net.spec.all_legal((4, 3)), actions)
    result = net.evaluate_actions(torch.randn(4, 3, OBS_DIM), actions, selected, net.get_initial_hidden(4))
    (result.log_probs.sum() + result.values.sum()).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_the_deterministic_policy_takes_the_most_probable_values() -> None:
    torch.manual_seed(0)
    net = network(policy_gain=5.0)
    obs, masks = torch.randn(50, OBS_DIM), random_masks(net.spec, 50)
    hidden = net.get_initial_hidden(50)
    decisions = [net.get_action(obs, masks, hidden, deterministic=True) for _ in range(2)]
    assert torch.equal(decisions[0].actions, decisions[1].actions)
    best = MaskedCategorical(net(obs, hidden).logits[:, 0], select_masks(net.spec, masks, decisions[0].actions)).mode
    assert torch.equal(decisions[0].actions, best)


def test_bad_observations_are_an_error_that_names_the_environment() -> None:
    net, obs = network(), torch.randn(4, OBS_DIM)
    obs[2, 3] = math.nan
    with pytest.raises(InputError, match="environment 2: the observation"):
        net.get_action(obs, net.spec.all_legal((4,)), net.get_initial_hidden(4))
