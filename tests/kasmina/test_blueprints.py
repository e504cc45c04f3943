"""Blueprints: several per family, born without effect, learning from the first step, priced by what they are."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import (
    Blueprint,
    Catalogue,
    Family,
    SiteShape,
    blueprint,
    blueprints_of,
    catalogue_names,
    check_catalogue,
    find_blueprint,
    num_blueprints,
)
from esper.kasmina.blueprints import registry
from esper.leyline import DamagedFileError, InputError, OtherCatalogueError
from tests.catalogues import one_more_kind

EXTENTS = {Family.CONV2D: (6, 5), Family.CONV1D: (9,), Family.FEATURES: (7,)}
FAR_EXTENTS = {Family.CONV2D: (12, 10), Family.CONV1D: (36,), Family.FEATURES: (7,)}
ALL = [entry for family in Family for entry in blueprints_of(family)]
WIDTHS = (4, 8, 16, 64)


def site_of(entry: Blueprint, width: int) -> SiteShape:
    family = entry.family
    near, far = SiteShape(family, 6, EXTENTS[family]), SiteShape(family, 3, FAR_EXTENTS[family])
    return SiteShape(family, width, EXTENTS[family], near, far, around=60 * width)


CASES = [pytest.param(entry, width, id=f"{entry.family}-{entry.name}-{width}") for entry in ALL for width in WIDTHS]
each_blueprint = pytest.mark.parametrize(("entry", "width"), CASES)


def test_every_family_has_at_least_five_blueprints_without_gaps_that_differ_in_price() -> None:
    for family in Family:
        entries = blueprints_of(family)
        assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
        assert len({entry.cost(site_of(entry, 16)).params for entry in entries}) == len(entries) >= 5


def test_the_number_of_blueprints_is_that_of_the_largest_family_and_others_lack_the_rest() -> None:
    before = num_blueprints()
    assert before == max(len(blueprints_of(family)) for family in Family)
    with one_more_kind(Family.FEATURES) as kind:
        assert num_blueprints() == max(before, kind.id)
        both = Catalogue.of([SiteShape(Family.FEATURES, 8), SiteShape(Family.CONV1D, 8, (9,))])
        assert both.fits.shape == both.params.shape == both.flops.shape == (2, num_blueprints())
        assert both.fits[0, kind.id - 1]
        assert int(both.params[0, kind.id - 1]) == 8
        assert not both.fits[1, len(blueprints_of(Family.CONV1D)) :].any()
    assert num_blueprints() == before


@each_blueprint
def test_a_seed_has_the_shape_of_its_site_and_starts_without_effect(entry: Blueprint, width: int) -> None:
    site = site_of(entry, width)
    delta = entry.build(site)(torch.randn(entry.input_shape(site).tensor_shape(3)))
    assert torch.equal(delta, torch.zeros(site.tensor_shape(3)))


@each_blueprint
def test_an_awake_seed_has_an_effect_and_the_weights_of_a_silent_one_but_for_its_scale(
    entry: Blueprint, width: int
) -> None:
    site, seeds, dice = site_of(entry, width), [], []
    for silent in (True, False):
        torch.manual_seed(3)
        seeds.append(entry.build(site, silent))
        dice.append(torch.rand(()))
    silent_seed, awake = seeds
    assert dice[0] == dice[1]  # both draw the same numbers
    assert awake(torch.randn(entry.input_shape(site).tensor_shape(3))).abs().max() > 1e-3
    different = [
        name for name, weight in awake.state_dict().items() if not torch.equal(weight, silent_seed.state_dict()[name])
    ]
    if entry.reads is None:
        assert different == ["norm.weight" if entry.name == "norm" else "scale"]
        assert awake.get_parameter(different[0]).eq(1).all()
    else:
        assert different == ["second.weight", "second.bias"]


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "awake"])
@each_blueprint
def test_every_tensor_of_a_seed_gets_gradient_within_two_steps_and_its_loss_falls(
    entry: Blueprint, width: int, silent: bool
) -> None:
    site = site_of(entry, width)
    seed = entry.build(site, silent)
    h = torch.randn(site.tensor_shape(32))
    given = h if entry.reads is None else torch.randn(entry.input_shape(site).tensor_shape(32))
    target = 0.5 * h + 0.3 * torch.randn(site.tensor_shape(1))
    optimizer = torch.optim.AdamW(seed.parameters(), lr=1e-2)
    touched: set[str] = set()
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = (h + seed(given) - target).square().mean()
        loss.backward()
        if step < 2:
            touched |= {name for name, p in seed.named_parameters() if p.grad is not None and bool(p.grad.any())}
        optimizer.step()
        losses.append(loss.item())
    assert touched == {name for name, _ in seed.named_parameters()}
    assert losses[-1] < (0.95 if entry.reads is None else 0.99) * losses[0]


@each_blueprint
def test_the_price_is_that_of_the_built_module(entry: Blueprint, width: int) -> None:
    site = site_of(entry, width)
    cost = entry.cost(site)
    assert cost.params == sum(p.numel() for p in entry.build(site).parameters())
    assert cost.flops > 0


@pytest.mark.parametrize("entry", blueprints_of(Family.CONV2D), ids=lambda entry: entry.name)
@pytest.mark.parametrize("isolated", [True, False])
def test_channels_last_images_are_fine(entry: Blueprint, isolated: bool) -> None:
    site = site_of(entry, 8)
    seed = entry.build(site)
    h = torch.randn(entry.input_shape(site).tensor_shape(2), requires_grad=not isolated)
    h = h.to(memory_format=torch.channels_last)
    seed(h).sum().backward()
    assert all(parameter.grad is not None for parameter in seed.parameters())


@pytest.mark.parametrize("family", Family)
def test_a_site_of_a_single_value_offers_nothing_that_normalises(family: Family) -> None:
    site = SiteShape(family, 1, {Family.CONV2D: (1, 1), Family.CONV1D: (1,), Family.FEATURES: ()}[family])
    assert not any(entry.fits(site) for entry in blueprints_of(family) if entry.name in ("norm", "heavy", "mlp"))
    Catalogue.of([site])


def test_attention_never_looks_ahead() -> None:
    site = SiteShape(Family.FEATURES, 8, (6,))
    seed = find_blueprint(Family.FEATURES, "attention").build(site)
    nn.init.ones_(seed.scale)  # type: ignore[arg-type]
    h = torch.randn(2, 6, 8)
    changed = h.clone()
    changed[:, 4:] += 1.0
    assert torch.equal(seed(h)[:, :4], seed(changed)[:, :4])
    assert not torch.equal(seed(h)[:, 4:], seed(changed)[:, 4:])


def test_position_mixing_reaches_every_position() -> None:
    seed = find_blueprint(Family.CONV1D, "mixing").build(SiteShape(Family.CONV1D, 4, (9,)))
    nn.init.ones_(seed.scale)  # type: ignore[arg-type]
    h = torch.randn(1, 4, 9, requires_grad=True)
    seed(h)[0, 0, 0].backward()
    assert h.grad is not None
    assert bool((h.grad[0, 0] != 0).all())


@pytest.mark.parametrize(
    ("family", "name", "extent"),
    [(Family.FEATURES, "attention", ()), (Family.FEATURES, "attention", (1,)), (Family.CONV1D, "mixing", (1,))],
)
def test_a_blueprint_that_does_not_fit_a_site_is_masked_and_refused_there(
    family: Family, name: str, extent: tuple[int, ...]
) -> None:
    site = SiteShape(family, 8, extent)
    entry = find_blueprint(family, name)
    assert not Catalogue.of([site]).fits[0, entry.id - 1]
    with pytest.raises(InputError, match="does not fit"):
        entry.build(site)


def test_unknown_blueprints_get_the_list_of_known_ones() -> None:
    with pytest.raises(InputError, match="choose one of: norm, depthwise, light, heavy, mixing, far_narrow"):
        find_blueprint(Family.CONV1D, "dense")
    assert find_blueprint(Family.CONV1D, 4).name == "heavy"


class Nothing(nn.Module):
    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(site.width))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.weight


@pytest.mark.parametrize(
    ("place", "name", "replace", "message"),
    [
        (0, "mine", False, "leave a gap in features; its next id is"),
        (99, "mine", False, "leave a gap in features; its next id is"),
        (2, "mine", False, "replace=True"),
        (2, "norm", True, "already"),
    ],
)
def test_registering_where_there_is_no_place_is_refused(place: int, name: str, replace: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        blueprint(Family.FEATURES, place, name, "test", replace=replace)(Nothing)


def test_a_blueprint_can_take_over_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    blueprint(Family.FEATURES, 2, "mine", "test", replace=True)(Nothing)
    built = find_blueprint(Family.FEATURES, "mine").build(SiteShape(Family.FEATURES, 8), silent=True)
    assert not built.get_parameter("weight").any()  # it cannot be silenced, and is left as it is
    assert find_blueprint(Family.FEATURES, "mine").cost(SiteShape(Family.FEATURES, 8)).params == 8
    with pytest.raises(InputError, match="low_rank"):
        find_blueprint(Family.FEATURES, "low_rank")


def test_impossible_sites_are_refused() -> None:
    with pytest.raises(InputError, match="positive"):
        SiteShape(Family.FEATURES, 0)
    with pytest.raises(InputError, match="does not fit the family"):
        SiteShape(Family.CONV2D, 4, (3,))


# The catalogue that a file was made with.


def check(stored: Any, present: dict[str, list[str]] | None = None) -> None:
    check_catalogue(stored, catalogue_names() if present is None else present, "the file", "make another file")


def test_names_stand_in_the_order_of_their_ids_for_the_families_asked_for() -> None:
    assert set(catalogue_names()) == {"conv1d", "conv2d", "features"}
    with one_more_kind(name="abacus") as kind:
        names = catalogue_names([Family.FEATURES, Family.FEATURES])
        assert list(names) == ["features"]
        assert names["features"][kind.id - 1] == "abacus"
        assert names["features"] == [entry.name for entry in blueprints_of(Family.FEATURES)]
        check(catalogue_names())


def test_a_kind_that_is_missing_added_or_renamed_is_named_with_its_place_and_the_remedy() -> None:
    before, place = catalogue_names(), len(blueprints_of(Family.FEATURES)) + 1
    with one_more_kind():
        longer = catalogue_names()
        with pytest.raises(OtherCatalogueError, match=f"features {place} was nothing, here it is 'shift'"):
            check(before)
    with pytest.raises(OtherCatalogueError) as error:
        check(longer)
    assert str(error.value) == (
        f"the file was made with another catalogue of blueprints (features {place} was 'shift', here it is nothing); "
        "register the same names under the same ids before it is loaded, or make another file"
    )
    swapped = before | {"features": before["features"][::-1]}
    with pytest.raises(OtherCatalogueError, match=r"features 1 was .*, here it is 'norm'.* and \d+ more"):
        check(swapped)


@pytest.mark.parametrize(
    ("stored", "kind", "message"),
    [
        (None, OtherCatalogueError, "older version and does not say with which blueprints it was made; make another"),
        ([], DamagedFileError, "does not list names"),
        ({"features": "norm"}, DamagedFileError, "does not list names"),
        ({"features": [1]}, DamagedFileError, "does not list names"),
    ],
)
def test_a_file_without_a_catalogue_or_with_something_else_gets_a_sentence(
    stored: Any, kind: type[InputError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        check(stored)
