"""Merit: the gradient that a would-be seed would get, seen without planting it."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from esper.kasmina import Family, GraftedModel, SlotTable, blueprints_of, find_blueprint, graft
from esper.kasmina.merit import PassWatch, WouldBeSeeds, measure_merit
from esper.leyline import Blend, Stage
from tests.kasmina.builders import grow_until, make_batch, make_grafted


def watched(model: GraftedModel, samples: int = 8, scale: float = 1.0) -> PassWatch:
    """What is seen of one training pass."""
    x, y = make_batch()
    with PassWatch(model, samples) as seen:
        (scale * cross_entropy(model(x), y)).backward()
    return seen


def look(model: GraftedModel, scale: float = 1.0) -> Tensor:
    return measure_merit(model, watched(model, scale=scale), WouldBeSeeds(), 0)


def gradient_when_planted(model: GraftedModel, slot: int, kind: int) -> Tensor:
    """The absolute gradient, summed up, that the very same seed gets once it is planted in a copy of the model."""
    grown, site = copy.deepcopy(model), model.sites[slot]
    grown.germinate(site.path, kind, Blend.INSTANT)
    planted = grown.slots[slot].get_submodule("seed")
    would_be = WouldBeSeeds().find(
        site, find_blueprint(site.shape.family, kind), 0, (torch.device("cpu"), torch.float32)
    )
    planted.load_state_dict(would_be.module.state_dict())
    grown.zero_grad()
    x, y = make_batch()
    cross_entropy(grown(x), y).backward()
    gradients = [parameter.grad.flatten() for parameter in planted.parameters() if parameter.grad is not None]
    return torch.cat(gradients).abs().sum()


def connecting(model: GraftedModel) -> Tensor:
    """`[S, B]` bool: the kinds that connect and fit."""
    reads = [blueprint.reads is not None for blueprint in blueprints_of(Family.FEATURES)]
    return model.catalogue.fits & torch.tensor(reads)


def test_merit_is_the_gradient_of_the_seed_that_is_not_planted() -> None:
    model = make_grafted()
    seen = watched(model)
    sums = torch.full(model.catalogue.fits.shape, torch.nan)
    for slot, kind in connecting(model).nonzero().tolist():
        sums[slot, kind] = gradient_when_planted(model, slot, kind + 1)
    arriving = [seen.gradient_at(slot) for slot in range(len(model.sites))]
    scale = torch.stack([gradient.square().sum() for gradient in arriving if gradient is not None]).mean().sqrt()
    merit = measure_merit(model, seen, WouldBeSeeds(), 0)
    torch.testing.assert_close(merit, sums / scale, equal_nan=True)
    assert (merit[connecting(model)] > 0).all()
    assert connecting(model).sum() > 4


def test_merit_beside_a_seed_that_has_learned_counts_that_seed() -> None:
    model = make_grafted()
    model.germinate("1", "far_narrow", Blend.INSTANT)
    grow_until(model, "1", Stage.HOLDING)
    merit = look(model)
    assert merit[0].isnan().all()
    assert torch.equal(merit[1].isfinite(), connecting(model)[1])
    alone = copy.deepcopy(model)
    alone.follow(SlotTable.empty(1, 2))
    assert not torch.allclose(look(alone)[1], merit[1], equal_nan=True)


def test_merit_does_not_depend_on_the_scale_of_the_loss() -> None:
    model = make_grafted()
    torch.testing.assert_close(look(model, 1000.0), look(model), equal_nan=True)


def test_looking_changes_nothing() -> None:
    model, twin = make_grafted(), make_grafted()
    twin.load_state_dict(model.state_dict())
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()]
    before = torch.get_rng_state()
    look(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()] == hooks
    x, y = make_batch()
    cross_entropy(twin(x), y).backward()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(mine.grad is not None and mine.grad.equal(other.grad) for mine, other in pairs)  # type: ignore[arg-type]


def test_would_be_seeds_are_the_same_every_time_and_differ_by_variant() -> None:
    model = make_grafted()
    seen = watched(model)
    first, again = (measure_merit(model, seen, WouldBeSeeds(keep=keep), 3) for keep in (True, False))
    assert torch.equal(first.nan_to_num(), again.nan_to_num())
    assert not torch.equal(first.nan_to_num(), measure_merit(model, seen, WouldBeSeeds(), 4).nan_to_num())


def test_only_passes_that_are_trained_on_are_seen() -> None:
    model = make_grafted(isolation="shadow")
    model.germinate("1", "far_narrow")
    model.begin_epoch()
    x, y = make_batch()
    other = torch.zeros_like(x)
    with PassWatch(model) as seen:
        assert seen.gradient_at(1) is None
        cross_entropy(model(x), y).backward()
        first = seen.gradient_at(1)
        model(other)  # nobody differentiates it
        with torch.no_grad():
            model(other)
        cross_entropy(model.shadow("1", other), y).backward()
        assert first is not None
        assert seen.gradient_at(1) is first
        cross_entropy(model(other), y).backward()
        last = seen.gradient_at(1)
        assert last is not first
    cross_entropy(model(x), y).backward()  # no longer watched
    assert seen.gradient_at(1) is last


def test_only_the_first_samples_are_kept_and_later_writes_do_not_reach_them() -> None:
    """The source is the input, into which a host writes after it was seen."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            read = self.first(x)
            hidden = self.second(read.tanh())
            read.zero_()
            result: Tensor = self.head(hidden.relu_())
            return result

    host = Writes()
    model = graft(host, at=["first", "second"], example=make_batch()[0], sources={"second": {"near": "first"}})
    x, _ = make_batch()
    with torch.no_grad():
        expected = host.first(x[:3])
        closed = host.second(expected.tanh()) < 0
    seen = watched(model, samples=3)
    near = dict(model.sites[1].sources)["near"]
    torch.testing.assert_close(seen.tensor_at(near), expected)
    gradient = seen.gradient_at(1)
    assert gradient is not None
    assert gradient.shape == (3, 6)
    # At the slot, in front of the ReLU that writes, nothing arrives where it is closed.
    assert closed.any()
    assert not gradient[closed].any()
    assert gradient.any()


def test_a_submodule_that_runs_twice_has_no_merit() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.body(self.body(x).tanh()))
            return result

    model = graft(Twice(), at=["body", "head"], example=make_batch()[0])
    seen = watched(model)
    assert seen.gradient_at(0) is None
    assert seen.gradient_at(1) is not None
    merit = measure_merit(model, seen, WouldBeSeeds(), 0)
    assert merit[0].isnan().all()
    assert torch.equal(merit[1].isfinite(), connecting(model)[1])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_slot_that_no_gradient_reaches_has_no_merit(frozen: bool) -> None:
    host = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    host[0].requires_grad_(not frozen)
    merit = look(graft(host, at=["1", "2"], example=make_batch()[0]))
    assert merit[0].isnan().all() == frozen
    assert merit[1].isfinite().any()
