"""A round: whole episodes, counted, and stored with what is known at their end."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from esper.leyline import SEED_EXPLODING_GRADIENT, SEED_VANISHING_GRADIENT, InputError, Stage
from esper.simic.config.reward import RewardConfig
from esper.simic.training import Trainer, collect_round
from tests.simic.builders import normalizer_of
from tests.simic.training.runs import tiny_config

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


def test_a_round_holds_whole_episodes_from_their_start() -> None:
    trainer = Trainer(tiny_config())
    mean = normalizer_of(trainer.agent).mean.clone()
    outcome = collect_round(trainer.agent, trainer.world, 0)
    buffer = trainer.agent.buffer
    assert buffer.step_counts.tolist() == [8] * 4
    assert buffer.dones[:, -1].all()
    assert not buffer.dones[:, :-1].any()
    assert buffer.truncated[:, -1].all()
    assert torch.equal(normalizer_of(trainer.agent).mean, mean)  # frozen while it acts
    assert not buffer.hidden_h[:, 0].any()
    assert outcome.returns.tolist() == pytest.approx(buffer.rewards.sum(1).tolist(), abs=1e-4)
    assert sum(outcome.means()["ops"].values()) == pytest.approx(8.0)
    metrics = trainer.agent.update()
    assert float(normalizer_of(trainer.agent).count) == 32
    assert metrics["optimizer_steps"] > 0


def test_the_first_update_of_a_round_starts_at_the_policy_that_acted() -> None:
    trainer = Trainer(tiny_config(epochs=1, num_minibatches=1))
    for index in range(2):
        collect_round(trainer.agent, trainer.world, index)
        metrics = trainer.agent.update()
        assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("norm", "counted"),
    [
        (SEED_VANISHING_GRADIENT / 2, [True, True, False, False]),
        (1.0, [True, False, False, False]),
        (SEED_EXPLODING_GRADIENT * 2, [True, False, True, False]),
        (torch.nan, [False, False, False, False]),
    ],
)
def test_a_round_counts_the_epochs_of_seeds_by_their_gradients(norm: float, counted: list[bool]) -> None:
    trainer = Trainer(tiny_config(twins=False, envs=2, episode_length=3))
    step = trainer.world.step

    def with_seeds(actions: torch.Tensor) -> Any:
        """Every slot holds a seed of the second blueprint, with the same gradient and no measured contribution."""
        brought = step(actions)
        table = replace(
            brought.table,
            stage=torch.full_like(brought.table.stage, Stage.TRAINING),
            blueprint=torch.full_like(brought.table.blueprint, 2),
            seed_grad_norm=torch.full_like(brought.table.seed_grad_norm, norm),
            contribution=torch.full_like(brought.table.contribution, torch.nan),
        )
        return replace(brought, table=table)

    trainer.world.step = with_seeds  # type: ignore[method-assign]
    counts = collect_round(trainer.agent, trainer.world, 0).seed_epochs
    epochs = 2 * 3 * trainer.world.num_slots
    assert counts[2].tolist() == [epochs * column for column in counted]
    assert counts.sum() == counts[2].sum()
