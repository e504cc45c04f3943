"""Many hosts as one: parameters of all hosts stacked, seeds grouped by slot and blueprint, rows instead of objects.

`rows.py` holds the rows and plans their route, `forward.py` runs them; would-be seeds are rows too, at the end here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from esper.kasmina import (
    NOT_MEASURED,
    Blueprint,
    Catalogue,
    GraftedModel,
    Site,
    SlotTable,
    Source,
    find_blueprint,
    graft,
)
from esper.kasmina.merit import MERIT_SAMPLES, VARIANTS, WouldBe, WouldBeSeeds, kinds_with_merit, relative
from esper.kasmina.seed_state import remove_slots
from esper.kasmina.torch_private import copy_tensors
from esper.tasks import Split, Task
from esper.tolaria.executors.base import (
    BatchStream,
    EpochResult,
    Measurement,
    Streams,
    drawing_from,
    flatten,
    learning_rate,
    losses_and_accuracies,
    network_of,
    samples_at_once,
    score_of,
)
from esper.tolaria.executors.forward import Batched, Leaves, Seen, StackedForward, cut_chain, fit_rows
from esper.tolaria.executors.rows import (
    AllRows,
    BranchKind,
    GroupKey,
    Route,
    RowOptimizer,
    Rows,
    clip_rows,
    leaves,
    plan_route,
    views,
)

_HELD_ELEMENTS = 2**23
"""Of one activation tensor in validation: above this, samples are measured in several goes, to stay in memory."""

_VMAP_ATTENTION = sdpa_kernel(SDPBackend.MATH)
"""The one kind of attention that vmap knows."""


class StackedExecutor:
    """Trains all hosts at once; agrees with `loop` to float tolerance. `Executor` says what the methods do."""

    def __init__(self, task: Task, num_hosts: int, episode_length: int, dtype: torch.dtype = torch.float32) -> None:
        self._task = task
        self._num_hosts = num_hosts
        self._length = episode_length
        self._dtype = dtype
        # What all hosts have in common: sites, parts and prices, from a host whose weights are never used.
        splits = task.splits()
        self._train_x, self._train_y = self._cast(splits.train.x), splits.train.y
        with torch.random.fork_rng(devices=[]):
            host = task.build_host().to(dtype)
        template = graft(host, at=host.slot_sites, example=self._cast(splits.val.x[:2]))
        self.sites, self.catalogue = template.sites, template.catalogue
        remove_slots(host)
        self._chain = cut_chain(host, self.sites)
        self._parts = [Batched(host.get_submodule(part)) for part in self._chain.parts]
        self._forward = StackedForward(self._chain, self._parts, num_hosts, self._blueprint, self._place_read)
        self.host_params = sum(part.size for part in self._parts)
        self._blueprints: dict[GroupKey, Batched] = {}
        self._merit = StackedMerit(self.sites, self.catalogue, num_hosts, dtype, self._blueprint, self._chain.sources)
        # What is each host's own; `start` gives these places their first hosts.
        self._streams = [Streams.from_seed(0) for _ in range(num_hosts)]
        self._batches = [self._batch_stream(streams) for streams in self._streams]
        self._steps = torch.zeros(num_hosts, dtype=torch.int64)
        weights = torch.zeros(num_hosts, self.host_params, dtype=dtype)
        self._now = AllRows(Rows.fresh(range(num_hosts), weights, task.optimizer))
        self._good = self._now.clone()
        self._table = SlotTable.empty(num_hosts, len(self.sites))

    def start(self, hosts: Sequence[int], seeds: Sequence[int]) -> None:
        for index, seed in zip(hosts, seeds, strict=True):
            streams = self._streams[index] = Streams.from_seed(seed)
            self._batches[index] = self._batch_stream(streams)
            self._merit.start(index, streams.variant)
            with drawing_from(streams.init):
                host = self._task.build_host().to(self._dtype)
            rows = self._now.hosts
            rows.weights[index] = torch.cat([flatten(host.get_submodule(part)) for part in host.parts])
            for column in (rows.first, rows.second, rows.steps):
                column[index] = 0
            self._steps[index] = 0
        # Seeds of the hosts that were there before go.
        fresh = torch.zeros(self._num_hosts, dtype=torch.bool)
        fresh[list(hosts)] = True
        self.follow(SlotTable.empty(*self._table.shape).where(fresh, self._table))

    def follow(self, table: SlotTable) -> None:
        """Remove and plant seeds until what is planted is what the table says."""
        for slot, site in enumerate(self.sites):
            planted, wanted = self._table.blueprint[:, slot], table.blueprint[:, slot]
            changed = planted != wanted
            # In every group that loses or gains seeds: those that stay, and new ones.
            for blueprint in {*planted[changed].tolist(), *wanted[changed].tolist()} - {0}:
                key = (slot, blueprint)
                born = (changed & (wanted == blueprint)).nonzero().flatten().tolist()
                kept = self._now.seeds.get(key)
                parts = [] if kept is None else [kept.select(~changed[kept.owner])]
                if born:
                    kind = find_blueprint(site.shape.family, blueprint)
                    parts.append(self._germinate(kind, slot, born, table.blended))
                self._now.set_seeds(key, parts)
        self._table = table

    def _germinate(self, kind: Blueprint, slot: int, hosts: list[int], silent: Tensor) -> Rows:
        fresh = []
        for host in hosts:
            with torch.inference_mode(False), drawing_from(self._streams[host].seeds):
                seed = kind.build(self.sites[slot].shape, bool(silent[host, slot]))
                fresh.append(flatten(seed.to(self._dtype)))
        return Rows.fresh(hosts, torch.stack(fresh), self._task.optimizer)

    @_VMAP_ATTENTION
    def train_epoch(self) -> EpochResult:
        task, count = self._task, self._task.batches_per_epoch
        batches = torch.stack([stream.take(count) for stream in self._batches], 1)
        rates = self._rates(count)
        route = self._route(leave_out=False, whole=True)
        tensors = self._leaves()
        # One gradient matrix for each group of rows, and views of it in the shapes of the parameters.
        groups = self._now.groups()
        optimizer = RowOptimizer(groups, self._steps, task.optimizer)
        gradients = [torch.empty_like(rows.weights) for rows in groups]
        pieces = [
            piece
            for matrix, group in zip(gradients, tensors.groups(), strict=True)
            for piece in views(matrix, [leaf.shape[1:] for leaf in group])
        ]
        # Loss, accuracy and the gradient norms before clipping, of every minibatch.
        results = []
        for samples, rate in zip(batches, rates, strict=True):
            shown = self._backward(route, tensors, samples, pieces)
            norms = clip_rows(gradients, task.optimizer.clip_norm)
            optimizer.step(gradients, rate)
            results.append((*shown, *norms))
        self._steps += count

        # Their means, those of seeds back in the places of their hosts.
        means = [torch.stack(column).mean(0).to(torch.float32) for column in zip(*results, strict=True)]
        loss, accuracy, host_norm, *group_norms = means
        seed_norms = torch.zeros(self._num_hosts, len(self.sites))
        for ((slot, _), rows), norm in zip(self._now.seeds.items(), group_norms, strict=True):
            seed_norms[rows.owner, slot] = norm
        return EpochResult(loss, score_of(task, loss, accuracy), host_norm, seed_norms)

    def _backward(self, route: Route, tensors: Leaves, samples: Tensor, pieces: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Write the gradients of all leaves into `pieces`; returns loss and accuracy."""
        y = self._train_y[samples]
        logits, branch_logits = self._forward(route, tensors, self._train_x[samples])
        loss, accuracy = losses_and_accuracies(logits, y)
        # Losses of all rows are independent, so the gradient of their sum holds that of each.
        total = loss.sum()
        if branch_logits is not None:
            total = total + losses_and_accuracies(branch_logits, y[route.branch_owner])[0].sum()
        copy_tensors(pieces, torch.autograd.grad(total, tensors.all()))
        return loss.detach(), accuracy

    @_VMAP_ATTENTION
    @torch.inference_mode()
    def measure(self, split: Split, *, what_if: bool = False, trials: Tensor | None = None) -> Measurement:
        """Validate all hosts, with and without each blended seed, sharing what lies before its slot."""
        route = self._route(leave_out=True, whole=what_if, trials=trials)
        tensors = self._leaves()
        rows = self._num_hosts + len(route.branch_owner)
        chunk = samples_at_once(self.sites, rows, _HELD_ELEMENTS)
        # Hosts and branches, one below the other; the mean over samples is built up chunk by chunk.
        loss, accuracy = torch.zeros(2, rows, dtype=self._dtype)
        x = self._cast(split.x)
        for xs, ys in zip(x.split(chunk), split.y.split(chunk), strict=True):
            trunk, branches = self._forward(route, tensors, xs, shared=True)
            logits = trunk if branches is None else torch.cat([trunk, branches])
            chunk_loss, chunk_accuracy = losses_and_accuracies(logits, ys.expand(rows, *ys.shape))
            loss += chunk_loss * (len(xs) / len(x))
            accuracy += chunk_accuracy * (len(xs) / len(x))
        score = score_of(self._task, loss, accuracy).to(torch.float32)
        gains = self._gains(route, score[: self._num_hosts], score[self._num_hosts :])
        return Measurement(loss[: self._num_hosts].to(torch.float32), score[: self._num_hosts], *gains)

    def _gains(self, route: Route, trunk: Tensor, branches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Contributions, prospects and trials from the scores of hosts and branches, each `[N, S]`."""
        result = torch.full((len(BranchKind), self._num_hosts, len(self.sites)), NOT_MEASURED)
        scores = torch.where(route.branch_kind == BranchKind.TRIES, branches.nan_to_num(0.0), branches)
        gain = scores - trunk[route.branch_owner]
        result[route.branch_kind, route.branch_owner, route.branch_slot] = gain
        return -result[BranchKind.LEAVES_OUT], result[BranchKind.HAS_WHOLE], result[BranchKind.TRIES]

    @_VMAP_ATTENTION
    def measure_merit(self, hosts: Tensor) -> Tensor:
        """One pass of all hosts for the gradients at their slots, then each kind in each slot of all these hosts."""
        samples = torch.stack([stream.latest for stream in self._batches])[:, :MERIT_SAMPLES]
        seen = self._merit.watch()
        route = self._route(leave_out=False, whole=False)
        logits, _ = self._forward(route, self._leaves(), self._train_x[samples], seen=seen)
        loss, _ = losses_and_accuracies(logits, self._train_y[samples])
        gradients = torch.autograd.grad(loss.sum(), list(seen.slots.values()))
        free = ~self._table.occupied & hosts[:, None]
        return self._merit.measure(free, seen, dict(zip(seen.slots, gradients, strict=True)))

    def remember(self, hosts: Tensor) -> None:  # noqa: ARG002  # all others stand at their last good state anyway
        """Keep all rows; hosts that failed have been restored before, so theirs do not change."""
        self._good = self._now.clone()

    def restore(self, hosts: Tensor, table: SlotTable) -> None:
        failed, good = hosts, self._good
        self._now.hosts = Rows.merged([self._now.hosts.select(~failed), good.hosts.select(failed)])
        # A group keeps the seeds of hosts that go on, and gets those that failed hosts had.
        for key in sorted({*self._now.seeds, *good.seeds}):
            sources = ((self._now.seeds.get(key), ~failed), (good.seeds.get(key), failed))
            self._now.set_seeds(key, [rows.select(wanted[rows.owner]) for rows, wanted in sources if rows is not None])
        self._table = table

    def network(self, host: int) -> GraftedModel:
        seeds = {
            slot: rows.weights[int((rows.owner == host).int().argmax())]
            for (slot, _), rows in self._now.seeds.items()
            if host in rows.owner
        }
        row = self._table.select(slice(host, host + 1))
        return network_of(self._task, self._dtype, self.sites, row, self._now.hosts.weights[host], seeds)

    def state_dict(self) -> dict[str, Any]:
        """All rows and the random streams; at the end of a step the last good state is the present one."""
        return {
            "hosts": asdict(self._now.hosts),
            "seeds": [[*key, asdict(rows)] for key, rows in self._now.seeds.items()],
            "steps": self._steps.clone(),
            "streams": [streams.state_dict() for streams in self._streams],
            "batches": [stream.state_dict() for stream in self._batches],
        }

    def load_state_dict(self, state: Mapping[str, Any], table: SlotTable) -> None:
        seeds = {(slot, blueprint): Rows(**rows) for slot, blueprint, rows in state["seeds"]}
        self._now = AllRows(Rows(**state["hosts"]), seeds).clone()
        self._good = self._now.clone()
        self._steps = state["steps"].clone()
        for index in range(self._num_hosts):
            self._streams[index].load_state_dict(state["streams"][index])
            self._batches[index] = self._batch_stream(self._streams[index])
            self._batches[index].load_state_dict(state["batches"][index])
            self._merit.start(index, self._streams[index].variant)
        self._table = table

    def _route(self, *, leave_out: bool, whole: bool, trials: Tensor | None = None) -> Route:
        slots: list[dict[int, Tensor]] = [{} for _ in self.sites]
        for (slot, blueprint), rows in self._now.seeds.items():
            slots[slot][blueprint] = rows.owner
        return plan_route(slots, self._table, leave_out=leave_out, whole=whole, trials=trials)

    def _leaves(self) -> Leaves:
        shapes = [part.shapes for part in self._parts]
        pieces = self._now.hosts.weights.split([part.size for part in self._parts], 1)
        parts = [leaves(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]
        seeds = {key: leaves(rows.weights, self._blueprint(key).shapes) for key, rows in self._now.seeds.items()}
        return Leaves(parts, seeds)

    def _blueprint(self, key: GroupKey) -> Batched:
        if key not in self._blueprints:
            slot, blueprint = key
            shape = self.sites[slot].shape
            with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
                self._blueprints[key] = Batched(find_blueprint(shape.family, blueprint).build(shape).to(self._dtype))
        return self._blueprints[key]

    def _place_read(self, key: GroupKey) -> int | None:
        """Where in the chain seeds of this kind read; None if that is at their slot."""
        slot, blueprint = key
        site = self.sites[slot]
        source = site.source_of(find_blueprint(site.shape.family, blueprint).reads)
        return None if source is None else self._chain.sources[source]

    def _rates(self, count: int) -> list[dict[int, float]]:
        """The learning rate of each of the next `count` minibatches, by the step at which a host begins the epoch."""
        how, total = self._task.optimizer, self._length * count
        starts = set(self._steps.tolist())
        return [{start: learning_rate(how, start + i, count, total) for start in starts} for i in range(count)]

    def _batch_stream(self, streams: Streams) -> BatchStream:
        return BatchStream(len(self._train_y), self._task.batch_size, streams.shuffle)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self._dtype) if x.is_floating_point() else x


class StackedMerit:
    """Keeps the variants of would-be seeds as rows, and measures their merit in the hosts that they belong to."""

    def __init__(
        self,
        sites: Sequence[Site],
        catalogue: Catalogue,
        num_hosts: int,
        dtype: torch.dtype,
        blueprint: Callable[[GroupKey], Batched],
        sources: Mapping[Source, int],
    ) -> None:
        self._sites, self._catalogue, self._num_hosts, self._dtype = sites, catalogue, num_hosts, dtype
        self._blueprint = blueprint
        self._seeds = WouldBeSeeds()
        self._variants: dict[GroupKey, Tensor] = {}
        """`[V, P]` each."""
        self._variant = torch.zeros(num_hosts, dtype=torch.int64)
        self._kinds: dict[GroupKey, Blueprint] = {}
        self._places: dict[GroupKey, int] = {}
        """Where in the chain would-be seeds read."""
        for slot, site in enumerate(sites):
            for kind, source in kinds_with_merit(site, catalogue.fits[slot]):
                self._kinds[slot, kind.id], self._places[slot, kind.id] = kind, sources[source]

    def watch(self) -> Seen:
        """What a pass has to keep for `measure`."""
        return Seen(frozenset(self._places.values()))

    def start(self, host: int, variant: int) -> None:
        self._variant[host] = variant

    def measure(self, free: Tensor, seen: Seen, gradients: Mapping[int, Tensor]) -> Tensor:
        """`[N, S, B]`: merit where `free [N, S]`; `gradients` are those of each host's loss at each slot."""
        sums = torch.full((self._num_hosts, *self._catalogue.fits.shape), NOT_MEASURED, dtype=self._dtype)
        for key, place in self._places.items():
            slot, blueprint = key
            hosts = free[:, slot].nonzero().flatten()
            if len(hosts):
                given = seen.places[place].detach()
                sums[hosts, slot, blueprint - 1] = self._sums(key, hosts, given, gradients[slot])
        # Relative to the gradient that arrives at the slot, so that slots can be compared.
        arriving = [torch.linalg.vector_norm(gradients[slot].flatten(1), dim=1) for slot in range(len(self._sites))]
        return relative(sums, torch.stack(arriving, 1))

    def _sums(self, key: GroupKey, hosts: Tensor, given: Tensor, gradient: Tensor) -> Tensor:
        """`[R]`: the sums of the absolute gradients of these hosts' would-be seeds."""
        rows = self._rows(key)[self._variant[hosts]]
        if len(hosts) < self._num_hosts:
            given, gradient = given[hosts], gradient[hosts]
        # Only parameters that learn at first are asked for gradients; a zero one may hide all others.
        tensors = views(rows, self._blueprint(key).shapes)
        first = zip(tensors, self._find(key, 0).learns, strict=True)
        asked = [tensor.requires_grad_() for tensor, learns in first if learns]
        delta = fit_rows(self._blueprint(key)(tensors, given), gradient)
        found = torch.autograd.grad(delta, asked, gradient)
        return torch.cat([one.flatten(1) for one in found], 1).abs().sum(1)

    def _rows(self, key: GroupKey) -> Tensor:
        if key not in self._variants:
            modules = [self._find(key, variant).module for variant in range(VARIANTS)]
            self._variants[key] = torch.stack([flatten(module) for module in modules])
        return self._variants[key]

    def _find(self, key: GroupKey, variant: int) -> WouldBe:
        place = torch.device("cpu"), self._dtype
        return self._seeds.find(self._sites[key[0]], self._kinds[key], variant, place)
