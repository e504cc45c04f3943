"""The forward pass of N stacked hosts: trunk and branches, part by part, with the seeds that they meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper.kasmina.joining import fit_positions
from esper.tolaria.executors.batched import Batched, GatherRows
from esper.tolaria.executors.chain import Chain
from esper.tolaria.executors.routes import Crossing, Route
from esper.tolaria.executors.rows import GroupKey


@dataclass(frozen=True, slots=True)
class Leaves:
    """Stacked parameters that gradients can be taken of: of each part of the host, and of each group of seeds."""

    parts: list[list[Tensor]]
    seeds: dict[GroupKey, list[Tensor]]

    def groups(self) -> list[list[Tensor]]:
        """All parts of the hosts as one, then each group of seeds, as `AllRows.groups`."""
        return [[leaf for part in self.parts for leaf in part], *self.seeds.values()]

    def all(self) -> list[Tensor]:
        return [leaf for group in self.groups() for leaf in group]


@dataclass(slots=True)
class Seen:
    """What of a pass is kept for merit: the trunk at these places, and behind every slot."""

    wanted: frozenset[int]
    places: dict[int, Tensor] = field(default_factory=dict)
    slots: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Pass:
    """A pass under way: where its rows stand."""

    route: Route
    tensors: Leaves
    h: Tensor
    """The trunk `[N, B, ...]`, or `[B, ...]` as long as all hosts share it."""
    shared: bool
    branches: Tensor | None = None
    """Rows of the branches born so far."""
    kept: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    """By place: trunk and branches there, for seeds further on to read."""

    @property
    def branch_owner(self) -> Tensor:
        return self.route.branch_owner[: 0 if self.branches is None else len(self.branches)]


class StackedForward:
    """Runs rows through a chain of parts."""

    def __init__(
        self,
        chain: Chain,
        parts: Sequence[Batched],
        num_hosts: int,
        blueprint: Callable[[GroupKey], Batched],
        place_read: Callable[[GroupKey], int | None],
    ) -> None:
        self._chain, self._parts, self._num_hosts = chain, parts, num_hosts
        self._blueprint, self._place_read = blueprint, place_read

    def __call__(
        self, route: Route, tensors: Leaves, x: Tensor, *, shared: bool = False, seen: Seen | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits of all hosts `[N, B, ...]` and of all branches; inputs `[N, B, ...]`, or `[B, ...]` if `shared`.

        `seen` takes what the trunk, not shared, is at the places that it wants and behind every slot.
        """
        now = _Pass(route, tensors, x, shared)
        read = {place for key in tensors.seeds if (place := self._place_read(key)) is not None}
        for place, part in enumerate(self._parts):
            # What seeds further on read has to be kept, from all hosts even if they still share it.
            if place in read:
                trunk = now.h.expand(self._num_hosts, *now.h.shape) if now.shared else now.h
                now.kept[place] = trunk, now.branches
            if seen is not None and place in seen.wanted:
                seen.places[place] = now.h
            self._run_part(now, part, tensors.parts[place])
            # Behind this part there may be a slot, and in it seeds of some hosts.
            slot = self._chain.slots.get(place)
            crossing = None if slot is None else route.crossings[slot]
            if slot is not None and crossing is not None:
                self._meet_seeds(now, slot, crossing)
            if seen is not None and slot is not None:
                seen.slots[slot] = now.h
        return now.h, now.branches

    def _run_part(self, now: _Pass, part: Batched, own: list[Tensor]) -> None:
        # Branches run with the weights of their hosts, which learn nothing from them.
        if now.branches is not None:
            owner = now.branch_owner
            now.branches = part([leaf.detach()[owner] for leaf in own], now.branches)
        # As long as no weights were met, what all hosts share is computed once.
        if now.shared and not own:
            now.h = part.alone(now.h)
        elif now.shared:
            now.h, now.shared = part.on_shared(own, now.h), False
        else:
            now.h = part(own, now.h)

    def _meet_seeds(self, now: _Pass, slot: int, crossing: Crossing) -> None:
        """Let the seeds of one slot act on the trunk and on the branches, and let new branches begin."""
        keys = [(slot, blueprint) for blueprint in crossing.groups]
        h, trailing = now.h, [1] * (now.h.ndim - 1)
        delta = self._trunk_deltas(now, keys, crossing)
        # Earlier branches first, as those that begin here do not meet the seeds of this slot.
        branches = now.branches
        if branches is not None and crossing.passing:
            branches = self._pass_branches(now, branches, keys, crossing)
        # New branches leave the trunk as it was in front of the slot, without a seed or with one at another alpha.
        born = []
        if len(crossing.left_out):
            born.append(h[crossing.owner[crossing.left_out]])
        if len(crossing.tried):
            tried_alpha = crossing.tried_alpha.to(h.dtype).view(-1, *trailing)
            born.append(h.detach()[crossing.owner[crossing.tried]] + tried_alpha * delta[crossing.tried])
        # The trunk takes up its blended seeds.
        if len(crossing.blended_at):
            alpha = crossing.alpha.to(h.dtype).view(-1, *trailing)
            blended = delta if len(alpha) == len(delta) else delta[crossing.blended_at]
            now.h = h.index_add(0, crossing.blended_owner, alpha * blended)
        if born:
            branches = torch.cat(born if branches is None else [branches, *born])
        now.branches = branches

    def _trunk_deltas(self, now: _Pass, keys: list[GroupKey], crossing: Crossing) -> Tensor:
        """What every seed of a slot makes of the trunk of its host, group by group."""
        places = [self._place_read(key) for key in keys]
        if not any(place is not None for place in places):  # all read the same tensor: gather it once
            pieces = GatherRows.apply(now.h, crossing.owner, crossing.blended_at).split(crossing.sizes)  # type: ignore[no-untyped-call]
            run = zip(keys, pieces, strict=True)
            return torch.cat([self._blueprint(key)(now.tensors.seeds[key], piece) for key, piece in run])
        # Groups read in different places: gather for each of them.
        deltas = []
        for key, place, owner, blended in zip(keys, places, *crossing.by_group(), strict=True):
            given = now.h if place is None else now.kept[place][0]
            rows = GatherRows.apply(given, owner, blended)  # type: ignore[no-untyped-call]
            deltas.append(fit_rows(self._blueprint(key)(now.tensors.seeds[key], rows), now.h))
        return torch.cat(deltas)

    def _pass_branches(self, now: _Pass, branches: Tensor, keys: list[GroupKey], crossing: Crossing) -> Tensor:
        """Earlier branches meet the blended seeds of this slot, which learn nothing from them."""
        deltas = []
        for number, meets, seeds in crossing.passing:
            key = keys[number]
            own = [leaf.detach()[seeds] for leaf in now.tensors.seeds[key]]
            given = self._given_to_branches(now, branches, self._place_read(key))
            deltas.append(fit_rows(self._blueprint(key)(own, given[meets]), branches))
        alpha = crossing.passing_alpha.to(branches.dtype).view(-1, *[1] * (branches.ndim - 1))
        index = torch.cat([meets for _, meets, _ in crossing.passing])
        return branches.index_add(0, index, alpha * torch.cat(deltas))

    def _given_to_branches(self, now: _Pass, branches: Tensor, place: int | None) -> Tensor:
        """What a kind of seeds reads of every branch: of one born after that place, what its host had there."""
        if place is None:
            return branches
        trunk, early = now.kept[place]
        if early is None:
            return trunk.detach()[now.branch_owner]
        return torch.cat([early, trunk.detach()[now.branch_owner[len(early) :]]])


def fit_rows(delta: Tensor, h: Tensor) -> Tensor:
    """`fit_positions` for rows `[R, B, ...]`."""
    if delta.shape[3:] == h.shape[3:]:
        return delta
    fitted = fit_positions(delta.flatten(0, 1), h[0])
    return fitted.view(*delta.shape[:2], *fitted.shape[1:])
