"""Proposing where a model could grow: behind its repeated blocks, spread over its depth."""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from esper.kasmina.probe import Candidate, Example, survey, unclear_sites
from esper.leyline import InputError


def propose_sites(model: nn.Module, example: Example, count: int) -> list[str]:
    """Up to `count` submodules behind which slots make sense, in the order in which the model runs them.

    Those are the blocks that a model repeats, or else its layers, without the one that makes its output.
    """
    candidates = survey(model, example)
    useful = [candidate for candidate in candidates if not candidate.returned] or candidates
    blocks = _repeated(model, useful) or _layers(useful)
    if not blocks:
        raise InputError(f"no place to grow was found: {_what_is_missing(model, example, useful)}")
    chosen = [blocks[round((index + 1) * len(blocks) / count) - 1] for index in range(count)]
    settled = [_behind_activation(block, useful).path for block in (chosen if len(blocks) > count else blocks)]
    return list(dict.fromkeys(settled))


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
