"""Checking a state from a file: what fits comes back, what does not is named with its place."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from esper.leyline import InputError
from esper.nissa.state_files import (
    checked_keys,
    checked_list,
    checked_number,
    checked_tensor,
    checked_whole,
    shown,
)

FLOAT = torch.float32


def test_what_fits_comes_back() -> None:
    assert checked_keys({"a": 1, "b": 2}, ("a", "b"), "x") == {"a": 1, "b": 2}
    assert checked_list([1, 2], "x", 2) == [1, 2]
    assert checked_whole(3, "x", 0, 3) == 3
    assert checked_number(3, "x", 0) == 3.0
    tensor = torch.zeros(2, 3)
    assert checked_tensor(tensor, "x", (2, 3), FLOAT) is tensor
    assert checked_tensor(torch.tensor([math.inf]), "x", None, FLOAT, finite=False).isinf()


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: checked_keys({"a": 1}, ("a", "b"), "x"), "x lacks b"),
        (lambda: checked_keys({"a": 1, "c": 2}, ("a",), "x"), "x holds 'c', which do not belong there"),
        (lambda: checked_keys([], ("a",), "x"), "x must hold a; got a list of 0"),
        (lambda: checked_list((1,), "x"), "x must be a list; got a tuple of 1"),
        (lambda: checked_list([1], "x", 2), "x must be a list of 2"),
        (lambda: checked_whole(True, "x"), "x must be a whole number from 0 on; got True"),
        (lambda: checked_whole(1.0, "x"), "got 1.0"),
        (lambda: checked_whole(10**5000, "x", 0, 9), "from 0 to 9; got a number beyond 2^62"),
        (lambda: checked_number(math.nan, "x"), "x must be a finite number; got nan"),
        (lambda: checked_number(10**400, "x"), "x must be a finite number"),
        (lambda: checked_number(-1, "x", 0), "x must be a finite number from 0 on; got -1"),
        (lambda: checked_number("1", "x"), "got '1'"),
        (lambda: checked_tensor([1.0], "x", None, FLOAT), "x must be a tensor; got a list of 1"),
        (lambda: checked_tensor(torch.eye(2).to_sparse(), "x", (2, 2), FLOAT), "x must be a tensor"),
        (lambda: checked_tensor(torch.zeros(2), "x", (2,), torch.int64), "x must hold int64; it holds float32"),
        (lambda: checked_tensor(torch.zeros(2), "x", (3,), FLOAT), "x must have shape [3]; it has [2]"),
        (lambda: checked_tensor(torch.zeros(()).expand(2**20, 2**20), "x", None, FLOAT), "more numbers than the file"),
        (lambda: checked_tensor(torch.tensor([math.nan]), "x", (1,), FLOAT), "x holds NaN or infinity"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(check: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        check()
    assert message in str(error.value)


def test_wrong_values_are_shown_in_a_few_characters_of_one_line() -> None:
    assert shown("two\nlines") == r"'two\nlines'"
    assert len(shown("x" * 500)) < 100
    assert shown(torch.zeros(2, 3)) == "a tensor of shape [2, 3]"
