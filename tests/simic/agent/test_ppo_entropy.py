"""The entropy coefficient: decay, floor, and that the floor reaches the loss."""

import pytest
import torch

from esper.simic.agent.optimization import fewest_valid
from tests.simic.builders import agent_with_round, make_agent


def mask(valid: int, total: int) -> torch.Tensor:
    return torch.arange(total) < valid


@pytest.mark.parametrize(
    ("valid", "total", "floor"), [(7, 7, 0.01), (2, 7, 0.0280735), (2, 9, 0.03), (1, 7, 0.01), (0, 7, 0.01)]
)
def test_the_floor_rises_as_valid_actions_become_few(valid: int, total: int, floor: float) -> None:
    agent = make_agent(adaptive_entropy_floor=True)
    assert agent.get_entropy_floor(mask(valid, total)) == pytest.approx(floor, rel=1e-5)
    assert agent.get_entropy_floor() == 0.01
    assert make_agent().get_entropy_floor(mask(2, 7)) == 0.01


@pytest.mark.parametrize(("steps", "coefficient"), [(0, 0.05), (500, 0.03), (1000, 0.01), (5000, 0.01)])
def test_the_coefficient_decays_linearly_to_its_floor(steps: int, coefficient: float) -> None:
    agent = make_agent(entropy_coef=0.05, decay_steps=1000)
    agent.total_steps = steps
    assert agent.get_entropy_coef() == pytest.approx(coefficient)


def test_a_decay_over_no_steps_is_over_at_once() -> None:
    assert make_agent(decay_steps=0).get_entropy_coef() == pytest.approx(0.01)


def test_without_decay_only_the_adaptive_floor_can_raise_the_coefficient() -> None:
    assert make_agent(entropy_coef=0.002).get_entropy_coef(mask(2, 9)) == 0.002
    assert make_agent(entropy_coef=0.002, adaptive_entropy_floor=True).get_entropy_coef(mask(2, 9)) == 0.03
    assert make_agent(entropy_coef=0.0, adaptive_entropy_floor=True).get_entropy_coef(mask(2, 9)) == 0.0


@pytest.mark.parametrize("place", [(0, 0), (3, 11), (2, 5)])
def test_the_tightest_choice_anywhere_in_the_round_sets_the_floor_in_the_loss(place: tuple[int, int]) -> None:
    def coefficients(adaptive: bool) -> dict[str, float]:
        agent = agent_with_round(adaptive_entropy_floor=adaptive, entropy_coef=0.001)
        for stored in agent.buffer.masks.values():
            stored[:] = True
        tight = agent.buffer.masks["op"][place]
        tight[:] = False
        tight[agent.buffer.actions[place][agent.spec.decider_index]] = True
        tight[(agent.buffer.actions[place][agent.spec.decider_index] + 1) % 4] = True
        return agent.update()["entropy_coefs"]

    assert coefficients(adaptive=True)["op"] == pytest.approx(0.01 * 2.0)
    assert coefficients(adaptive=False)["op"] == pytest.approx(0.001)


def test_heads_without_a_choice_have_no_tightest_mask() -> None:
    agent = make_agent()
    selected = torch.zeros(2, 3, 4, agent.spec.width, dtype=torch.bool)
    selected[..., 0] = True
    active = torch.ones(2, 3, 4, dtype=torch.bool)
    assert all(found is None for found in fewest_valid(agent.spec, selected, active).values())
