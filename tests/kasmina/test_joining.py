"""Branches whose number of positions differs from that of the tensor they are added to."""

import pytest
import torch

from esper.kasmina.taps import fit_positions


@pytest.mark.parametrize("shape", [(2, 5), (2, 7, 5), (2, 5, 7), (2, 5, 7, 3)])
def test_a_branch_that_fits_is_left_alone(shape: tuple[int, ...]) -> None:
    delta = torch.randn(shape)
    assert fit_positions(delta, torch.zeros(shape)) is delta


def test_too_many_positions_are_averaged() -> None:
    delta = torch.tensor([[[1.0, 3.0, 5.0, 7.0]]])
    assert fit_positions(delta, torch.zeros(1, 1, 2)).tolist() == [[[2.0, 6.0]]]
    assert torch.equal(
        fit_positions(torch.arange(9.0).view(1, 1, 3, 3), torch.zeros(1, 1, 1, 1)), torch.full((1, 1, 1, 1), 4.0)
    )


def test_too_few_positions_are_repeated() -> None:
    delta = torch.tensor([[[1.0, 2.0]]])
    assert fit_positions(delta, torch.zeros(1, 1, 4)).tolist() == [[[1.0, 1.0, 2.0, 2.0]]]


def test_each_axis_of_a_picture_is_fitted_by_itself() -> None:
    delta = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]).view(1, 1, 4, 2)
    fitted = fit_positions(delta, torch.zeros(1, 1, 2, 4))
    assert fitted[0, 0].tolist() == [[2.0, 2.0, 3.0, 3.0], [6.0, 6.0, 7.0, 7.0]]
