"""Playing toy worlds: an episode's end is the end of the memory of it."""

import math

import torch

from esper_lab.player import reset_hidden


def test_reset_clears_the_state_of_ended_episodes_only_even_if_it_is_not_finite() -> None:
    h, c = torch.ones(1, 3, 4), torch.full((1, 3, 4), math.nan)
    new_h, new_c = reset_hidden((h, c), torch.tensor([False, True, False]))
    assert not new_h[:, 1].any()
    assert not new_c[:, 1].any()
    assert torch.equal(new_h[:, [0, 2]], h[:, [0, 2]])
