"""Proposing where a model could grow: behind its repeated blocks, spread over its depth."""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from esper.kasmina.probe import CandidateSite, Example, survey, unclear_sites
from esper.kasmina.sites import SiteShape
from esper.kasmina.sources import find_sources
from esper.leyline import InputError

_BLOCKS = 3
"""How many blocks are proposed unless there are more places to fill."""
_WORTH_BYPASSING = 2
"""Layers that a branch has to lead past; fewer gain little."""


def propose_sites(model: nn.Module, example: Example, count: int | None = None) -> list[str]:
    """Submodules behind which slots make sense, in the order in which the model runs them; `count` of them at most.

    Those are the blocks that a model repeats, or else its layers, spread over its depth: behind their activation and
    pooling, where maps are small, or in front of the activation, where a branch widens their own layer; and the
    submodule that makes the model's output. If `count` asks for fewer, the blocks come first, then the output; if it
    asks for more, there are more blocks. Without a `count`, places that a branch from the earliest tensor reaches only
    past a single layer are left out, if there are others: there it has next to nothing to bypass.
    """
    candidates = survey(model, example)
    useful = [candidate for candidate in candidates if not candidate.returned] or candidates
    blocks = _repeated(model, useful) or _layers(useful)
    if not blocks:
        raise InputError(f"no place to grow was found: {_what_is_missing(model, example, useful)}")
    known = {candidate.path: candidate for candidate in candidates}
    wanted = len(candidates) if count is None else count
    outputs = [candidate.path for candidate in candidates if candidate.returned][:1]
    for number in range(min(_BLOCKS, wanted, len(blocks)), len(blocks) + 1):
        chosen = [_behind_activation(block, useful) for block in _spread(blocks, number)]
        inner = [path for block in chosen if (path := _before_activation(block, useful)) in known]
        paths = dict.fromkeys([*(block.path for block in chosen), *outputs, *inner])
        if len(paths) >= wanted or count is None:
            break
    picked = set(list(paths)[:wanted])
    proposed = [path for path in known if path in picked]
    return _worth_a_branch(model, example, candidates, proposed) if count is None else proposed


def _worth_a_branch(
    model: nn.Module, example: Example, candidates: Sequence[CandidateSite], proposed: list[str]
) -> list[str]:
    """Those of the proposed places that a branch reaches past several layers; all of them if there are none."""
    shapes = {candidate.path: candidate.shape for candidate in candidates if candidate.path in proposed}
    sources = find_sources(model, shapes, example)
    order = [candidate.path for candidate in candidates]
    layers = [c.path for c in candidates if _has_weights(c.module) and not _has_parts(c.module)]

    def bypassed(path: str) -> int:
        source = sources[path].get("far")
        if source is None:
            return 0
        inside = f"{source.path}." if source.path else ""
        if source.port == "input":  # the layers of that submodule come behind it
            start = min((order.index(p) for p in order if p == source.path or p.startswith(inside)), default=0) - 1
        else:
            start = order.index(source.path) if source.path in order else -1
        return sum(start < order.index(layer) <= order.index(path) for layer in layers)

    return [path for path in proposed if bypassed(path) >= _WORTH_BYPASSING] or proposed


def _spread(blocks: Sequence[CandidateSite], count: int) -> list[CandidateSite]:
    return [blocks[round((index + 1) * len(blocks) / count) - 1] for index in range(count)]


def _what_is_missing(model: nn.Module, example: Example, candidates: Sequence[CandidateSite]) -> str:
    """Why there is no proposal, with advice that helps for this model."""
    if not _has_parts(model):
        return (
            "slots go behind submodules, and this model has none; build it from submodules that return one tensor "
            "each, or, if it returns one itself, pass torch.nn.Sequential(model) to grow behind its output"
        )
    if candidates:
        names = [candidate.path for candidate in candidates]
        return f"no submodule behind which a slot can go has weights; name those to use, as in at={names}"
    if unclear := unclear_sites(model, example):
        return (
            f"no submodule tells which axis of its output is the width; name one with its family, as in "
            f"at={{{unclear[0]!r}: 'features'}} for the last axis, of: {', '.join(unclear)}"
        )
    return (
        "no submodule returns one plain floating-point tensor with a width beside the batch; let the part that should "
        "grow be a submodule that does"
    )


def _repeated(model: nn.Module, candidates: Sequence[CandidateSite]) -> list[CandidateSite]:
    """Children of lists and sequences that share their class with a sibling anywhere at the same depth."""
    listed = []
    for candidate in candidates:
        parent = model.get_submodule(candidate.path.rpartition(".")[0])
        if isinstance(parent, nn.ModuleList | nn.Sequential | nn.ModuleDict) and _has_weights(candidate.module):
            listed.append(candidate)
    kinds = Counter((type(candidate.module), candidate.path.count(".")) for candidate in listed)
    depths = [depth for (_, depth), number in kinds.items() if number > 1]
    return [candidate for candidate in listed if candidate.path.count(".") == min(depths, default=-1)]


def _layers(candidates: Sequence[CandidateSite]) -> list[CandidateSite]:
    """Submodules with weights that are not part of another one; those made of several parts, if there are such."""
    weighty = [candidate for candidate in candidates if _has_weights(candidate.module)]
    composed = [candidate for candidate in weighty if _has_parts(candidate.module)]
    weighty = composed if len(composed) > 1 else weighty
    parents = tuple(f"{candidate.path}." for candidate in weighty)
    return [candidate for candidate in weighty if not candidate.path.startswith(parents)]


def _has_weights(module: nn.Module) -> bool:
    """Whether it holds a matrix; normalisations do not."""
    return any(parameter.ndim > 1 for parameter in module.parameters())


def _has_parts(module: nn.Module) -> bool:
    return any(True for _ in module.children())


def _behind_activation(block: CandidateSite, candidates: Sequence[CandidateSite]) -> CandidateSite:
    """The last of the normalisations, activations and poolings that directly follow a single layer."""
    if _has_parts(block.module):
        return block
    parent = block.path.rpartition(".")[0]
    place = block
    for follower in candidates[candidates.index(block) + 1 :]:
        elsewhere = follower.path.rpartition(".")[0] != parent
        if elsewhere or _has_weights(follower.module) or not _only_smaller(place.shape, follower.shape):
            break
        place = follower
    return place


def _only_smaller(before: SiteShape, after: SiteShape) -> bool:
    """Whether two tensors are alike but for positions that a pooling took away, and more than one is left."""
    alike = (before.family, before.width) == (after.family, after.width)
    return alike and (before.extent == after.extent or 1 < after.positions < before.positions)


def _before_activation(block: CandidateSite, candidates: Sequence[CandidateSite]) -> str:
    """The submodule whose output the activation at the end of a block is given; "" if it does not end in one."""
    parent = block.path.rpartition(".")[0]
    if isinstance(block.module, nn.Sequential) and len(block.module) > 1:
        *_, before, last = block.module.named_children()
        return f"{block.path}.{before[0]}" if _is_activation(last[1]) else ""
    earlier = [other.path for other in candidates[: candidates.index(block)] if other.path.rpartition(".")[0] == parent]
    return earlier[-1] if _is_activation(block.module) and earlier else ""


def _is_activation(module: nn.Module) -> bool:
    return type(module).__module__ == nn.ReLU.__module__ and not any(True for _ in module.parameters())
