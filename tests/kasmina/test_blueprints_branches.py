"""Kinds that connect: how wide and how strided they are, and that before an activation they widen a layer exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esper.kasmina import Family, GraftedModel, SiteShape, build_host, find_blueprint, graft
from esper.kasmina.blueprints.kinds import Branch
from esper.kasmina.taps import fit_positions


def conv_branch(source: tuple[int, ...], site: tuple[int, ...]) -> Branch:
    family = Family.CONV1D if len(site) == 1 else Family.CONV2D
    shape = SiteShape(family, 4, site, far=SiteShape(family, 2, source), around=600)
    built = find_blueprint(family, "far_narrow").build(shape)
    assert isinstance(built, Branch)
    return built


@pytest.mark.parametrize(
    ("source", "site", "strides"),
    [
        ((40,), (40,), ((1,), (1,))),
        ((40,), (20,), ((1,), (2,))),
        ((40,), (10,), ((1,), (4,))),
        ((40,), (5,), ((2,), (4,))),
        ((40,), (19,), ((1,), (2,))),
        ((32, 32), (8, 16), ((2, 1), (2, 2))),
        ((40,), (2,), ((4,), (4,))),
        ((8,), (32,), ((1,), (1,))),
        ((300,), (10,), ((4,), (4,))),
    ],
)
def test_two_layers_share_the_stride_and_the_rest_is_resampled(
    source: tuple[int, ...], site: tuple[int, ...], strides: tuple[tuple[int, ...], ...]
) -> None:
    branch = conv_branch(source, site)
    assert [branch.get_submodule(layer).stride for layer in ("first", "second")] == list(strides)
    delta = branch(torch.randn(3, 2, *source))
    assert fit_positions(delta, torch.randn(3, 4, *site)).shape == (3, 4, *site)


@pytest.mark.parametrize(("source", "site"), [((40,), (10,)), ((40,), (5,)), ((56, 56), (7, 14))])
def test_no_position_between_the_first_and_the_last_window_is_left_out(
    source: tuple[int, ...], site: tuple[int, ...]
) -> None:
    branch = conv_branch(source, site)
    for parameter in branch.parameters():
        nn.init.ones_(parameter)
    x = torch.rand(1, 2, *source, requires_grad=True)
    branch(x).sum().backward()
    assert x.grad is not None
    inner = [slice(0, size - size // target) for size, target in zip(source, site, strict=True)]
    assert bool((x.grad[:, :, *inner] > 0).all())


def test_positions_are_averaged_or_repeated() -> None:
    series = torch.tensor([[[1.0, 3.0, 5.0, 7.0]]])
    assert fit_positions(series, torch.zeros(1, 1, 4)) is series
    assert fit_positions(series, torch.zeros(1, 1, 2)).tolist() == [[[2.0, 6.0]]]
    assert fit_positions(series, torch.zeros(1, 1, 8)).tolist() == [[[1.0, 1.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0]]]
    image = torch.arange(8.0).view(1, 1, 2, 4)
    wanted = F.interpolate(F.adaptive_avg_pool2d(image, (2, 2)), (4, 2))
    assert torch.equal(fit_positions(image, torch.zeros(1, 1, 4, 2)), wanted)


@pytest.mark.parametrize(
    ("name", "example", "sizes"),
    [
        ("conv1d", torch.randn(2, 40), {"channels": (5, 10, 20)}),
        ("mlp", torch.randn(2, 40), {"widths": (16, 16, 16)}),
        ("conv2d", torch.randn(2, 3, 16, 16), {}),
        ("transformer", torch.randint(256, (2, 16)), {}),
    ],
)
def test_narrow_ones_cost_a_sixth_of_the_host_and_wide_ones_a_third(
    name: str, example: torch.Tensor, sizes: dict[str, tuple[int, ...]]
) -> None:
    host = build_host(name, **sizes)
    grafted = graft(host, at=host.slot_sites, example=example)
    size = sum(parameter.numel() for parameter in host.parameters())
    offered = 0
    for index, site in enumerate(grafted.sites):
        for kind, share in (("far_narrow", 1 / 6), ("far_wide", 1 / 3), ("near_narrow", 1 / 6), ("near_wide", 1 / 3)):
            blueprint = find_blueprint(site.shape.family, kind)
            if grafted.catalogue.fits[index, blueprint.id - 1]:
                # As near to the share as whole hidden units allow.
                unit = int(grafted.catalogue.params[index, blueprint.id - 1])
                offered += 1
                assert abs(unit - share * size) < 0.5 * _unit_cost(grafted, index, kind) + 1
    assert offered >= 2 * len(grafted.sites) - 2


def _unit_cost(grafted: GraftedModel, index: int, kind: str) -> float:
    shape = grafted.sites[index].shape
    seed = find_blueprint(shape.family, kind).build(shape)
    total = sum(parameter.numel() for parameter in seed.parameters()) - shape.width
    hidden = seed.get_parameter("first.bias").numel()
    return total / hidden


def wider(first: nn.Linear, second: nn.Linear, seed: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """The two layers with the hidden units of a branch beside their own."""
    extra, out = seed.get_submodule("first"), seed.get_submodule("second")
    assert isinstance(extra, nn.Linear)
    assert isinstance(out, nn.Linear)
    wide_first = nn.Linear(first.in_features, first.out_features + extra.out_features)
    wide_second = nn.Linear(wide_first.out_features, second.out_features)
    with torch.no_grad():
        wide_first.weight.copy_(torch.cat([first.weight, extra.weight]))
        wide_first.bias.copy_(torch.cat([first.bias, extra.bias]))
        wide_second.weight.copy_(torch.cat([second.weight, out.weight], 1))
        wide_second.bias.copy_(second.bias + out.bias)
    return wide_first, wide_second


def test_in_front_of_an_activation_a_branch_is_an_exact_widening_of_the_layer_before() -> None:
    torch.manual_seed(0)
    host = build_host("mlp", inputs=12, widths=(16, 16), classes=3)
    x = torch.randn(7, 12)
    grafted = graft(host, at=host.slot_sites, example=x)
    grafted.plant_fossils({"blocks.1.0": "far_wide"})
    seed = grafted.slots[grafted.slot_index("blocks.1.0")].get_submodule("seed")
    for parameter in seed.parameters():
        nn.init.normal_(parameter)
    (first, _), (second, _) = host.blocks  # type: ignore[misc]
    first, second = wider(first, second, seed)
    widened = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), host.get_submodule("head"))
    torch.testing.assert_close(grafted(x), widened(x))


def test_a_convolutional_branch_with_the_kernel_of_the_host_widens_it_too() -> None:
    torch.manual_seed(0)
    host = nn.Sequential(
        nn.Conv1d(2, 6, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(6, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    x = torch.randn(5, 2, 9)
    grafted = graft(host, at=["2"], example=x)
    grafted.plant_fossils({"2": "far_narrow"})
    seed = grafted.slots[0].get_submodule("seed")
    for parameter in seed.parameters():
        nn.init.normal_(parameter)
    extra, out = seed.get_submodule("first"), seed.get_submodule("second")
    hidden = torch.cat([host[0](x), extra(x)], 1).relu()
    weight = torch.cat((host[2].get_parameter("weight"), out.get_parameter("weight")), 1)
    bias = host[2].get_parameter("bias") + out.get_parameter("bias")
    widened = F.conv1d(hidden, weight, bias, padding=1)
    torch.testing.assert_close(grafted(x), host[3:](widened))
