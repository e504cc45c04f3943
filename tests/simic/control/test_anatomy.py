"""Observations of any host: what stands where, padding, and statistics that slots and kinds share."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from esper.kasmina import find_blueprint, num_blueprints
from esper.leyline import InputError, Stage
from esper.simic.control.anatomy import BLOCKS, Anatomy, num_features, observe_anatomy
from esper.simic.control.normalization import SharedMeanStd
from esper.tamiyo import Random
from esper.tolaria import EpisodeSettings, Population, Situation
from tests.worlds import host_task

HOST, SLOT, KIND = (tuple(column.name for column in block.columns) for block in BLOCKS)
SETTINGS = EpisodeSettings(length=8, price=(0.01, 0.1), budget=400)


@cache
def lived(host: str = "conv1d", steps: int = 5) -> Situation:
    """Three hosts in the middle of random lives."""
    population, dice = Population(host_task(host), 3, SETTINGS, executor="loop"), Random()
    population.start(range(3))
    dice.reset(3, 0)
    for _ in range(steps):
        population.step(dice.decide(population.situation))
    return population.situation


def columns(situation: Situation) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Features by name: `[N]`, `[N, S]` and `[N, S, B]`."""
    parts = Anatomy(*situation.catalogue.fits.shape).split(observe_anatomy(situation))
    host, slots, kinds = (
        dict(zip(names, part.unbind(-1), strict=True)) for names, part in zip((HOST, SLOT, KIND), parts, strict=True)
    )
    return host, slots, kinds


@pytest.mark.parametrize("host", ["mlp", "conv1d", "conv2d", "transformer"])
def test_features_are_finite_and_within_the_bounds_of_their_columns(host: str) -> None:
    situation = lived(host)
    for block, features in zip(BLOCKS, columns(situation), strict=True):
        for column in block.columns:
            values = features[column.name]
            assert values.isfinite().all()
            assert (values >= column.low).all()
            assert (values <= column.high).all()


def test_kinds_are_described_by_what_they_connect_mix_and_cost() -> None:
    situation = lived()
    _, _, kinds = columns(situation)
    slot, family = 2, situation.sites[2].shape.family
    place = {name: find_blueprint(family, name).id - 1 for name in ("norm", "mixing", "heavy", "far_wide")}
    shown = {
        name: tuple(float(kinds[column][0, slot, index]) for column in ("connects", "channels", "positions"))
        for name, index in place.items()
    }
    assert shown == {"norm": (0, 0, 0), "mixing": (0, 0, 1), "heavy": (0, 1, 0.5), "far_wide": (1, 1, 0.5)}
    # From the input to the third of S slots.
    assert float(kinds["reach"][0, slot, place["far_wide"]]) == pytest.approx(3 / len(situation.sites))
    assert not kinds["reach"][:, :, place["heavy"]].any()
    params = situation.catalogue.params[slot, place["heavy"]] / situation.host_params
    torch.testing.assert_close(kinds["params"][:, slot, place["heavy"]], params.expand(3))
    rents = 10 * situation.price * params  # of 100 points, and 1 is ten
    torch.testing.assert_close(kinds["rent"][:, slot, place["heavy"]], rents)


def test_slots_tell_how_near_the_next_seeds_are_and_what_they_meet() -> None:
    situation = lived()
    occupied = torch.tensor([[0, 1, 0, 0, 1, 0, 0]], dtype=torch.bool).expand(3, -1)
    stage = torch.where(occupied, int(Stage.FOSSILIZED), int(Stage.DORMANT))
    table = replace(situation.table, stage=stage, blueprint=occupied.long())
    _, slots, _ = columns(replace(situation, table=table))
    torch.testing.assert_close(slots["seed_before"][0], torch.tensor([0, 0, 1, 1 / 2, 1 / 3, 1, 1 / 2]))
    torch.testing.assert_close(slots["seed_behind"][0], torch.tensor([1, 1 / 3, 1 / 2, 1, 0, 0, 0]))
    assert slots["rectified"][0].tolist() == [0, 1, 0, 1, 0, 1, 0]  # convolution and ReLU by turns, then the output


def test_order_and_passes_are_told_where_they_are_known() -> None:
    situation = lived()
    host, _, _ = columns(replace(situation, input_correlation=0.25, passes=100.0))
    shown = {name: float(host[name][0]) for name in ("ordered_known", "ordered", "passes_known", "passes")}
    assert shown == {"ordered_known": 1.0, "ordered": 0.25, "passes_known": 1.0, "passes": 2.0}
    host, _, _ = columns(replace(situation, input_correlation=torch.nan, passes=torch.nan))
    assert not any(float(host[name].abs().max()) for name in shown)


def test_what_does_not_fit_is_all_zero() -> None:
    situation = lived()
    _, _, kinds = columns(situation)
    assert (~situation.catalogue.fits).any()
    for values in kinds.values():
        assert not values[:, ~situation.catalogue.fits].any()
    assert torch.equal(kinds["fits"].bool(), situation.catalogue.fits.expand(3, -1, -1))


def test_sizes_are_relative_to_the_host() -> None:
    situation = lived()
    larger = replace(
        situation,
        host_params=10 * situation.host_params,
        host_flops=10 * situation.host_flops,
        budget=10 * situation.budget,
        catalogue=replace(
            situation.catalogue, params=10 * situation.catalogue.params, flops=10 * situation.catalogue.flops
        ),
        table=replace(situation.table, params=10 * situation.table.params),
    )
    torch.testing.assert_close(observe_anatomy(larger), observe_anatomy(situation))


def test_padding_adds_nothing_that_exists() -> None:
    rows = observe_anatomy(lived())
    small = Anatomy.of_width(rows.shape[1])
    large = Anatomy(small.slots + 2, small.kinds)
    padded = large.pad(rows)
    assert torch.equal(large.pad(padded), padded)
    for before, after in zip(small.split(rows), large.split(padded), strict=True):
        place = tuple(slice(size) for size in before.shape)
        assert torch.equal(after[place], before)
        assert float(after.abs().sum()) == pytest.approx(float(before.abs().sum()))
    assert large.present(padded).sum() == small.present(rows).sum()
    with pytest.raises(InputError, match="does not fit into"):
        small.pad(padded)


def test_a_width_that_no_host_has_is_refused() -> None:
    assert Anatomy.of_width(Anatomy(4, 9).width, 9) == Anatomy(4, 9)
    with pytest.raises(InputError, match="no host has observations of 5"):
        Anatomy.of_width(5)


def mixed_rows() -> tuple[Anatomy, Tensor]:
    """Hosts of two shapes in one batch."""
    parts = [observe_anatomy(lived(host)) for host in ("conv1d", "mlp")]
    largest = max(Anatomy.of_width(part.shape[1]).slots for part in parts) + 1
    anatomy = Anatomy(largest, num_blueprints())
    return anatomy, torch.cat([anatomy.pad(part) for part in parts])


def test_statistics_are_those_of_each_feature_over_all_that_exists() -> None:
    anatomy, rows = mixed_rows()
    statistics = SharedMeanStd(anatomy)
    for part in rows.split(2):
        statistics.update(part)
    host, slots, kinds = anatomy.split(rows.double())
    expected = [host, slots[slots[..., 0] > 0], kinds[kinds[..., 0] > 0]]
    torch.testing.assert_close(statistics.mean, torch.cat([part.mean(0) for part in expected]))
    torch.testing.assert_close(statistics.var, torch.cat([part.var(0, correction=0) for part in expected]))
    counts = [float(len(part)) for part, names in zip(expected, (HOST, SLOT, KIND), strict=True) for _ in names]
    assert statistics.count.tolist() == counts


def test_normalised_features_leave_out_padding_flags_and_what_never_varies() -> None:
    anatomy, rows = mixed_rows()
    statistics = SharedMeanStd(anatomy)
    statistics.update(rows)
    normal = statistics.normalize(rows)
    flags = anatomy.flags
    assert torch.equal(normal[:, flags], rows[:, flags])
    assert not normal[~anatomy.present(rows)].any()
    constant = statistics.var[anatomy.feature] == 0
    assert (constant & ~flags).any()
    assert not normal[:, constant & ~flags].any()
    # A feature that has varied has mean 0 and deviation 1 over what exists.
    score = normal[:, HOST.index("score")]
    torch.testing.assert_close(score.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(score.std(correction=0), torch.tensor(1.0), atol=1e-3, rtol=0)
    # The same host is normalised alike, however far it is padded.
    other = Anatomy(anatomy.slots + 3, anatomy.kinds)
    torch.testing.assert_close(statistics.of(other).normalize(other.pad(rows)), other.pad(normal))


def test_a_row_with_nan_is_left_out_of_the_statistics() -> None:
    anatomy, rows = mixed_rows()
    statistics, whole = SharedMeanStd(anatomy), SharedMeanStd(anatomy)
    spoiled = rows.clone()
    spoiled[0, 0] = torch.nan
    statistics.update(spoiled)
    whole.update(rows[1:])
    torch.testing.assert_close(statistics.mean, whole.mean)
    assert statistics.state_dict()["mean"].shape == (num_features(),)
