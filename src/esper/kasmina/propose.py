"""Proposing where a model could grow: behind its repeated blocks, spread over its depth."""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from esper.kasmina.probe import Candidate, Example, survey, unclear_sites
from esper.leyline import InputError

_BLOCKS = 3
"""How many blocks are proposed unless there are more places to fill."""


def propose_sites(model: nn.Module, example: Example, count: int | None = None) -> list[str]:
    """Submodules behind which slots make sense, in the order in which the model runs them; `count` of them at most.

    Those are the blocks that a model repeats, or else its layers, spread over its depth: behind their activation and,
    where a branch widens their own layer, in front of it; and the submodule that makes the model's output. If `count`
    asks for fewer, the blocks come first, then the output; if it asks for more, there are more blocks.
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
    return [path for path in known if path in picked]


def _spread(blocks: Sequence[Candidate], count: int) -> list[Candidate]:
    return [blocks[round((index + 1) * len(blocks) / count) - 1] for index in range(count)]


def _what_is_missing(model: nn.Module, example: Example, candidates: Sequence[Candidate]) -> str:
    """Why there is no proposal, with advice that helps for this model."""
    if not any(True for _ in model.children()):
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


def _repeated(model: nn.Module, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Children of lists and sequences that share their class with a sibling anywhere at the same depth."""
    listed = []
    for candidate in candidates:
        parent = model.get_submodule(candidate.path.rpartition(".")[0])
        if isinstance(parent, nn.ModuleList | nn.Sequential | nn.ModuleDict) and _has_weights(candidate.module):
            listed.append(candidate)
    kinds = Counter((type(candidate.module), candidate.path.count(".")) for candidate in listed)
    depths = [depth for (_, depth), number in kinds.items() if number > 1]
    return [candidate for candidate in listed if candidate.path.count(".") == min(depths, default=-1)]


def _layers(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Submodules with weights that are not part of another one; those made of several parts, if there are such."""
    weighty = [candidate for candidate in candidates if _has_weights(candidate.module)]
    composed = [candidate for candidate in weighty if any(True for _ in candidate.module.children())]
    weighty = composed if len(composed) > 1 else weighty
    paths = {candidate.path for candidate in weighty}
    return [candidate for candidate in weighty if not any(part in paths for part in _ancestors(candidate.path))]


def _ancestors(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _has_weights(module: nn.Module) -> bool:
    """Whether it holds a matrix; normalisations do not."""
    return any(parameter.ndim > 1 for parameter in module.parameters())


def _behind_activation(block: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """The last of the normalisations and activations that directly follow a single layer."""
    if any(True for _ in block.module.children()):
        return block
    parent = block.path.rpartition(".")[0]
    place = block
    for follower in candidates[candidates.index(block) + 1 :]:
        same_place = follower.path.rpartition(".")[0] == parent and follower.shape == block.shape
        if not same_place or _has_weights(follower.module):
            break
        place = follower
    return place


def _before_activation(block: Candidate, candidates: Sequence[Candidate]) -> str:
    """The submodule whose output the activation at the end of a block is given; "" if it does not end in one."""
    parent = block.path.rpartition(".")[0]
    if isinstance(block.module, nn.Sequential) and len(block.module) > 1:
        *_, before, last = block.module.named_children()
        return f"{block.path}.{before[0]}" if _is_activation(last[1]) else ""
    earlier = [other.path for other in candidates[: candidates.index(block)] if other.path.rpartition(".")[0] == parent]
    return earlier[-1] if _is_activation(block.module) and earlier else ""


def _is_activation(module: nn.Module) -> bool:
    return type(module).__module__ == nn.ReLU.__module__ and not any(True for _ in module.parameters())
