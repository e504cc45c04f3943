"""Parameter groups, weight decay, learning rates per head, and clipping."""

import pytest
import torch

from esper.simic.agent.optimization import adam_kernels, clip_policy_gradients, parameter_units
from tests.simic.builders import agent_with_round, make_agent


def test_without_decay_it_is_plain_adam() -> None:
    optimizer = make_agent().optimizer
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["eps"] == 1e-5
    assert optimizer.defaults["foreach"] is True
    assert adam_kernels(torch.device("cuda")) == {"fused": True, "foreach": None}


def test_decay_reaches_the_critic_only() -> None:
    agent = make_agent(weight_decay=0.01)
    assert type(agent.optimizer) is torch.optim.AdamW
    groups = {group["name"]: group for group in agent.optimizer.param_groups}
    assert {name: group["weight_decay"] for name, group in groups.items()} == {
        "actor": 0.0,
        "shared": 0.0,
        "critic": 0.01,
    }
    grouped = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in agent._base_network.parameters())
    before = {name: p.detach().clone() for name, p in agent._base_network.named_parameters()}
    for parameter in agent._base_network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    agent.optimizer.step()
    moved = {name for name, p in agent._base_network.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"value_head.0.weight", "value_head.2.weight"}


def test_a_head_may_have_a_learning_rate_of_its_own() -> None:
    agent = make_agent(lr=1e-3, head_lr_scale={"blueprint": 2.0})
    rates = {group["name"]: group["lr"] for group in agent.optimizer.param_groups}
    assert rates == {"actor": 1e-3, "shared": 1e-3, "critic": 1e-3, "actor_blueprint": 2e-3}
    before = {name: p.detach().clone() for name, p in agent._base_network.named_parameters()}
    for parameter in agent._base_network.parameters():
        parameter.grad = torch.ones_like(parameter)
    agent.optimizer.step()
    moved = {name: (p - before[name]).abs().mean() for name, p in agent._base_network.named_parameters()}
    ratio = moved["blueprint_head.2.weight"] / moved["blend_head.2.weight"]
    assert ratio.item() == pytest.approx(2.0, rel=1e-3)


def with_gradients(scale_of_op: float) -> dict[str, list[torch.nn.Parameter]]:
    torch.manual_seed(0)
    units = parameter_units(make_agent()._base_network)
    for name, parameters in units.items():
        for parameter in parameters:
            parameter.grad = 1e-3 * torch.randn_like(parameter) * (scale_of_op if name == "op" else 1.0)
    return units


def total(parameters: list[torch.nn.Parameter]) -> float:
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).item()


@pytest.mark.parametrize(("mode", "others_unchanged"), [("per_head", True), ("global", False)])
def test_a_huge_gradient_in_one_head_shrinks_the_others_only_in_global_mode(mode: str, others_unchanged: bool) -> None:
    units = with_gradients(1e4)
    before = {name: total(parameters) for name, parameters in units.items()}
    norms = clip_policy_gradients(units, 0.5, mode)  # type: ignore[arg-type]
    after = {name: total(parameters) for name, parameters in units.items()}
    assert norms["grad_norms"].tolist() == pytest.approx(list(before.values()), rel=1e-5)
    assert after["op"] <= 0.5 + 1e-6
    assert (after["slot"] == pytest.approx(before["slot"], rel=1e-5)) is others_unchanged
    everything = [p for parameters in units.values() for p in parameters]
    assert norms["post_clip_grad_norm"].item() == pytest.approx(total(everything), rel=1e-4)
    assert norms["total_grad_norm"] >= norms["post_clip_grad_norm"]
    if mode == "global":
        assert norms["post_clip_grad_norm"] <= 0.5 + 1e-6


def test_reported_norms_are_those_before_clipping() -> None:
    metrics = agent_with_round(max_grad_norm=1e-3).update()
    assert metrics["total_grad_norm"] > metrics["post_clip_grad_norm"]
    assert metrics["post_clip_grad_norm"] <= 1e-3 * 6**0.5 + 1e-6
    loose = agent_with_round(max_grad_norm=1e9).update()
    assert loose["total_grad_norm"] == pytest.approx(loose["post_clip_grad_norm"], rel=1e-5)
    assert loose["head_grad_norms"] == metrics["head_grad_norms"]
