"""Validating one network, with and without each of its seeds."""

import torch
from torch import Tensor

from esper.kasmina import NOT_MEASURED, GraftedModel
from esper.tasks import Split, Task
from esper.tolaria.executors.base import Measurement, losses_and_accuracies, samples_at_once, score_of
from esper.tolaria.executors.passes import EAGER, Passes, eval_pass

_CACHED_ELEMENTS = 2**20
"""Of one activation tensor: above this, samples are measured in several goes, to stay in the cache."""


def move_split(split: Split, device: torch.device, dtype: torch.dtype) -> Split:
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
    parts = []
    for x in split.x.split(samples_at_once(model.sites, copies, _CACHED_ELEMENTS)):
        # The samples once per variant, and for each of these rows the alpha that its variant has.
        forced: dict[int, Tensor | float] = {}
        for slot in model.table.occupied[0].nonzero().flatten().tolist():
            per_sample = alphas[:, slot].repeat_interleave(len(x))
            forced[slot] = per_sample.to(x.device) if bool(per_sample.any()) else 0.0
        with model.override_alphas(forced):
            logits = passes(eval_pass, model, x.repeat(copies, *[1] * (x.ndim - 1)))
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
    tried = {} if trials is None else {slot: a for slot, a in enumerate(trials.tolist()) if a == a}

    # The network as it is, then one variant for each seed whose alpha is forced.
    forced = [*((slot, 0.0) for slot in blended), *((slot, 1.0) for slot in isolated), *tried.items()]
    alphas = table.alpha[0].repeat(1 + len(forced), 1)
    for copy, (slot, alpha) in enumerate(forced, start=1):
        alphas[copy, slot] = alpha
    parameter = next(model.parameters())
    loss, score = evaluate(model, task, move_split(split, parameter.device, parameter.dtype), alphas, passes)

    # What each variant tells, at the slot that it is about.
    own, without, with_all, with_more = score.split([1, len(blended), len(isolated), len(tried)])
    contributions, prospects, gains = torch.full((3, 1, len(model.sites)), NOT_MEASURED, device=score.device)
    contributions[0, blended] = own - without
    prospects[0, isolated] = with_all - own
    gains[0, list(tried)] = with_more.nan_to_num(0.0) - own
    return Measurement(loss[:1], own, contributions, prospects, gains)
