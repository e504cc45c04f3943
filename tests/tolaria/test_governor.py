"""The governor: failures are noticed and undone bit for bit, noise is left alone, hosts are judged apart."""

import gc
import math

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from esper.leyline import Blend, EventType, Op
from esper.nissa import Hub, MemorySink
from esper.tolaria import GovernorSettings, Population, StackedExecutor
from esper.tolaria.executors.native import NativeExecutor
from esper.tolaria.governor import Governor
from tests.worlds import poison, tiny_task

GUESS = math.log(3)
ALL = torch.tensor([True, True])
WAIT = torch.zeros((2, 4), dtype=torch.int64)


def judge(governor: Governor, train: float, val: float) -> list[bool]:
    """Both hosts are fine but the first, which has these losses."""
    return governor.judge(torch.tensor([train, 0.9]), torch.tensor([val, 0.9]), ALL).tolist()


@pytest.mark.parametrize(
    ("train_loss", "val_loss", "why"),
    [
        (math.nan, 1.0, "training loss is nan"),
        (1.0, math.nan, "validation loss is nan"),
        (math.inf, 1.0, "training loss is inf"),
        (1.0, 1e6, "validation loss 1e+06 exceeds 2.7"),
        (-math.inf, 1.0, "training loss is -inf"),
    ],
)
def test_a_failed_epoch_is_noticed_in_the_host_that_failed(train_loss: float, val_loss: float, why: str) -> None:
    governor = Governor(2, GUESS)
    assert judge(governor, 0.9, 0.9) == [False, False]
    assert judge(governor, train_loss, val_loss) == [True, False]
    assert governor.explain(train_loss, val_loss, 0) == why
    assert governor.panics.tolist() == [1, 0]


def test_the_usual_noise_is_no_panic() -> None:
    governor = Governor(2, GUESS)
    for loss in [1.1, 0.8, 1.0, 0.3, 0.9, 0.2, 0.5, 1.4]:
        assert judge(governor, loss, loss) == [False, False]


def test_a_good_host_may_have_an_epoch_not_much_worse_than_guessing() -> None:
    governor = Governor(2, GUESS, GovernorSettings(explosion_factor=3.0, guess_factor=1.5))
    for _ in range(5):
        assert judge(governor, 0.05, 0.05) == [False, False]
    assert judge(governor, 1.49 * GUESS, 1.49 * GUESS) == [False, False]
    assert judge(governor, 1.51 * GUESS, 1.51 * GUESS) == [True, False]


def test_an_explosion_is_told_from_the_median_of_good_epochs() -> None:
    governor = Governor(2, GUESS, GovernorSettings(explosion_factor=3.0, guess_factor=0.0))
    for loss in (0.1, 5.0, 5.0, 5.0, 0.1):  # explosions do not enter the median
        assert judge(governor, loss, loss)[0] is (loss == 5.0)
    assert judge(governor, 0.29, 0.29) == [False, False]
    assert judge(governor, 0.31, 0.31) == [True, False]


def test_the_third_panic_exhausts_a_host_and_a_new_episode_forgives_it() -> None:
    governor = Governor(2, GUESS, GovernorSettings(max_panics=3))
    for _ in range(3):
        assert governor.exhausted.tolist() == [False, False]
        judge(governor, math.nan, math.nan)
    assert governor.exhausted.tolist() == [True, False]
    governor.start(torch.tensor([True, False]))
    assert governor.exhausted.tolist() == [False, False]


def test_hosts_that_do_not_run_are_not_judged() -> None:
    governor = Governor(2, GUESS)
    bad = torch.tensor([math.nan, math.nan])
    assert governor.judge(bad, bad, torch.tensor([True, False])).tolist() == [True, False]


def training_state(population: Population, host: int) -> dict[str, Tensor]:
    """Copies of a host's weights and seeds, and of all that the optimiser keeps about them."""
    executor = population.executor
    if isinstance(executor, StackedExecutor):
        groups = {"hosts": executor._now.hosts} | {str(key): rows for key, rows in executor._now.seeds.items()}
        columns = ("weights", "first", "second", "steps")
        return {
            f"{key}.{name}": getattr(rows, name)[rows.owner == host].clone()
            for key, rows in groups.items()
            if (rows.owner == host).any()
            for name in columns
        }
    if isinstance(executor, NativeExecutor):
        return {name: torch.from_numpy(array.copy()) for name, array in executor._now[host].arrays().items()}
    model = executor.network(host)
    assert model.optimizer is not None
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state |= {f"{name}.{key}": value.clone() for key, value in model.optimizer.state[parameter].items()}
    return state


@pytest.mark.parametrize("executor", ["loop", "stacked", "native"])
def test_a_rollback_returns_network_seeds_and_optimiser_bit_for_bit(executor: str) -> None:
    memory = MemorySink()
    population = Population(tiny_task(), 2, executor=executor, hub=Hub([memory]))
    population.start([0, 1])
    population.step(torch.tensor([[0, 6, 3, Op.GERMINATE], [3, 1, 0, Op.GERMINATE]]))
    for _ in range(2):
        population.step(WAIT)
    population.step(torch.tensor([[1, 3, Blend.INSTANT, Op.GERMINATE], [0, 0, 0, Op.WAIT]]))
    table, good = population.table.clone(), training_state(population, 0)
    poison(population, 0)
    outcome = population.step(torch.tensor([[3, 1, Blend.INSTANT, Op.GERMINATE], [0, 0, 0, Op.WAIT]]))
    assert outcome.panicked.tolist() == [True, False]
    assert population.table.select(slice(0, 1)).equals(table.select(slice(0, 1)))  # what was germinated since is gone
    restored = training_state(population, 0)
    assert restored.keys() == good.keys()
    assert all(torch.equal(restored[name], tensor) for name, tensor in good.items())
    rollbacks = [event for event in memory.events if event.event_type is EventType.GOVERNOR_ROLLBACK]
    assert [(event.env_id, event.payload["reason"]) for event in rollbacks] == [(0, "training loss is nan")]
    assert not population.step(WAIT).panicked.any()


def live_tensors() -> tuple[int, int]:
    """How many tensors Python holds, and how many bytes they are."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (Tensor, Parameter)]
    return len(tensors), sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("executor", ["loop", "stacked", "native"])
def test_memory_grows_neither_with_the_epochs_nor_with_the_episodes(executor: str) -> None:
    population = Population(tiny_task(batches_per_epoch=1), 2, executor=executor)
    held = []
    for _ in range(2):
        population.start([0, 1])
        for epochs in (5, 10):
            for _ in range(epochs):
                population.step(WAIT)
            held.append(live_tensors())
    assert held == [held[0]] * 4
