"""What the watched passes show: modes that differ, what is computed again, kernels that hide what they do."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.checkpoint import checkpoint

from esper.kasmina import graft
from esper.kasmina.trace import trace_passes
from esper.leyline import InputError
from tests.kasmina.test_keeping import Merging
from tests.kasmina.test_sources import chain, mlp, sources_of


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.last(self.shared(self.shared(x)))
        return h


def test_what_runs_twice_is_neither_source_nor_target() -> None:
    grafted = graft(Twice(), at=["shared", "last"], example=torch.randn(4, 6))
    assert sources_of(grafted, "shared") == {}
    assert sources_of(grafted, "last") == {"far": "the input of the model"}
    assert not grafted.catalogue.fits[0, 5:].any()
    with pytest.raises(InputError, match="both must run exactly once in a pass"):
        graft(Twice(), at=["last"], example=torch.randn(4, 6), sources={"last": {"far": "shared"}})


class OtherInTraining(nn.Module):
    """Takes another way while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        y: Tensor = self.last(self.last(h)) if self.training else self.last(h)
        return y


@pytest.mark.parametrize("training", [True, False])
def test_both_modes_must_agree(training: bool) -> None:
    grafted = graft(OtherInTraining().train(training), at=["last"], example=torch.randn(4, 6))
    assert sources_of(grafted, "last") == {}
    assert grafted.training


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, flag: bool = True) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.reentrant, self.flag = reentrant, flag

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        recomputed = self.training and self.flag
        h = checkpoint(self.block, h, use_reentrant=self.reentrant) if recomputed else self.block(h)
        y: Tensor = self.last(h)
        return y


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_in_the_backward_pass_is_not_offered(reentrant: bool) -> None:
    model = Checkpointed(reentrant=reentrant)
    grafted = graft(model, at=["block", "last"], example=torch.randn(4, 6))
    assert sources_of(grafted, "block") == {}
    assert sources_of(grafted, "last") == {"far": "the input of the model"}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_checkpointing_that_begins_later_is_an_error_and_not_a_wrong_gradient() -> None:
    model = Checkpointed(reentrant=False, flag=False)
    grafted = graft(model, at=["block"], example=torch.randn(4, 6))
    grafted.plant_fossils({"block": "far_wide"})
    model.flag = True
    with pytest.raises(InputError, match="without activation checkpointing"):
        grafted(torch.randn(4, 6)).sum().backward()


class OwnKernel(torch.autograd.Function):
    """Leaves torch, so that nobody sees what the result was made from."""

    @staticmethod
    def forward(_ctx: object, x: Tensor) -> Tensor:
        return torch.from_numpy(2 * x.detach().numpy())

    @staticmethod
    def backward(_ctx: object, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = OwnKernel.apply(x)  # type: ignore[no-untyped-call]
        return y


class Unwatchable(nn.Module):
    """Cannot run while operations are watched, as some kernels cannot."""

    def forward(self, x: Tensor) -> Tensor:
        if is_in_torch_dispatch_mode():
            raise NotImplementedError("there is no rule for this kernel")
        return x * 1


@pytest.mark.parametrize("kernel", [Doubled, Unwatchable])
def test_kernels_that_cannot_be_looked_into_are_no_obstacle(kernel: type[nn.Module]) -> None:
    grafted = graft(chain(nn.Linear(6, 6), kernel(), nn.Linear(6, 3)), at=["2"], example=torch.randn(4, 6))
    assert sources_of(grafted, "2")["far"] == "the input of the model"


class Noisy(nn.Module):
    """Looks its tokens up twice in training."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.second, self.last = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x) + self.table(x.flip(0)) if self.training else self.table(x)
        y: Tensor = self.last(self.second(h))
        return y


def test_far_is_the_earliest_tensor_on_which_both_modes_agree() -> None:
    grafted = graft(Noisy(), at=["last"], example=torch.randint(9, (4, 5)))
    assert sources_of(grafted, "last")["far"] == "the input of 'second'"


def test_an_example_may_come_from_inference_mode() -> None:
    model = mlp()
    with torch.inference_mode():
        grafted = graft(model, at=["3"], example=torch.randn(4, 6))
    assert sources_of(grafted, "3")["far"] == "the input of the model"


def test_layers_that_do_more_in_train_than_set_the_flag_stay_as_they_were() -> None:
    host = nn.Sequential(Merging(6, 6), nn.Tanh())
    trace_passes(host, torch.randn(4, 6), sequences=False)
    assert host[0].training
    assert not host[0].merged
