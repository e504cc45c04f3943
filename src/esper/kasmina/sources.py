"""Finding what a slot could be connected with: tensors earlier in the same forward pass that can be joined to it."""

from collections.abc import Mapping

from torch import Tensor, nn

from esper.kasmina.probe import Example, batch_size
from esper.kasmina.sites import FAMILY_BY_RANK, Family, Port, Reach, SiteShape, Source, family_at, site_shape
from esper.kasmina.trace import Event, Trace, trace_passes
from esper.leyline import InputError, unknown_name

Sources = Mapping[str, Mapping[str, str]]
"""By slot: the submodules whose outputs are its "near" and "far" source; "NAME:input" means what NAME is given."""
REACHES: tuple[Reach, ...] = ("near", "far")
_INPUT = ":input"


def find_sources(
    model: nn.Module, sites: Mapping[str, SiteShape], example: Example, asked: Sources | None = None
) -> dict[str, dict[Reach, Source]]:
    """The sources of each site, by reach. They hold in train and in eval mode, and for inputs of any lengths."""
    _check_asked(model, sites, asked or {})
    sequences = any(site.family is Family.FEATURES and site.extent for site in sites.values())
    finder = _Finder(model, sites, trace_passes(model, example, sequences=sequences), batch_size(model, example))
    return {path: finder.choose(path, (asked or {}).get(path, {})) for path in sites}


class _Finder:
    """Chooses sources by what some passes showed; by the order of the first one."""

    def __init__(self, model: nn.Module, sites: Mapping[str, SiteShape], traces: list[Trace], batch: int) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._sites = sites
        self._traces = traces
        self._events = traces[0].events
        self._batch = batch

    def choose(self, path: str, wanted: Mapping[str, str]) -> dict[Reach, Source]:
        """The near and the far source of the site; those that were asked for, or else the usual ones."""
        events: dict[Reach, Event | None] = {"near": self._near(path), "far": self._far(path)}
        for reach in REACHES:
            if reach in wanted:
                events[reach] = self._asked(path, wanted[reach])
        near, far = events["near"], events["far"]
        if near is not None and far is not None and near.tensor is far.tensor:
            events["near"] = None
        return {reach: self._source(event, path) for reach, event in events.items() if event is not None}

    def _source(self, event: Event, path: str) -> Source:
        shape = site_shape(self._sites[path].family, tuple(event.tensor.shape), self._batch)
        twins = [trace.twin(event) for trace in self._traces]
        changed = any(twin is not None and twin.changed for twin in twins)
        return Source(event.path, event.port, event.argument, shape, changed)

    def _near(self, path: str) -> Event | None:
        """What the submodule of the slot before, of which it is no part, was given; of the first slot its own."""
        first = self._traces[0]
        ends = {site: event.index for site in self._sites if (event := first.find(site, "output")) is not None}
        earlier = [site for site in ends if ends[site] < ends.get(path, 0) and _apart(site, path)]
        event = first.find(max(earlier, key=lambda site: ends[site], default=path), "input")
        return event if event is not None and self._obstacle(event, path) is None else None

    def _far(self, path: str) -> Event | None:
        """The earliest tensor of the pass that can be joined to the site."""
        return next((event for event in self._events if self._obstacle(event, path) is None), None)

    def _asked(self, path: str, name: str) -> Event:
        port: Port = "input" if name.endswith(_INPUT) else "output"
        event = self._traces[0].find(name.removesuffix(_INPUT), port)
        problem = "it never runs, or is no plain tensor" if event is None else self._obstacle(event, path, told=True)
        if event is not None and problem is None:
            return event
        places = dict.fromkeys(
            f"{other.path}{_INPUT if other.port == 'input' else ''}"
            for other in self._events
            if self._obstacle(other, path, told=True) is None
        )
        raise InputError(
            f"sources: {name!r} cannot be joined to what {path!r} returns: {problem}. "
            f"What can: {', '.join(places) or 'nothing in this model'}"
        )

    def _obstacle(self, event: Event, path: str, *, told: bool = False) -> str | None:
        """Why the tensor cannot be joined to the site in all passes, or None; `told`: it is asked for by its name."""
        for trace in self._traces:
            twin, target = trace.twin(event), trace.find(path, "output")
            if twin is None or target is None or trace.calls[path] != 1 or trace.calls[event.path] != 1:
                return "both must run exactly once in a pass"
            problem = (
                self._out_of_reach(trace, twin, target)
                or (None if told else _unrelated(twin, target))
                or self._other_family(trace, twin, target, told=told)
                or self._other_shape(event, twin, target)
            )
            if problem is not None:
                return problem
        return None

    def _out_of_reach(self, trace: Trace, event: Event, target: Event) -> str | None:
        """Why the tensor is not there when it is needed, or not in every kind of pass."""
        if event.index >= trace.began[target.path] and not (event.path == target.path and event.port == "input"):
            return "it is not there yet when the submodule of the slot begins"
        if not event.in_graph or not target.in_graph:
            return "no gradients are recorded there in the forward pass"
        if {event.path, target.path} & trace.recomputed:
            return "activations there are computed again in the backward pass"
        if any(self._in_one_kernel(path) for path in (event.path, target.path)):
            return "torch runs nn.TransformerEncoderLayer in one piece in evaluation, without the layers inside of it"
        return None

    def _in_one_kernel(self, path: str) -> bool:
        parents = [path[:end] for end, letter in enumerate(path) if letter == "."]
        return any(isinstance(self._modules[parent], nn.TransformerEncoderLayer) for parent in parents)

    def _other_family(self, trace: Trace, event: Event, target: Event, *, told: bool) -> str | None:
        """Why the tensor is not of the kind that the slot is; `told`: it need not be clear by itself."""
        if not event.tensor.is_floating_point():
            return f"it holds {event.tensor.dtype}, not floating-point numbers"
        family, wanted = self._family(trace, event.tensor), self._sites[target.path].family
        if family is wanted or (told and family is None):
            return None
        return f"it is {family or 'of no family that could be told'}, and the slot is {wanted}"

    def _family(self, trace: Trace, tensor: Tensor) -> Family | None:
        """What the layers that made or used this very tensor, and the slots, say of it; None if they do not tell."""
        touching, shape = trace.touching(tensor), tuple(tensor.shape)
        readings = {family_at(self._modules[event.path], shape, event.port) for event in touching} - {None}
        readings |= {
            self._sites[event.path].family for event in touching if event.port == "output" and event.path in self._sites
        }
        # By its axes alone only what cannot be a mask: what a submodule returns, or all that the model is given.
        inputs = [event for event in trace.events if event.path == "" and event.port == "input"]
        no_mask = any(event.port == "output" for event in touching) or (len(inputs) == 1 and inputs[0] in touching)
        if not readings and no_mask and len(shape) in FAMILY_BY_RANK:
            return FAMILY_BY_RANK[len(shape)]
        return readings.pop() if len(readings) == 1 else None

    def _other_shape(self, first: Event, event: Event, target: Event) -> str | None:
        """Why tensors of these shapes cannot be joined, or None; `first` is the event in the first pass."""
        family, source, site = self._sites[target.path].family, tuple(event.tensor.shape), tuple(target.tensor.shape)
        axis = -1 if family is Family.FEATURES else 1
        if first.tensor.shape[axis] != source[axis]:
            return "its width is not the same in all passes"
        if len(source) != len(site) or source[0] != site[0] or (self._batch and source[0] != self._batch):
            return f"its shape is {list(source)}, that of the slot {list(site)}: axes or batches differ"
        if family is Family.FEATURES and source[:-1] != site[:-1]:
            return f"its shape is {list(source)}, that of the slot {list(site)}: positions differ"
        if not self._batch and family is not Family.FEATURES:
            return "the model takes time first, so samples could be mixed"
        return None


def _unrelated(event: Event, target: Event) -> str | None:
    """Why joining them would bring together what the model keeps apart."""
    if not event.from_example:
        return "it does not depend on what the model is given"
    return None if target.made_with(event) else "what the slot carries is not made from it"


def _apart(one: str, other: str) -> bool:
    """Whether neither of two submodules is a part of the other."""
    return not f"{one}.".startswith(f"{other}.") and not f"{other}.".startswith(f"{one}.")


def _check_asked(model: nn.Module, sites: Mapping[str, SiteShape], asked: Sources) -> None:
    paths = [path for path, _ in model.named_modules(remove_duplicate=False)]
    for slot, wanted in asked.items():
        if slot not in sites:
            raise unknown_name("slot in sources", slot, sites)
        if not isinstance(wanted, Mapping):
            raise InputError(f"sources[{slot!r}] must be a mapping, as in {{'far': 'layer1'}}; got {wanted!r}")
        for reach, name in wanted.items():
            if reach not in REACHES:
                raise unknown_name(f"source of {slot!r}", reach, REACHES)
            if not isinstance(name, str) or name.removesuffix(_INPUT) not in paths:
                raise unknown_name("submodule in sources", name, paths[1:])
