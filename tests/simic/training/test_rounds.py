"""A round: what is stored of it at the end of an episode."""

import pytest
import torch

from esper.leyline import InputError
from esper.simic.config.reward import RewardConfig
from esper.simic.training import Trainer, collect_round
from tests.simic.builders import normalizer_of
from tests.simic.training.test_vectorized import tiny_config

LENGTH = 3


def played_trainer(*, horizon_is_terminal: bool) -> Trainer:
    torch.manual_seed(0)
    reward = RewardConfig(gamma=1.0, horizon_is_terminal=horizon_is_terminal)
    options = {"reward": reward, "horizon_is_terminal": horizon_is_terminal}
    trainer = Trainer(tiny_config(twins=False, episode_length=LENGTH, **options))
    collect_round(trainer.agent, trainer.world, 0)
    return trainer


def test_a_time_out_is_worth_the_state_after_it() -> None:
    """That is V of the last observation under the memory after the last step, which replaying the round gives."""
    trainer = played_trainer(horizon_is_terminal=False)
    agent, buffer = trainer.agent, trainer.agent.buffer
    seen = torch.cat([env.observations for env in trainer.world._envs])
    hidden = agent._base_network(buffer.obs, agent.initial_hidden()).hidden
    expected = agent.policy.value(normalizer_of(trainer.agent).normalize(seen), hidden)
    torch.testing.assert_close(buffer.bootstrap_values[:, -1], expected)
    assert buffer.truncated[:, -1].all()


def test_a_time_out_that_is_the_end_of_the_problem_needs_no_value() -> None:
    buffer = played_trainer(horizon_is_terminal=True).agent.buffer
    assert buffer.bootstrap_values.isnan().all()
    buffer.compute_advantages_and_returns(1.0, 0.9, horizon_is_terminal=True)
    with pytest.raises(InputError, match="bootstrap_values"):
        buffer.compute_advantages_and_returns(1.0, 0.9)
