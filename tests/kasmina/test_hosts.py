"""The host zoo: sizes as documented, slots that change nothing while empty, settings that are checked."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import build_host, fold, graft
from esper.kasmina.hosts import host_names
from esper.leyline import InputError
from tests.kasmina.test_fold import grown

EXAMPLES: dict[str, Tensor] = {
    "mlp": torch.randn(4, 40),
    "conv1d": torch.randn(4, 40),
    "conv2d": torch.randn(4, 3, 32, 32),
    "conv2d-cifar10": torch.randn(4, 3, 32, 32),
    "transformer": torch.randint(256, (4, 16)),
    "transformer-large": torch.randint(256, (4, 16)),
}


def test_every_host_has_an_example_here() -> None:
    assert set(host_names()) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_host_with_empty_slots_is_the_plain_network(name: str) -> None:
    host = build_host(name)
    plain = copy.deepcopy(host)
    grafted = graft(host, at=host.slot_sites, example=EXAMPLES[name])
    assert len(grafted.sites) >= 3
    assert torch.equal(grafted(EXAMPLES[name]), plain(EXAMPLES[name]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_hosts_keep_no_running_statistics(name: str) -> None:
    assert not list(build_host(name).buffers())


@pytest.mark.parametrize("name", ["mlp", "conv1d", "conv2d", "conv2d-cifar10"])
def test_a_host_grows_behind_and_before_each_activation_and_at_its_output(name: str) -> None:
    host = build_host(name)
    before, behind = host.slot_sites[:-1:2], host.slot_sites[1::2]
    assert behind == host.parts[1:-1]
    assert host.slot_sites[-1] == "head"
    for outer, inner in zip(behind, before, strict=True):
        *_, last, activation = (f"{outer}.{child}" for child, _ in host.get_submodule(outer).named_children())
        assert inner == last
        assert isinstance(host.get_submodule(activation), nn.ReLU)


def test_the_transformer_grows_behind_its_embedding_its_blocks_and_its_head() -> None:
    assert build_host("transformer").slot_sites == ("position", "blocks.0", "blocks.1", "head")


@pytest.mark.parametrize(
    ("name", "params"),
    [("mlp", 11_594), ("conv1d", 1_090), ("conv2d", 24_346), ("conv2d-cifar10", 288_746), ("transformer", 137_216)],
)
def test_parameter_counts(name: str, params: int) -> None:
    assert sum(p.numel() for p in build_host(name).parameters()) == params


def test_the_transformer_never_looks_ahead() -> None:
    host = build_host("transformer")
    tokens = torch.randint(256, (2, 16))
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 256
    torch.testing.assert_close(host(tokens)[:, :10], host(changed)[:, :10])


def test_series_may_carry_a_channel_axis() -> None:
    host = build_host("conv1d")
    x = torch.randn(4, 40)
    assert torch.equal(host(x), host(x[:, None]))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("resnet", {}, "unknown host 'resnet'; choose one of: conv1d"),
        ("mlp", {"depth": 3}, "choose one of: inputs, widths, classes"),
        ("mlp", {"widths": ()}, "positive whole numbers"),
        ("conv1d", {"classes": 0}, "positive whole numbers"),
        ("transformer", {"width": 30}, "not a multiple"),
    ],
)
def test_impossible_hosts_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_host(name, **settings)


def test_sizes_are_settings() -> None:
    host = build_host("mlp", inputs=4, widths=(8, 6), classes=2)
    assert host(torch.randn(3, 4)).shape == (3, 2)
    assert len(host.slot_sites) == 2 * 2 + 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_grown_host_becomes_a_program(name: str) -> None:
    host, x = build_host(name), EXAMPLES[name]
    bare = host(x)
    grafted = grown(host, dict.fromkeys(host.slot_sites, "norm") | {host.slot_sites[2]: "far_wide"}, x)
    plain = fold(grafted, x).network
    assert not torch.allclose(grafted(x), bare)
    torch.testing.assert_close(plain(x), grafted(x), rtol=0, atol=1e-5)
    program = torch.export.export(plain.eval(), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(x[1:]), grafted(x)[1:], rtol=0, atol=1e-5)
