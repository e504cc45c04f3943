"""A user's own numbers: losses of any unit, metrics of any range, and what a seed is worth in them."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.leyline import Blend, InputError, Op
from tests.api.growing.builders import LIFE, Script, germinate, grow, loss_of, make_grower

Evaluate = Callable[[Tensor, Tensor], Tensor]
HELD_OUT = slice(300, None)


def mean_squared(predicted: Tensor, wanted: Tensor) -> Tensor:
    return F.mse_loss(predicted, wanted)


def r_squared(predicted: Tensor, wanted: Tensor) -> Tensor:
    return 1 - F.mse_loss(predicted, wanted) / wanted.var()


def log_likelihood(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Of a normal distribution that is narrow enough for values on both sides of 0."""
    spread = 0.3
    return -((predicted - wanted) / spread).square().mean() / 2 - math.log(spread * math.sqrt(2 * math.pi))


def make_regression(mean: float) -> tuple[Tensor, Tensor]:
    """Values that scatter by about 1.4 around `mean`."""
    x = torch.randn(500, 4)
    return x, mean + (x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]))[:, None]


def grow_regression(metric: Evaluate, mean: float = 0.0, epochs: int = 16, **settings: Any) -> esper.Grower:
    """Train with Adam on the squared error; the mean is learned by a bias with a rate of its own."""
    torch.manual_seed(0)
    x, y = make_regression(mean)
    model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    bias = model.get_parameter("4.bias")
    others = [parameter for parameter in model.parameters() if parameter is not bias]
    optimizer = torch.optim.Adam([{"params": others, "lr": 1e-2}, {"params": [bias], "lr": 0.05 * mean or 1e-2}])

    def evaluate(network: nn.Module) -> Tensor:
        with torch.no_grad():
            return metric(network(x[HELD_OUT]), y[HELD_OUT])

    grower = make_grower(model=model, optimizer=optimizer, example=x[:4], evaluate=evaluate, **settings)
    for _ in range(epochs):
        for rows in torch.randperm(300).split(10):
            optimizer.zero_grad()
            F.mse_loss(grower.model(x[rows]), y[rows]).backward()
            optimizer.step()
        grower.step()
    return grower


def kept(grower: esper.Grower) -> list[esper.Decision]:
    return [decision for decision in grower.history if decision.op is Op.FOSSILIZE]


def test_seeds_are_kept_where_the_untrained_loss_is_far_above_any_trained_one() -> None:
    grower = grow_regression(mean_squared, mean=1000.0, measure="loss", controller="heuristic")
    assert grower.history[-1].value < 5  # and about 1,000,000 before training
    assert kept(grower)


@pytest.mark.parametrize(
    ("metric", "higher_is_better"), [(r_squared, True), (log_likelihood, True), (mean_squared, False)]
)
def test_any_metric_with_a_direction_can_guide_growth(metric: Evaluate, higher_is_better: bool) -> None:
    grower = grow_regression(metric, mean=1000.0, higher_is_better=higher_is_better, controller="heuristic")
    assert kept(grower)
    assert all(-1 <= decision.score <= 1 for decision in grower.history)
    assert all(0 < decision.contribution <= 1 for decision in kept(grower))


@pytest.mark.parametrize("settings", [{"measure": "loss"}, {"higher_is_better": True}])
def test_seeds_that_bring_nothing_are_culled_whatever_the_measure(settings: dict[str, Any]) -> None:
    grower = make_grower(evaluate=lambda: 3.0, controller="heuristic", **settings)
    assert {decision.op for decision in grow(grower, 18)} == {Op.WAIT, Op.GERMINATE, Op.CULL}


@pytest.mark.parametrize(
    ("settings", "factor", "shift"),
    [
        ({"measure": "loss"}, 1e-6, 0.0),
        ({"higher_is_better": False}, 1e3, -500.0),
        ({"higher_is_better": True}, -30.0, 100.0),
    ],
)
def test_growth_does_not_depend_on_the_units_of_a_metric(settings: dict[str, Any], factor: float, shift: float) -> None:
    known = {"measure": "loss"} if "measure" in settings else {"higher_is_better": False}

    def measured(evaluate: Callable[[nn.Module], float], **says: Any) -> list[tuple[Any, ...]]:
        torch.manual_seed(1)
        life = [germinate(0, blend=Blend.INSTANT), *LIFE[1:]]
        decisions = grow(make_grower(evaluate=evaluate, controller=Script(life), **says), 7)
        return [(decision.op, round(decision.score, 4), round(decision.contribution, 4)) for decision in decisions]

    given = measured(lambda model: factor * loss_of(model) + shift, **settings)
    assert str(given) == str(measured(loss_of, **known))  # as text, because NaN is not NaN
    assert given[-1][0] is Op.FOSSILIZE
    assert given[-1][2] != 0


def test_a_loss_counts_relative_to_its_present_value() -> None:
    values = iter([1e6, 5.0, 4.0, 3.0, 3.0, 2.0, 2.2, 2.0, 1.0, 4.0, 1.0])
    grower = make_grower(evaluate=lambda: next(values), measure="loss", controller=Script([germinate(0)]))
    decisions = grow(grower, 5)
    assert [decision.value for decision in decisions] == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert [decision.score for decision in decisions] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    assert str(decisions[-1]).startswith("waited: evaluate returned 1")
    assert grower.grafted.slot("1").contribution == 1.0  # a quarter of what there is without it: cut


def test_a_seed_that_takes_a_tenth_of_the_loss_brings_about_a_tenth() -> None:
    values = iter([1e6, 5.0, 4.0, 3.0, 3.0, 1.8, 2.0, 1.8])
    grower = make_grower(evaluate=lambda: next(values), measure="loss", controller=Script([germinate(0)]))
    grow(grower, 4)
    assert grower.grafted.slot("1").contribution == pytest.approx(math.log(2.0 / 1.8))


def test_a_perfect_loss_is_a_loss() -> None:
    values = iter([2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0])
    grower = make_grower(evaluate=lambda: next(values), measure="loss", controller=Script([germinate(0)]))
    assert [decision.score for decision in grow(grower, 4)] == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert grower.grafted.slot("1").contribution == 1.0


def test_a_loss_that_falls_below_zero_goes_on_as_a_metric_and_says_so() -> None:
    values = iter([2.0, 1.0, 0.5, 0.0, 0.0, -0.5, -0.5, -0.5, -1.0, -0.5, -1.0])
    grower = make_grower(evaluate=lambda: next(values), measure="loss", controller=Script(LIFE))
    grow(grower, 3)
    with pytest.warns(UserWarning, match="a loss of -0.5; .* as with higher_is_better=False"):
        decision = grow(grower, 1)[0]
    assert decision.rolled_back is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grow(grower, 1)
    assert 0 < grower.grafted.slot("1").contribution < 1


def test_a_metric_that_never_moved_tells_which_is_better() -> None:
    values = iter([-3.0] * 6 + [-3.5, -3.0])
    grower = make_grower(evaluate=lambda: next(values), higher_is_better=True, controller=Script(LIFE))
    assert [decision.score for decision in grow(grower, 4)] == [0.0] * 4
    assert grower.grafted.slot("1").contribution == 1.0


def test_metrics_are_judged_by_being_finite_only() -> None:
    values = iter([-1000.0, 0.5, 0.6, -1e12, math.nan, 0.6])
    grower = make_grower(evaluate=lambda: next(values), higher_is_better=True)
    undone = [decision.rolled_back for decision in grow(grower, 5)]
    assert undone == [None, None, None, "evaluate returned nan", None]


def test_a_loss_that_explodes_is_a_failure_not_an_error() -> None:
    values = iter([1.0, 0.0, 1e308, 0.0])
    decisions = grow(make_grower(evaluate=lambda: next(values), measure="loss"), 3)
    assert [decision.rolled_back is None for decision in decisions] == [True, False, True]
    assert decisions[1].score == pytest.approx(-1.0)


@pytest.mark.parametrize("other", [{}, {"measure": "loss"}, {"higher_is_better": True}])
def test_growth_that_was_measured_otherwise_is_refused(other: dict[str, Any]) -> None:
    state = make_grower(higher_is_better=False).state_dict()
    with pytest.raises(InputError, match="the saved growth was measured by 'lower is better'; here it is"):
        make_grower(**other, evaluate=lambda: 0.5).load_state_dict(state)


@pytest.mark.parametrize("settings", [{"measure": "loss"}, {"higher_is_better": False}])
def test_a_killed_growth_measures_on_the_same_scale(settings: dict[str, Any]) -> None:
    def start() -> esper.Grower:
        torch.manual_seed(2)
        return make_grower(evaluate=loss_of, controller="heuristic", **settings)

    grower = start()
    grow(grower, 5)
    state = grower.state_dict()
    resumed = start()
    resumed.load_state_dict(state)
    later = [str(decision.to_dict()) for decision in grow(resumed, 6)]
    torch.set_rng_state(state["random_state"])
    assert later == [str(decision.to_dict()) for decision in grow(grower, 6)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"measure": "loss", "higher_is_better": False}, "leave out one of the two"),
        ({"measure": "score", "higher_is_better": True}, "leave out one of the two"),
        ({"higher_is_better": "yes"}, "higher_is_better must be True or False; got 'yes'"),
        ({"measure": "loss", "evaluate": lambda: -1.5}, "has to start above 0. higher_is_better=True or False is for"),
        ({"evaluate": lambda: 27.3}, "higher_is_better=True or False is for metrics that may take any value"),
    ],
)
def test_contradictions_about_the_measure_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_grower(**settings)
