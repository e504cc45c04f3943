"""What training and measuring one network takes: its passes, compiled on request, clipping, and validation."""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from esper.kasmina import NOT_MEASURED, GraftedModel, Host
from esper.tasks import OptimizerSettings, Split, Task
from esper.tolaria.executors.base import CLIP_EPS, Measurement, losses_and_accuracies, score_of

P = ParamSpec("P")
R = TypeVar("R")
_LOG = logging.getLogger(__name__)
_MAX_ELEMENTS = 2**20
"""Of one activation tensor in validation: above this, samples are measured in several goes, to stay in the cache."""


def train_pass(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of a minibatch, and its logits `[M, C]`."""
    logits = model(x).flatten(0, -2)
    return F.cross_entropy(logits, y.flatten()), logits


def eval_pass(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The logits of `x`."""
    return model(x)


class Passes:
    """The passes of hosts, run as they are written."""

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """See `train_pass`."""
        return train_pass(model, x, y)

    def evaluate(self, model: nn.Module, x: Tensor) -> Tensor:
        """See `eval_pass`."""
        return eval_pass(model, x)


class CompiledPasses(Passes):
    """The passes of hosts, compiled when they are first called.

    The network is an argument, so what is compiled serves every host that has the same seeds in the same slots, for
    any batch size; another structure is compiled when it first appears. Where compiling fails, that is said once, and
    from then on all passes run as they are written.
    """

    def __init__(self) -> None:
        self._works = True
        self._compiled: dict[object, Callable[..., object]] = {}

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """See `train_pass`."""
        return self._run(train_pass, model, x, y)

    def evaluate(self, model: nn.Module, x: Tensor) -> Tensor:
        """See `eval_pass`."""
        return self._run(eval_pass, model, x)

    def _run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._works:
            try:
                if function not in self._compiled:
                    # In here, because on some platforms even asking fails.
                    self._compiled[function] = torch.compile(function, dynamic=True)
                return self._compiled[function](*args, **kwargs)  # type: ignore[return-value]
            except Exception as error:  # whatever a backend may raise; a fault of the network itself is raised below
                self._works = False
                _LOG.warning("hosts run uncompiled, because compiling failed: %s: %s", type(error).__name__, error)
        return function(*args, **kwargs)


EAGER = Passes()
COMPILED = CompiledPasses()
"""One for the whole process: compiled code is kept, and a failure told, once."""


def build_optimizer(host: Host, settings: OptimizerSettings) -> Optimizer:
    """The optimiser that a task asks for."""
    if settings.name == "sgd":
        return SGD(host.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    return AdamW(host.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=True)


@torch.no_grad()
def clip_gradients(parameters: list[Parameter], max_norm: float, device: torch.device) -> Tensor:
    """What `clip_grad_norm_` does, for parameters on one device; sorting them by device took a tenth of a step."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros((), device=device)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    scale = max_norm / (norm + CLIP_EPS)
    # Looking at the scale saves time on the CPU, and would make it wait for any other device.
    if device.type != "cpu" or bool(scale < 1):
        torch._foreach_mul_(gradients, scale.clamp(max=1))
    return norm


def place(split: Split, device: torch.device, dtype: torch.dtype) -> Split:
    """The split on a device, its values (but not its tokens) as `dtype`; the same tensors where nothing changes."""
    x = split.x.to(device, dtype) if split.x.is_floating_point() else split.x.to(device)
    return Split(x, split.y.to(device))


@torch.inference_mode()
def evaluate(
    model: GraftedModel, task: Task, split: Split, alphas: Tensor, passes: Passes = EAGER
) -> tuple[Tensor, Tensor]:
    """Loss and score `[C]` of C variants of one network in one pass, with their seeds forced to `alphas [C, S]`."""
    model.eval()  # training puts it back
    copies = len(alphas)
    largest = max(torch.Size(site.shape.tensor_shape(1)).numel() for site in model.sites)
    chunk = max(1, _MAX_ELEMENTS // (copies * largest))
    parts = []
    for x in split.x.split(chunk):
        forced: dict[int, Tensor | float] = {}
        for slot in model.table.occupied[0].nonzero().flatten().tolist():
            per_sample = alphas[:, slot].repeat_interleave(len(x))
            forced[slot] = per_sample.to(x.device) if bool(per_sample.any()) else 0.0
        with model.override_alphas(forced):
            logits = passes.evaluate(model, x.repeat(copies, *[1] * (x.ndim - 1)))
        parts.append(logits.unflatten(0, (copies, len(x))))
    loss, accuracy = losses_and_accuracies(torch.cat(parts, 1), split.y.expand(copies, *split.y.shape))
    return loss.to(torch.float32), score_of(task, loss, accuracy).to(torch.float32)


@torch.inference_mode()
def measure(
    model: GraftedModel,
    task: Task,
    split: Split,
    *,
    what_if: bool = False,
    trials: Tensor | None = None,
    passes: Passes = EAGER,
) -> Measurement:
    """Validate one network, and measure the contribution of every blended seed, in one forward pass.

    The samples are repeated once per blended seed, and each copy runs with that seed's alpha at 0. With
    `what_if` they are repeated for seeds at alpha 0 too, at alpha 1, and once for each alpha in `trials [S]` that is
    not NaN. The fields have one row.
    """
    table = model.table
    blended = table.blended[0].nonzero().flatten().tolist()
    isolated = table.isolated[0].nonzero().flatten().tolist() if what_if else []
    tried = [] if trials is None else (~trials.isnan()).nonzero().flatten().tolist()
    forced = [(slot, 0.0) for slot in blended] + [(slot, 1.0) for slot in isolated]
    forced += [] if trials is None else [(slot, float(trials[slot])) for slot in tried]
    alphas = table.alpha[0].repeat(1 + len(forced), 1)
    for copy, (slot, alpha) in enumerate(forced, start=1):
        alphas[copy, slot] = alpha
    parameter = next(model.parameters())
    loss, score = evaluate(model, task, place(split, parameter.device, parameter.dtype), alphas, passes)
    own, without, with_all, with_more = score.split([1, len(blended), len(isolated), len(tried)])
    contributions, prospects, gains = torch.full((3, 1, len(model.sites)), NOT_MEASURED, device=score.device)
    contributions[0, blended] = own - without
    prospects[0, isolated] = with_all - own
    gains[0, tried] = with_more.nan_to_num(0.0) - own
    return Measurement(loss[:1], own, contributions, prospects, gains)
