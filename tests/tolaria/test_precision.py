"""Mixed precision: the order of a scaled step, unscaled statistics, a scaler per host, and exact resuming."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from esper.kasmina import take_snapshot
from esper.kasmina.torch_private import clip_gradients
from esper.leyline import Op, Stage
from esper.tamiyo import Random
from esper.tolaria import ComputeSettings, EpisodeSettings, LoopExecutor, Population
from esper.tolaria import precision as precision_module
from esper.tolaria.executors import loop
from esper.tolaria.precision import HostPrecision
from tests.worlds import host_task, tiny_task

SHORT = ["bfloat16", "float16"]
GERMINATE = torch.tensor([[0, 3, 0, Op.GERMINATE]])
WAIT = torch.zeros((1, 4), dtype=torch.int64)


def settings(precision: str, **overrides: Any) -> EpisodeSettings:
    return EpisodeSettings(compute=ComputeSettings(precision=precision), **overrides)


def started(precision: str, num_hosts: int = 1, **task: Any) -> Population:
    population = Population(tiny_task(**task), num_hosts, settings(precision))
    population.start(range(num_hosts))
    return population


class FakeScaler:
    """Scales by a power of two, and keeps a diary that all fakes share."""

    diary: list[str]
    made: list["FakeScaler"]
    factor = 1024.0

    def __init__(self, device: str, growth_interval: int, enabled: bool) -> None:
        self._enabled = enabled
        self.made += [self] * enabled

    def is_enabled(self) -> bool:
        return self._enabled

    def scale(self, loss: Tensor) -> Tensor:
        self.diary.append("scale")
        return loss * self.factor

    def unscale_(self, optimizer: Optimizer) -> None:
        self.diary.append("unscale")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= self.factor

    def step(self, optimizer: Optimizer) -> None:
        self.diary.append("step")
        optimizer.step()

    def update(self) -> None:
        self.diary.append("update")

    def state_dict(self) -> dict[str, Any]:
        self.diary.append("read")
        return {}


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeScaler.diary, FakeScaler.made = [], []
    monkeypatch.setattr(precision_module, "GradScaler", FakeScaler)
    return FakeScaler.diary


def test_a_step_scales_goes_backward_unscales_clips_steps_and_updates_in_this_order(
    diary: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    population = started("float16", batches_per_epoch=1)
    backward = Tensor.backward

    def spied_backward(self: Tensor, *args: Any) -> None:
        diary.append("backward")
        backward(self, *args)  # type: ignore[no-untyped-call]

    def spied_clip(*args: Any) -> Tensor:
        diary.append("clip")
        return clip_gradients(*args)

    monkeypatch.setattr(Tensor, "backward", spied_backward)
    monkeypatch.setattr(loop, "clip_gradients", spied_clip)
    diary.clear()
    population._act(GERMINATE)
    population.executor.train_epoch()
    assert population.table.stage[0, 0] == Stage.TRAINING
    shadow_pass = ["scale", "backward"]
    assert diary == ["scale", "backward", *shadow_pass, "unscale", "clip", "step", "update"]


def test_every_float16_host_has_its_own_scaler_and_no_other_host_uses_one(diary: list[str]) -> None:
    started("float32", 2)
    started("bfloat16", 2)
    assert not FakeScaler.made
    hosts = started("float16", 3).executor.hosts  # type: ignore[attr-defined]
    assert len({id(host._precision._scaler) for host in hosts}) == 3


@pytest.mark.parametrize("precision", SHORT)
def test_gradient_statistics_see_unscaled_values(precision: str) -> None:
    exact, short = (started(name, batches_per_epoch=1) for name in ("float32", precision))
    for population in (exact, short):
        population._act(GERMINATE)
    expected, result = exact.executor.train_epoch(), short.executor.train_epoch()
    assert result.host_grad_norm.tolist() == pytest.approx(expected.host_grad_norm.tolist(), rel=0.05)
    assert result.seed_grad_norms[0, 0] == pytest.approx(float(expected.seed_grad_norms[0, 0]), rel=0.05)


@pytest.mark.parametrize("precision", SHORT)
def test_hosts_learn_in_a_short_format_and_keep_float32_weights(precision: str) -> None:
    short, exact = started(precision, 2), started("float32", 2)
    dice = Random()
    dice.reset(2, 0)
    while not short.done:
        actions = dice.decide(exact.situation)
        # An alpha may hold in one of the two only, and what is legal then differs.
        actions = torch.where(short.situation.masks.allow(actions)[:, None], actions, 0)
        for population in (short, exact):
            population.step(actions)
    for result, reference in zip(short.results(), exact.results(), strict=True):
        assert result.panics == 0
        assert result.val_score > 0.8
        assert result.val_score == pytest.approx(reference.val_score, abs=0.1)
    parameters = list(short.executor.network(0).parameters())
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in parameters)
    assert not torch.equal(parameters[0], next(exact.executor.network(0).parameters()))


@pytest.mark.parametrize("precision", SHORT)
def test_a_seed_in_training_does_not_touch_its_host(precision: str) -> None:
    alone, grown = started(precision), started(precision)
    for step in range(3):
        alone.step(WAIT)
        grown.step(GERMINATE if step == 1 else WAIT)
    pairs = zip(alone.executor.network(0).host.parameters(), grown.executor.network(0).host.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert grown.table.stage[0, 0] == Stage.BLENDING


def test_steps_that_overflow_are_skipped_and_tell_nothing() -> None:
    population = started("float16", batches_per_epoch=40)
    (host,) = population.executor.hosts  # type: ignore[attr-defined]
    fresh = host._precision.state_dict()
    host._precision.load_state_dict(fresh | {"scale": 2.0**40})
    population.step(GERMINATE)
    population.step(WAIT)
    assert host._precision.state_dict()["scale"] < 2.0**30
    assert population.signals.host_grad_norm.isfinite().all()
    assert population.table.stage[0, 0] == Stage.BLENDING  # its gate asks for finite gradients
    host._precision.load_state_dict(fresh | {"scale": 2.0**120})
    population.step(WAIT)  # not one step was taken
    assert population.signals.host_grad_norm.isnan().all()


@pytest.mark.parametrize("at", [1, 7, 12])
def test_a_saved_float16_population_goes_on_bit_for_bit(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_module, "_GROWTH_INTERVAL", 3)  # so that scales rise, overflow and fall all the time
    straight, dice = Population(host_task("conv1d"), 2, settings("float16")), Random()
    straight.start([0, 1])
    dice.reset(2, 0)
    actions, saved = [], io.BytesIO()
    for step in range(25):
        if step == at:
            torch.save(straight.state_dict(), saved)
        actions.append(dice.decide(straight.situation))
        straight.step(actions[-1])
    saved.seek(0)
    resumed = Population(host_task("conv1d"), 2, settings("float16"))
    resumed.load_state_dict(torch.load(saved, weights_only=True))
    for step in range(at, 25):
        resumed.step(actions[step])
    assert resumed.table.equals(straight.table)
    assert resumed.results() == straight.results()
    for host in range(2):
        pairs = [list(population.executor.network(host).parameters()) for population in (straight, resumed)]
        assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


def test_rolling_back_returns_the_scale_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_module, "_GROWTH_INTERVAL", 3)
    executor = LoopExecutor(tiny_task(), 1, 5, compute=ComputeSettings(precision="float16"))
    executor.start([0], [0])
    executor.train_epoch()
    (host,) = executor.hosts
    everyone = torch.ones(1, dtype=torch.bool)
    executor.remember(everyone)
    scale, weights = host._precision.state_dict(), take_snapshot(host.model).tensors
    executor.train_epoch()
    assert host._precision.state_dict() != scale
    executor.restore(everyone, host.model.table)
    assert host._precision.state_dict() == scale
    again = take_snapshot(host.model).tensors
    assert all(torch.equal(weights[name], again[name]) for name in weights.keys() | again)


def test_the_scale_is_read_only_after_a_sync_of_the_stream(diary: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def synchronize(self) -> None:
            diary.append("sync")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    HostPrecision("float16", torch.device("cuda")).state_dict()
    assert diary == ["sync", "read"]


def test_a_step_reads_no_scale_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    population = started("float16")

    def refuse(self: object) -> float:
        raise AssertionError("the scale was read")

    monkeypatch.setattr(torch.amp.GradScaler, "get_scale", refuse)
    population.executor.train_epoch()
