"""The grower in somebody's loop: measures, decides, acts, tells, and undoes what failed."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import take_snapshot
from esper.leyline import Blend, EventType, InputError, Op, Stage, TrainingFailedError
from esper.nissa import Hub, MemorySink
from esper.tamiyo import Heuristic, HeuristicSettings, Planting, Schedule
from tests.api.growing.builders import (
    LIFE,
    WAIT,
    Script,
    assert_same,
    cull,
    fossilize,
    germinate,
    grow,
    make_data,
    make_grower,
    steady,
    train,
)


def test_a_life_is_told_in_sentences() -> None:
    grower = make_grower(controller=Script(LIFE), budget=esper.Budget(params=1000))
    told = [str(decision) for decision in grow(grower, 7)]
    why = "two layers of twice the width, to refine 8 features"
    assert told[0] == f"germinated mlp in 1: +304 parameters, +544 FLOPs, 30 % of budget ({why})"
    assert told[2].endswith("; mlp in 1 has learned and begins to blend in")
    assert told[5].endswith("; mlp in 1 is blended in")
    assert told[6].startswith("kept mlp in 1 for good: it brings ")
    assert grower.grafted.slot("1").stage is Stage.FOSSILIZED
    assert [decision.op for decision in grower.history] == [Op.GERMINATE, *[Op.WAIT] * 5, Op.FOSSILIZE]
    assert grower.history[-1].added_params == 304
    assert grower.history[-1].flops == grower.history[-1].added_flops == 544
    assert grower.history[1].flops == 0


def test_a_branch_is_told_with_what_it_connects() -> None:
    grower = make_grower(controller=Script([germinate(1, 6, Blend.INSTANT)]))
    connects = "from the input of the model past all that is in between to 8 features"
    assert str(grow(grower, 1)[0]).endswith(f"(a wide hidden layer from the earliest tensor: it leads {connects})")


def test_places_are_told_with_what_a_seed_could_do_there() -> None:
    texts = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1))
    grower = make_grower(model=texts, example=torch.randint(9, (4, 5)), at=["0", "1"], evaluate=lambda: 0.5)
    assert grower.proposal.splitlines() == [
        "0 (4 features at 5 positions): no earlier tensor can be joined to it, so seeds can only refine it.",
        "1 (1 feature at 5 positions): a branch from the output of '0' can lead past all that is in between.",
    ]
    pictures = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    grower = make_grower(model=pictures, example=torch.randn(2, 1, 6, 5), at=["1"], evaluate=lambda: 0.5)
    connects = "a branch from the input of the model can lead past all that is in between."
    assert grower.proposal == f"1 (4 channels at 6 x 5 positions): {connects}"


def test_rules_do_not_ask_what_kept_seeds_bring() -> None:
    asked: dict[str, list[int]] = {}
    for controller in (
        Schedule([Planting(1, 0, 3, Blend.INSTANT)]),
        Script([germinate(0, 3, Blend.INSTANT), WAIT, fossilize(0)]),
    ):
        count = 0

        def evaluate() -> float:
            nonlocal count
            count += 1
            return 0.5

        grower = make_grower(controller=controller, evaluate=evaluate)
        asked[controller.name] = []
        for _ in range(5):
            count = 0
            grow(grower, 1)
            asked[controller.name].append(count)
        assert grower.grafted.slot("1").stage is Stage.FOSSILIZED
    # The rule keeps the seed as soon as it is measured; what a controller of one's own looks at, nobody knows.
    assert asked == {"schedule": [1, 2, 1, 1, 1], "script": [1, 2, 2, 2, 2]}


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_a_model_that_nothing_is_planted_in_runs_as_it_is() -> None:
    grower = make_grower(controller="never")
    assert hooks_of(grower.model) == 0
    grow(grower, 1)
    grower.grafted.germinate("3", "far_wide", "instant")  # by hand all the same
    x, _ = make_data()
    before = grower.model(x)
    grow(grower, 2)
    with grower.grafted.override_alpha("3", 0.0):
        without = grower.model(x)
    assert not torch.equal(grower.model(x), without)
    assert not torch.equal(grower.model(x), before)
    assert hooks_of(make_grower().model) > 0


class TwoInputs(nn.Module):
    """Takes two tensors, one by one or as one tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.out = nn.Linear(8, 3)

    def forward(self, left: Tensor | tuple[Tensor, Tensor], right: Tensor | None = None) -> Tensor:
        if isinstance(left, tuple):
            left, right = left
        assert right is not None
        result: Tensor = self.out(self.mix(left + right))
        return result


@pytest.mark.parametrize("kind", ["positional", "list", "keywords", "one tuple"])
def test_an_example_stands_for_the_arguments_of_the_model(kind: str) -> None:
    x, _ = make_data()
    examples = {"positional": (x, x), "list": [x, x], "keywords": {"left": x, "right": x}, "one tuple": ((x, x),)}
    grower = make_grower(model=TwoInputs(), at="auto", example=examples[kind], evaluate=lambda: 0.5)
    assert [site.path for site in grower.grafted.sites] == ["out"]


def test_a_family_is_told_by_a_mapping_where_axes_are_ambiguous() -> None:
    model = nn.Sequential(nn.Tanh(), nn.Linear(6, 3))
    settings: dict[str, Any] = {"model": model, "example": torch.randn(4, 5, 6), "evaluate": lambda: 0.5}
    with pytest.raises(InputError, match="does not tell which axis of its output"):
        make_grower(**settings, at=["0"])
    for family, width in (("features", 6), ("conv1d", 5)):
        grower = make_grower(**{**settings, "model": copy.deepcopy(model)}, at={"0": family})
        assert grower.grafted.sites[0].shape.width == width


def test_culling_and_a_free_slot_are_told_too() -> None:
    grower = make_grower(controller=Script([*LIFE[:6], cull(0)]))
    told = [str(decision) for decision in grow(grower, 9)]
    assert told[6].startswith("culled mlp in 1: it brings ")
    assert told[6].endswith(", -304 parameters, -544 FLOPs")
    assert told[8].endswith("; 1 is free again")


def test_evaluate_is_asked_with_and_without_each_blended_seed() -> None:
    scores: list[Tensor] = []

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            scores.append(model(make_data(1)[0]))
        return steady(model)

    grower = make_grower(controller=Script([germinate(0), germinate(1), *[WAIT] * 4]), evaluate=evaluate)
    assert len(scores) == 1
    asked = []
    for _ in range(6):
        scores.clear()
        grow(grower, 1)
        asked.append(len(scores))
    # Asked once, without each blended seed, and with each one whose alpha is to rise at that alpha.
    assert asked == [1 + blended + rising for blended, rising in ((0, 0), (0, 0), (0, 1), (1, 2), (2, 2), (2, 1))]
    assert len({tuple(outputs.flatten().tolist()) for outputs in scores}) == 4


def test_contributions_are_score_with_minus_score_without() -> None:
    given = iter([0.1] * 5 + [0.7, 0.4, 0.7])
    grower = make_grower(controller=Script(LIFE), evaluate=lambda: next(given))
    grow(grower, 4)
    assert grower.grafted.slot("1").contribution == pytest.approx(0.3)


def test_counterfactuals_see_the_same_random_numbers_and_leave_the_dice_alone() -> None:
    drawn: list[float] = []

    def evaluate() -> float:
        drawn.append(float(torch.rand(())))
        return drawn[-1]

    grower = make_grower(controller=Script(LIFE), evaluate=evaluate)
    grow(grower, 3)
    train(grower)
    state = torch.get_rng_state()
    once = torch.rand(())
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    grower.step()
    assert drawn[-1] == drawn[-2] == once
    assert torch.equal(torch.get_rng_state(), after)


def test_the_same_seed_grows_the_same_network() -> None:
    def weights() -> dict[str, Tensor]:
        torch.manual_seed(3)
        grower = make_grower(controller="random", seed=5)
        grow(grower, 12)
        return take_snapshot(grower.grafted).tensors

    assert_same(weights(), weights())


@pytest.mark.parametrize("poison", ["weights", "seed", "evaluate", "train loss", "exploding", "collapsing"])
def test_a_failed_epoch_is_undone_bit_for_bit(poison: str) -> None:
    score = {"value": 0.6}
    grower = make_grower(controller=Script(LIFE), evaluate=lambda: score["value"])
    grow(grower, 4)
    for _ in range(2):
        train(grower)
        grower.step(loss=0.5)
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    good, state = take_snapshot(grower.grafted), copy.deepcopy(optimizer.state_dict())
    train(grower)
    loss: float | None = None
    if poison in ("weights", "seed"):
        part = grower.grafted.host if poison == "weights" else grower.grafted.slots
        next(part.parameters()).data.fill_(math.nan)
    elif poison == "evaluate":
        score["value"] = math.nan
    elif poison == "collapsing":
        score["value"] = 0.1
    else:
        loss = math.inf if poison == "train loss" else 500.0
    decision = grower.step(loss=loss)
    assert decision.rolled_back is not None
    assert str(decision).startswith("rolled back to the last good epoch: ")
    assert_same(take_snapshot(grower.grafted).tensors, good.tensors)
    assert_same(optimizer.state_dict(), state)
    assert grower.grafted.slot("1").stage is Stage.HOLDING
    score["value"] = 0.6
    assert grow(grower, 1)[0].rolled_back is None


def test_a_return_takes_back_the_decision_before_it() -> None:
    values = iter([0.5, 0.5, math.nan, 0.5])
    grower = make_grower(controller=Script([germinate(0)]), evaluate=lambda: next(values))
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    owned = len(optimizer.param_groups[0]["params"])
    grow(grower, 2)
    assert not grower.grafted.slot("1").occupied
    assert len(optimizer.param_groups[0]["params"]) == owned
    assert grow(grower, 1)[0].rolled_back is None


def test_the_third_failure_in_a_row_raises_with_the_model_at_its_last_good_epoch() -> None:
    values = iter([0.5, 0.5, math.nan, math.nan, 0.5, math.nan, math.nan, math.nan])
    grower = make_grower(evaluate=lambda: next(values))
    grow(grower, 6)
    good = take_snapshot(grower.grafted)
    train(grower)
    with pytest.raises(TrainingFailedError, match="3 epochs in a row failed, the last because evaluate returned nan"):
        grower.step()
    assert_same(take_snapshot(grower.grafted).tensors, good.tensors)


def test_losses_below_zero_are_judged_by_being_finite_only() -> None:
    grower = make_grower()
    for loss in (-3.0, -0.1, 2.0):
        train(grower)
        assert grower.step(loss=loss).rolled_back is None
    train(grower)
    assert grower.step(loss=math.nan).rolled_back == "training loss is nan"


def test_the_hub_hears_of_moves_and_returns() -> None:
    memory = MemorySink()
    values = iter([0.5, 0.5, 0.5, math.nan])
    grow(make_grower(controller=Script(LIFE), evaluate=lambda: next(values), hub=Hub([memory])), 3)
    kinds = [event.event_type for event in memory.events]
    assert kinds == [EventType.SEED_TRANSITION, EventType.GOVERNOR_ROLLBACK]


def test_the_horizon_is_open_unless_epochs_are_told() -> None:
    grower = make_grower()
    grow(grower, 7)
    assert grower.situation.episode_length == 35
    told = make_grower(epochs=8)
    grow(told, 10)
    assert (told.situation.episode_length, int(told.situation.steps_left)) == (10, 0)


def test_the_heuristic_grows_a_model_by_itself() -> None:
    grower = make_grower(at="auto", controller="heuristic", epochs=20)
    decisions = grow(grower, 12)
    assert [decision.op for decision in decisions[:2]] == [Op.WAIT, Op.GERMINATE]
    assert any(decision.op in (Op.FOSSILIZE, Op.CULL) for decision in decisions) or grower.grafted.table.proven.any()


def test_a_grower_says_that_the_heuristic_plants_nothing_in_a_transformer() -> None:
    def ops(**settings: Any) -> list[Op]:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.Sequential(nn.Linear(3, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        optimizer, x = torch.optim.AdamW(model.parameters()), torch.zeros(2, 4, 3)
        grower = esper.Grower(model, example=x, optimizer=optimizer, evaluate=lambda: 0.5, epochs=8, **settings)
        result = []
        for _ in range(4):
            grower.model(x).sum().backward()
            optimizer.step()
            result.append(grower.step().op)
        return result

    with pytest.warns(UserWarning, match=r"nothing will grow: .*in_sequences=True"):
        assert set(ops()) == {Op.WAIT}
    assert Op.GERMINATE in ops(controller=Heuristic(HeuristicSettings(in_sequences=True)))


@pytest.mark.parametrize("settings", [{"controller": "never"}, {"budget": esper.Budget(params=0)}])
@pytest.mark.filterwarnings("ignore:no seed fits into the budget")
def test_where_nothing_can_grow_training_goes_on_and_failures_are_undone(settings: dict[str, Any]) -> None:
    values = iter([0.5, 0.6, math.nan, 0.7])
    grower = make_grower(evaluate=lambda: next(values), **settings)
    decisions = grow(grower, 3)
    assert [decision.op for decision in decisions] == [Op.WAIT] * 3
    assert [decision.rolled_back is None for decision in decisions] == [True, False, True]
    assert [decision.epoch for decision in decisions] == [1, 2, 3]
    assert float(grower.situation.score) == pytest.approx(0.7)


@pytest.mark.filterwarnings("ignore:no seed fits into the budget")
def test_a_controller_that_can_do_nothing_is_not_asked() -> None:
    controller = Script([germinate(0)])
    grow(make_grower(controller=controller, budget=esper.Budget(params=0)), 3)
    assert controller.state_dict() == {"next": 0}


def test_seeds_can_be_planted_by_hand_where_the_controller_never_grows() -> None:
    grower = make_grower(controller="never")
    grow(grower, 2)
    grower.grafted.germinate("1", "mlp")
    grower.grafted.begin_epoch()
    told = [str(decision) for decision in grow(grower, 6)]
    assert told[1].endswith("; mlp in 1 has learned and begins to blend in")
    assert told[4].endswith("; mlp in 1 is blended in")
    assert math.isfinite(grower.grafted.slot("1").contribution)
    grower.grafted.cull("1")
    assert str(grow(grower, 2)[-1]).endswith("; 1 is free again")


def test_flops_have_a_price_if_one_is_asked_for() -> None:
    rents = {}
    for flop_price in (0.0, 0.1, 0.2):
        grower = make_grower(controller=Script(LIFE), flop_price=flop_price)
        grow(grower, 7)
        decision = grower.history[-1]
        rents[flop_price] = decision.rent
        added = torch.tensor([[decision.params], [decision.flops]])
        assert decision.rent == pytest.approx(float(grower.situation.rent(*added)))
    host = 2 * (6 * 8 + 8 * 8 + 8 * 3) + 2 * 8  # products, and two activations of eight
    assert rents[0.1] - rents[0.0] == pytest.approx(0.1 * 544 / host, rel=1e-5)
    assert rents[0.2] - rents[0.0] == pytest.approx(2 * (rents[0.1] - rents[0.0]), rel=1e-5)
