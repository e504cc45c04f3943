"""Where slots can go: one forward pass finds the shapes, and says in one line where there can be no slot."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Family, SiteShape, graft
from esper.kasmina.probe import probe_sites
from esper.leyline import InputError
from tests.kasmina.builders import make_batch, make_mlp


class TwoInputs(nn.Module):
    """A module with keyword inputs, a tuple-valued part, an integer-valued part and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 6)
        self.right = nn.Linear(4, 6)
        self.recurrent = nn.LSTM(6, 6, batch_first=True)
        self.pick = Pick()
        self.scalar = Total()
        self.unused = nn.Linear(6, 6)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        h: Tensor = self.recurrent(self.left(a) + self.right(b))[0]
        self.pick(h)
        self.scalar(h)
        return h


class Pick(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.argmax(-1)


class Total(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.sum((1, 2))


def two_inputs() -> dict[str, Tensor]:
    return {"a": torch.randn(3, 5, 4), "b": torch.randn(3, 5, 4)}


def block(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Sequential(*layers))


def test_probing_leaves_modes_statistics_and_random_state_alone() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    model[1].eval()
    before, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    graft(model, at=["0"], example=make_batch()[0])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (model.training, model[1].training, model[2].training) == (True, False, True)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "path", "example", "expected"),
    [
        (nn.Sequential(nn.Conv1d(2, 4, 3)), "0", (5, 2, 9), SiteShape(Family.CONV1D, 4, (7,))),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()), "0", (5, 2, 9, 8), SiteShape(Family.CONV2D, 4, (7, 6))),
        (block(nn.Conv1d(2, 4, 3), nn.ReLU()), "0", (5, 2, 9), SiteShape(Family.CONV1D, 4, (7,))),
        (block(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4)), "0", (5, 2, 9), SiteShape(Family.CONV1D, 4, (9,))),
        (block(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 2)), "0", (5, 2, 9, 8), SiteShape(Family.CONV2D, 4, (8, 7))),
        (nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU()), "1", (5, 2, 9, 8), SiteShape(Family.CONV2D, 4, (9, 8))),
        (nn.Sequential(nn.Linear(3, 8)), "0", (5, 3), SiteShape(Family.FEATURES, 8)),
        (nn.Sequential(nn.Linear(3, 8)), "0", (5, 7, 3), SiteShape(Family.FEATURES, 8, (7,))),
        (nn.Sequential(nn.LayerNorm(8)), "0", (5, 2, 2, 8), SiteShape(Family.FEATURES, 8)),
    ],
)
def test_shapes_are_found_by_one_probe(
    model: nn.Module, path: str, example: tuple[int, ...], expected: SiteShape
) -> None:
    assert probe_sites(model, [path], torch.randn(example))[path][0] == expected


def test_outputs_without_negative_values_are_told_from_others() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU())
    found = probe_sites(model, ["0", "1", "2", "3"], torch.randn(64, 3))
    assert [found[name].rectified for name in "0123"] == [False, True, False, False]
    assert [site.rectified for site in graft(model, at=["0", "1"], example=torch.randn(64, 3)).sites] == [False, True]


@pytest.mark.parametrize("example", [[torch.randn(8, 6), torch.randint(3, (8,))], torch.randn(8, 5), (), {"y": 1}])
def test_an_example_that_the_model_cannot_take_is_said_in_one_line(example: Any) -> None:
    with pytest.raises(InputError, match="could not run on the example") as error:
        graft(make_mlp(), at=["1"], example=example)
    assert "\n" not in str(error.value)


def test_time_first_layers_get_no_attention() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16))
    assert not graft(model, at=["0"], example=torch.randn(5, 4, 8)).catalogue.fits[0, 4]


def test_a_transformer_encoder_with_a_padding_mask_can_be_probed() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[0, 3:] = True
    grafted = graft(model, at=["layers.0"], example={"src": torch.randn(4, 5, 8), "src_key_padding_mask": mask})
    assert (grafted.sites[0].shape.width, grafted.sites[0].shape.extent) == (8, (5,))


def test_a_sequence_whose_first_axis_is_not_the_batch_gets_no_attention() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=False)
    model = nn.Sequential(nn.Identity(), layer)

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.inner(x.transpose(0, 1))
            return result

    grafted = graft(TimeFirst(), at=["inner.1"], example=torch.randn(3, 5, 8))
    assert (grafted.sites[0].shape.width, grafted.sites[0].shape.extent) == (8, ())
    assert not grafted.catalogue.fits[0, 4]


def test_keyword_and_positional_examples_work() -> None:
    keywords = two_inputs()
    assert graft(TwoInputs(), at=["left"], example=keywords).sites[0].shape.extent == (5,)
    assert graft(TwoInputs(), at=["right"], example=list(keywords.values())).sites[0].shape.width == 6


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (["nowhere"], "unknown submodule 'nowhere'; choose one of: left, right"),
        (["recurrent"], "its output is a tuple, not one tensor. Slots can go after: left, right"),
        (["pick"], "torch.int64, not a plain tensor of floating-point numbers. Slots can go after: left, right"),
        (["scalar"], "no width beside the batch. Slots can go after: left, right"),
        ({"scalar": "features"}, "no width beside the batch"),
        (["unused"], "did not call it on the example"),
        ({"left": "tensor"}, "unknown family 'tensor'; choose one of: conv2d, conv1d, features"),
        ({"left": "conv2d"}, "does not fit the family conv2d"),
        ([], "must list one or more"),
        (["left", "left"], "must list one or more different"),
        ("left", "must list one or more"),
        (None, "must list one or more"),
        ([nn.Linear(2, 2)], "must list one or more"),
    ],
)
def test_places_where_no_slot_can_go_get_one_clear_error(at: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        graft(TwoInputs(), at=at, example=two_inputs())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_ambiguous_axes_are_asked_about_and_can_be_told() -> None:
    model = nn.Sequential(nn.Identity())
    with pytest.raises(InputError, match="conv1d"):
        graft(model, at=["0"], example=torch.randn(2, 4, 5))
    square = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Linear(8, 8)))
    with pytest.raises(InputError, match="which axis"):
        graft(square, at=["0"], example=torch.randn(2, 3, 8, 8))
    with pytest.raises(InputError, match="which axis"):
        graft(nn.Sequential(nn.Conv3d(2, 4, 1)), at=["0"], example=torch.randn(2, 2, 3, 4, 5))
    for family, width in (("conv1d", 4), ("features", 5)):
        grafted = graft(nn.Sequential(nn.Identity()), at={"0": family}, example=torch.randn(2, 4, 5))
        assert grafted.sites[0].shape.width == width


def test_one_submodule_under_two_names_is_refused() -> None:
    shared = nn.Linear(4, 4)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = shared
            self.again = nn.Sequential(shared)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.again(self.first(x))
            return result

    with pytest.raises(InputError, match="another name too"):
        graft(Twice(), at=["first", "again.0"], example=torch.randn(2, 4))


def test_a_submodule_called_with_different_shapes_is_refused() -> None:
    class Stretchy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(x).sum() + self.act(x[:, :2])  # type: ignore[no-any-return]

    with pytest.raises(InputError, match="different shapes"):
        graft(Stretchy(), at=["act"], example=torch.randn(2, 4))
