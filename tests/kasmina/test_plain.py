"""Hosts of the zoo as chains of plain modules."""

import copy

import pytest
import torch
from torch import nn

from esper.kasmina import build_host, plain_network
from esper.kasmina.export.bypass import Bypassed
from esper.leyline import InputError, Stage
from tests.kasmina.test_export import grown
from tests.kasmina.test_hosts import EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_grown_host_becomes_a_chain_of_its_parts(name: str) -> None:
    host, x = build_host(name), EXAMPLES[name]
    bare = host(x)
    first, last = host.slot_sites[0], host.slot_sites[-1]
    grafted = grown(host, {first: "norm", last: "norm"}, x)
    table = grafted.table.clone()
    table.alpha[0, 1] = 0.5
    grafted.follow(table)
    plain = plain_network(grafted)
    assert len(plain) == len(host.parts)
    assert not torch.allclose(grafted(x), bare)
    torch.testing.assert_close(plain(x), grafted(x), rtol=0, atol=1e-5)
    assert torch.equal(plain(x), copy.deepcopy(plain)(x))
    assert not any(module._forward_hooks for module in plain.modules())


@pytest.mark.parametrize(("source", "nested"), [("blocks.1:input", True), ("blocks.1.0", False), (":input", True)])
def test_a_bypass_leads_around_parts(source: str, nested: bool) -> None:
    host, x = build_host("mlp", inputs=8, widths=(8, 8, 8)), torch.randn(4, 8)
    grafted = grown(host, {"blocks.2": "far_wide"}, x, sources={"blocks.2": {"far": source}})
    plain = plain_network(grafted)
    torch.testing.assert_close(plain(x), grafted(x), rtol=0, atol=1e-5)
    assert any(isinstance(module, Bypassed) for module in plain.modules()) is nested


def test_what_is_not_finished_or_not_of_the_zoo_is_refused() -> None:
    host, x = build_host("mlp"), EXAMPLES["mlp"]
    grafted = grown(host, {"blocks.0": "mlp"}, x)
    table = grafted.table.clone()
    table.stage[0, 0] = Stage.HOLDING.value
    grafted.follow(table)
    with pytest.raises(InputError, match="a seed is still growing"):
        plain_network(grafted)
    with pytest.raises(InputError, match="only hosts of the zoo"):
        plain_network(grown(nn.Sequential(nn.Linear(6, 6)), {"0": "mlp"}, torch.randn(4, 6)))
