"""A pool is one environment, whatever happens to its workers. Workers run in place here; see `test_process.py`."""

import io
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.leyline import IllegalActionError, InputError, Op, WorkerError
from esper.nissa import Hub, MemorySink
from esper.simic.training import EnvRecipe
from esper.tamiyo import Random
from esper.tolaria import EpisodeSettings, GrowthEnv, Shard, Step, WorkerPool
from esper.tolaria.workers import Command, Request, ShardWorker
from tests.tolaria.workers.local import Fates
from tests.worlds import tiny_task

HOSTS = 5
WAIT = torch.zeros((HOSTS, 4), dtype=torch.int64)


def recipe(**overrides: Any) -> EnvRecipe:
    return replace(EnvRecipe(tiny_task(), EpisodeSettings(length=6), 3, "loop", None), **overrides)


def make_pool(workers: int = 2, fates: Fates | None = None, hub: Hub | None = None, **overrides: Any) -> WorkerPool:
    made = recipe(**overrides)
    return WorkerPool(made, HOSTS, workers, made.seed, hub=hub, start=(fates or Fates()).start)


def make_one(hub: Hub | None = None, **overrides: Any) -> GrowthEnv:
    return recipe(**overrides)(Shard(0, HOSTS), hub or Hub())


def same(a: Step, b: Step) -> bool:
    tables = a.info.outcome.after.table.equals(b.info.outcome.after.table)
    masks = all(torch.equal(getattr(a.masks, name), getattr(b.masks, name)) for name in ("op", "slot", "blueprint"))
    return tables and masks and all(torch.equal(x, y) for x, y in zip(a[:4], b[:4], strict=True))


def dice() -> Random:
    controller = Random()
    controller.reset(HOSTS, 0)
    return controller


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_pool_has_the_episodes_of_one_environment(workers: int) -> None:
    one, pool, controller = make_one(), make_pool(workers), dice()
    for _ in range(2):
        assert torch.equal(one.reset()[0], pool.reset()[0])
        for _ in range(6):
            actions = controller.decide(pool.situation)
            expected, given = one.step(actions), pool.step(actions)
            assert same(expected, given)
            components = given.info.payment.components
            assert all(torch.equal(components[name], term) for name, term in expected.info.payment.components.items())
            assert not given.info.dropped.any()
    assert one.results() == pool.results()


def test_single_hosts_can_be_reset_and_seeded() -> None:
    one, pool = make_one(), make_pool()
    for env in (one, pool):
        env.reset()
        env.step(WAIT)
    assert torch.equal(one.reset(hosts=[4, 0])[0], pool.reset(hosts=[4, 0])[0])
    assert pool.situation.signals.epoch.tolist() == [0, 1, 1, 1, 0]
    assert torch.equal(one.reset([7, 8], hosts=[1, 3])[0], pool.reset([7, 8], hosts=[1, 3])[0])
    with pytest.raises(InputError, match="2 hosts need as many seeds"):
        pool.reset([7], hosts=[1, 3])
    one.reseed(11)
    pool.reseed(11)
    assert torch.equal(one.reset()[0], pool.reset()[0])


def test_a_shard_whose_hosts_have_all_ended_waits_for_the_others() -> None:
    one, pool = make_one(), make_pool()
    for env in (one, pool):
        env.reset()
        for _ in range(4):
            env.step(WAIT)
        env.reset(hosts=[2, 3, 4])
    for _ in range(6):
        assert same(one.step(WAIT), pool.step(WAIT))
    with pytest.raises(InputError, match="this episode is over"):
        pool.step(WAIT)
    assert one.results() == pool.results()


def test_errors_are_those_of_one_environment_and_change_nothing() -> None:
    one, pool = make_one(), make_pool()
    one.reset()
    pool.reset()
    illegal = WAIT.clone()
    illegal[4, 3] = Op.CULL
    messages = []
    for env in (one, pool):
        with pytest.raises(IllegalActionError, match="host 4") as caught:
            env.step(illegal)
        messages.append(str(caught.value))
        with pytest.raises(InputError, match="actions must be int64"):
            env.step(WAIT.float())
        with pytest.raises(InputError, match="results are known once"):
            env.results()
    assert messages[0] == messages[1]
    assert same(one.step(WAIT), pool.step(WAIT))


def test_a_pool_goes_on_bit_for_bit_from_the_middle_of_an_episode() -> None:
    pool, controller = make_pool(), dice()
    pool.reset()
    for _ in range(3):
        pool.step(controller.decide(pool.situation))
    file = io.BytesIO()
    torch.save(pool.state_dict(), file)
    file.seek(0)
    other = make_pool(seed=99)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(pool.observations, other.observations)
    for _ in range(3):
        actions = controller.decide(pool.situation)
        assert same(pool.step(actions), other.step(actions))
    assert torch.equal(pool.reset()[0], other.reset()[0])
    with pytest.raises(InputError, match="2 workers with 5 hosts; here are 3"):
        make_pool(3).load_state_dict(pool.state_dict())


def test_events_of_workers_are_told_as_of_one_environment() -> None:
    told = []
    for make in (make_one, make_pool):
        sink = MemorySink()
        env = make(hub=Hub([sink]))
        env.reset()
        env.step(WAIT)
        told.append(sorted((event.env_id or 0, event.event_type) for event in sink.events))
    assert told[0] == told[1]
    assert {host for host, _ in told[0]} == set(range(HOSTS))


def test_a_lost_worker_is_replaced_and_its_episodes_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    fates = Fates()
    one, pool = make_one(), make_pool(fates=fates)
    one.reset()
    pool.reset()
    one.step(WAIT)
    pool.step(WAIT)
    fates.doom = Command.STEP
    expected = one.step(WAIT)
    with caplog.at_level(logging.WARNING):
        step = pool.step(WAIT)
    assert "worker 0 is lost: it was told to die; it is replaced, and 2 unfinished episodes" in caplog.text
    assert step.info.dropped.tolist() == [True, True, False, False, False]
    assert (pool.dropped_episodes, fates.started) == (2, 3)
    assert torch.equal(step.observations[2:], expected.observations[2:])  # the others took their step
    second = one.reset(hosts=[0, 1])[0]
    assert torch.equal(step.observations[:2], second[:2])  # and these begin the next of their own episodes
    assert not pool.step(WAIT).info.dropped.any()
    assert pool.situation.signals.epoch.tolist() == [1, 1, 3, 3, 3]


@pytest.mark.parametrize("command", [Command.STATE_DICT, Command.RESET])
def test_a_loss_between_steps_shows_in_the_next_step(command: Command) -> None:
    fates = Fates()
    pool = make_pool(fates=fates)
    pool.reset()
    pool.step(WAIT)
    fates.doom = command
    pool.state_dict() if command is Command.STATE_DICT else pool.reset(hosts=[0])
    assert pool.dropped_episodes == (2 if command is Command.STATE_DICT else 1)  # host 0 was given up by the caller
    step = pool.step(WAIT)
    assert step.info.dropped.tolist() == [True, True, False, False, False]
    assert pool.situation.signals.epoch.tolist() == [0, 0, 2, 2, 2]
    assert not pool.step(WAIT).info.dropped.any()


def test_a_loss_while_everything_is_reset_or_loaded_drops_nothing() -> None:
    fates = Fates()
    pool = make_pool(fates=fates)
    fates.doom = Command.RESET
    pool.reset()
    assert not pool.step(WAIT).info.dropped.any()
    state = pool.state_dict()
    fates = Fates()
    other = make_pool(fates=fates)
    fates.doom = Command.LOAD_STATE_DICT
    other.load_state_dict(state)
    assert other.dropped_episodes == 0
    assert same(pool.step(WAIT), other.step(WAIT))


def test_results_that_are_lost_are_not_made_up() -> None:
    fates = Fates()
    pool = make_pool(fates=fates)
    pool.reset()
    for _ in range(6):
        pool.step(WAIT)
    fates.doom = Command.RESULTS
    with pytest.raises(WorkerError, match="lost with it"):
        pool.results()
    assert pool.dropped_episodes == 0  # they were finished


def test_bad_arguments_are_told_before_anything_starts() -> None:
    fates = Fates()
    with pytest.raises(InputError, match="workers must be 1 to the number of hosts, 5; got 6"):
        make_pool(6, fates=fates)
    with pytest.raises(InputError, match="cannot be sent"):
        WorkerPool(lambda shard, hub: recipe()(shard, hub), HOSTS, 2)
    with pytest.raises(InputError, match="unknown executor"):
        make_pool(executor="warp")
    pool = make_pool()
    pool.close()
    with pytest.raises(InputError, match="closed"):
        pool.reset()


def test_an_unexpected_error_in_a_worker_tells_where_it_came_from() -> None:
    worker = ShardWorker()
    reply = worker.answer(Request(1, Command.STEP, (WAIT,)))
    assert isinstance(reply.error, WorkerError)
    assert "open before anything else" in str(reply.error)
    reply = worker.answer(Request(2, Command.OPEN, (b"no pickle", Shard(0, 1), None)))
    assert reply.id == 2
    assert any("in a worker" in note for note in getattr(reply.error, "__notes__", []))


def test_messages_keep_tensors_as_they_are() -> None:
    from esper.tolaria.workers.worker import from_bytes, to_bytes

    tensors: list[Tensor] = [torch.tensor(True), torch.randn(2, 3).T, torch.empty(0, 4), torch.arange(3)]
    for tensor, copy in zip(tensors, from_bytes(to_bytes(tensors)), strict=True):
        assert torch.equal(tensor, copy)
        assert tensor.dtype == copy.dtype
