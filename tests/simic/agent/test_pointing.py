"""The pointing network: no weight belongs to a slot or a kind."""

import pytest
import torch
from torch import Tensor

from esper.kasmina import num_blueprints
from esper.leyline import HEAD_NAMES, InputError, SlotConfig
from esper.simic.agent.network import Policy
from esper.simic.agent.pointing import PointingActorCritic
from esper.simic.control import ActionSpec, draw_actions, esper_action_spec, select_logits, select_masks
from esper.simic.control.anatomy import Anatomy
from tests.simic.builders import BANDIT_SPEC, random_masks

OPS = 4
SLOT, BLUEPRINT, BLEND, OP = (HEAD_NAMES.index(name) for name in ("slot", "blueprint", "blend", "op"))


def spec_of(slots: int) -> ActionSpec:
    return esper_action_spec(SlotConfig.of_size(slots))


def make_pointing(slots: int = 5, seed: int = 0, **options: int) -> PointingActorCritic:
    """With heads that differ from uniform, and biases as after training: of fresh ones, which are 0, nothing shows."""
    torch.manual_seed(seed)
    small = {"feature_dim": 32, "lstm_hidden_dim": 16, "policy_gain": 1.0} | options
    network = PointingActorCritic(spec_of(slots), Anatomy(slots, num_blueprints()).width, **small)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.add_(torch.randn(parameter.shape))
    return network


def random_rows(slots: int, *batch: int) -> Tensor:
    """Observations in which every slot exists and two in three kinds fit."""
    anatomy = Anatomy(slots, num_blueprints())
    host, by_slot, by_kind = anatomy.split(torch.randn(*batch, anatomy.width))
    by_slot[..., 0] = 1.0
    fits = torch.rand(by_kind.shape[:-1]) < 2 / 3
    by_kind = torch.where(fits.unsqueeze(-1), by_kind, 0.0)
    by_kind[..., 0] = fits.float()
    return anatomy.join(host, by_slot, by_kind)


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_permuting_slots_permutes_the_answer() -> None:
    network, rows = make_pointing(), random_rows(5, 3, 4)
    order = torch.tensor([3, 0, 4, 1, 2])
    host, slots, kinds = network.anatomy.split(rows)
    permuted = network.anatomy.join(host, slots[..., order, :], kinds[..., order, :, :])
    before, after = network(rows), network(permuted)
    close(after.values, before.values)
    close(after.logits[..., OP, :, :], before.logits[..., OP, :, :])
    close(after.logits[..., SLOT, :OPS, :5], before.logits[..., SLOT, :OPS, order])
    for head in (BLUEPRINT, BLEND):
        close(after.logits[..., head, :5, :], before.logits[..., head, order, :])


def test_permuting_kinds_permutes_the_answer() -> None:
    network, rows = make_pointing(), random_rows(5, 3)
    kinds = num_blueprints()
    order = torch.randperm(kinds)
    host, slots, offers = network.anatomy.split(rows)
    before, after = network(rows), network(network.anatomy.join(host, slots, offers[..., order, :]))
    close(after.logits[..., BLUEPRINT, :5, :kinds], before.logits[..., BLUEPRINT, :5, order])
    for head in (SLOT, BLEND, OP):
        close(after.logits[..., head, :, :], before.logits[..., head, :, :])


def test_other_slots_need_no_other_weights_and_padding_changes_nothing() -> None:
    policy = Policy(make_pointing(), normalize=True)
    assert policy.normalizer is not None
    rows = random_rows(5, 6)
    policy.normalizer.update(rows)
    wide = policy.for_spec(spec_of(8))
    assert [id(p) for p in wide.network.parameters()] == [id(p) for p in policy.network.parameters()]
    before = policy.network(policy.normalized(rows))
    after = wide.network(wide.normalized(Anatomy(8, num_blueprints()).pad(rows)))
    close(after.values, before.values)
    close(after.logits[..., SLOT, :OPS, :5], before.logits[..., SLOT, :OPS, :5])
    close(after.logits[..., BLUEPRINT, :5, :9], before.logits[..., BLUEPRINT, :5, :9])
    close(after.logits[..., OP, 0, :OPS], before.logits[..., OP, 0, :OPS])
    # Asking for other slots changes nothing of the policy that was asked.
    assert policy.spec == spec_of(5)
    assert policy.for_spec(spec_of(5)) is policy


def test_a_kind_that_was_never_there_needs_no_other_weights() -> None:
    network = make_pointing()
    kinds = num_blueprints() + 1
    anatomy = Anatomy(5, kinds)
    rows = random_rows(5, 2)
    heads = [head if head.name != "blueprint" else type(head)("blueprint", kinds, head.matters_for, "slot")
             for head in network.spec.heads]  # fmt: skip
    before = network(rows)
    network.spec = ActionSpec(tuple(heads), "op")
    host, slots, offers = anatomy.split(anatomy.pad(rows, num_blueprints()))
    offers[:, :, -1] = torch.randn(offers.shape[-1])
    offers[:, :, -1, 0] = 1.0
    after = network(anatomy.join(host, slots, offers))
    assert after.logits.shape == (2, 1, 4, 5, kinds)
    assert not torch.allclose(after.logits[..., BLUEPRINT, 0, -1], before.logits[..., BLUEPRINT, 0, -1])
    assert after.logits[..., BLUEPRINT, :, -1].std() > 0


def test_a_sequence_is_the_same_as_its_steps() -> None:
    network, rows = make_pointing(lstm_layers=2), random_rows(5, 3, 6)
    whole = network(rows)
    hidden = network.get_initial_hidden(3)
    for step in range(6):
        one = network(rows[:, step], hidden)
        hidden = one.hidden
        close(one.logits.squeeze(1), whole.logits[:, step])
        close(one.values.squeeze(1), whole.values[:, step])


def test_replayed_actions_have_the_probabilities_they_were_drawn_with() -> None:
    network, rows = make_pointing(), random_rows(5, 64)
    masks = random_masks(network.spec, 64)
    hidden = network.get_initial_hidden(64)
    drawn = network.get_action(rows, masks, hidden)
    actions = drawn.actions.clone().unsqueeze(1)
    selected = select_masks(network.spec, masks, actions.squeeze(1)).unsqueeze(1)
    seen = network.evaluate_actions(rows.unsqueeze(1), actions, selected, hidden)
    close(seen.log_probs.squeeze(1), drawn.log_probs.clone())
    close(seen.values.squeeze(1), drawn.values.clone())


def test_blueprint_and_blend_are_chosen_by_what_the_drawn_slot_offers() -> None:
    network = make_pointing()
    logits = network(random_rows(5, 1)).logits[:, 0]
    masks = network.spec.all_legal((1,))
    masks["op"][:, [0, 2, 3]] = False  # it germinates
    for slot in range(5):
        masks["slot"][:] = False
        masks["slot"][..., slot] = True
        actions = draw_actions(network.spec, logits, masks, deterministic=True)
        assert actions[0, BLUEPRINT] == logits[0, BLUEPRINT, slot, :9].argmax()
        assert actions[0, BLEND] == logits[0, BLEND, slot, :4].argmax()
        chosen = select_logits(network.spec, logits, actions)
        assert torch.equal(chosen[0, BLUEPRINT], logits[0, BLUEPRINT, slot])


def test_a_kind_is_scored_by_the_host_by_its_slot_and_by_itself() -> None:
    network = make_pointing()
    core, slots, kinds = torch.randn(2, 3, 16), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 9, 8)
    scores = network._score_kinds(core, slots, kinds)
    parts = {"core": core, "slots": slots, "kinds": kinds}
    for name, part in parts.items():
        other = network._score_kinds(**(parts | {name: part + 1.0}))
        assert (other != scores).all(), name
    # As the head gives it for core, slot and kind side by side.
    side_by_side = [core[:, :, None, None].expand(2, 3, 5, 9, 16), slots.unsqueeze(3).expand(2, 3, 5, 9, 8), kinds]
    close(scores, network.blueprint_head(torch.cat(side_by_side, -1)).squeeze(-1))


def test_every_parameter_gets_a_gradient() -> None:
    network, rows = make_pointing(), random_rows(5, 16, 3)
    output = network(rows)
    (output.logits.square().sum() + output.values.sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_other_heads_and_widths_are_refused() -> None:
    with pytest.raises(InputError, match="decides with the heads slot, blueprint, blend, op alone"):
        PointingActorCritic(BANDIT_SPEC, 100)
    with pytest.raises(InputError, match="has observations of"):
        PointingActorCritic(spec_of(3), 100)
