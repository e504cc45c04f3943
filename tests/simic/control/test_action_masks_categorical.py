"""One masked categorical distribution: exact, finite in half precision, never invalid."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import InputError, InvalidStateMachineError
from esper.simic.control import MaskedCategorical


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_stays_finite_and_gives_invalid_actions_nothing(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (30.0 * torch.randn(64, 7)).to(dtype).requires_grad_()
    mask = torch.rand(64, 7) < 0.5
    mask[:, 3] = True
    distribution = MaskedCategorical(logits, mask)
    assert (distribution.log_probs.exp()[~mask] < 1e-6).all()
    log_probs = distribution.log_prob(distribution.mode)
    (log_probs.sum() + distribution.normalized_entropy().sum()).backward()
    assert logits.grad is not None
    for tensor in (distribution.log_probs, distribution.entropy(), distribution.normalized_entropy(), logits.grad):
        assert tensor.isfinite().all()


@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=7),
    data=st.data(),
)
def test_sampled_and_most_probable_actions_are_valid(logits: list[float], data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)).filter(any))
    distribution = MaskedCategorical(torch.tensor(logits).repeat(32, 1), torch.tensor(mask).repeat(32, 1))
    assert distribution.mask.gather(-1, distribution.sample().unsqueeze(-1)).all()
    assert distribution.mask.gather(-1, distribution.mode.unsqueeze(-1)).all()
    assert (distribution.normalized_entropy() >= 0).all()
    assert (distribution.normalized_entropy() <= 1).all()


@pytest.mark.parametrize("valid", range(2, 8))
def test_uniform_over_the_valid_actions_has_normalised_entropy_one(valid: int) -> None:
    mask = torch.arange(7) < valid
    distribution = MaskedCategorical(torch.zeros(7), mask)
    torch.testing.assert_close(distribution.entropy(), torch.tensor(math.log(valid)))
    torch.testing.assert_close(distribution.normalized_entropy(), torch.tensor(1.0))


def test_a_single_valid_action_has_entropy_zero_and_no_gradient() -> None:
    logits = torch.randn(5, requires_grad=True)
    entropy = MaskedCategorical(logits, torch.arange(5) == 2).normalized_entropy()
    entropy.backward()
    assert entropy == 0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_validation_names_rows_without_a_valid_action() -> None:
    mask = torch.ones(3, 2, 4, dtype=torch.bool)
    mask[2, 1] = False
    with pytest.raises(InvalidStateMachineError, match=r"\(2, 1\)"):
        MaskedCategorical(torch.zeros(3, 2, 4), mask)


def test_validation_names_rows_with_non_finite_logits() -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = math.nan
    with pytest.raises(InputError, match=r"\(1,\)"):
        MaskedCategorical(logits, torch.ones(3, 4, dtype=torch.bool))


def test_validation_can_be_switched_off() -> None:
    unchecked = MaskedCategorical(torch.full((3, 4), math.nan), torch.zeros(3, 4, dtype=torch.bool), validate=False)
    assert not unchecked.mask.any()
