"""Sites: the shapes that seeds are built for, and how a module's output is told to be one."""

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Literal, Self

import torch
from torch import nn

from esper.kasmina.torch_private import BatchNorm, Convolution
from esper.leyline import InputError


class Family(StrEnum):
    """Which kind of tensor a site carries, and so which blueprints can grow there."""

    CONV2D = "conv2d"
    """`[N, C, H, W]`, width C."""
    CONV1D = "conv1d"
    """`[N, C, L]`, width C."""
    FEATURES = "features"
    """`[..., D]`, width D: the outputs of linear layers, MLPs and transformers."""


Reach = Literal["near", "far"]
"""From where a seed that connects reads: the input of the submodule of the slot before, or the earliest tensor."""
Port = Literal["input", "output"]
_CHANNEL_FAMILIES = {3: Family.CONV1D, 4: Family.CONV2D}
FAMILY_BY_RANK = {2: Family.FEATURES, 4: Family.CONV2D}
"""What the number of axes tells by itself, where no layer says anything."""
_EXTENT_SIZES = {Family.CONV2D: (2,), Family.CONV1D: (1,), Family.FEATURES: (0, 1)}


@dataclass(frozen=True, slots=True)
class SiteShape:
    """What a blueprint needs to know of the place it is built for."""

    family: Family
    width: int
    extent: tuple[int, ...] = ()
    """Sizes beside batch and width: (H, W), (L,), (T,) for a sequence of features, () for plain features."""
    near: Self | None = None
    """Shape of the near source, if there is one that can be joined to this site."""
    far: Self | None = None
    """Shape of the far source, if there is one that can be joined to this site."""
    around: int = 0
    """Parameters of the part of the host that the slots are spread over: what seeds that connect are sized by."""

    def __post_init__(self) -> None:
        if self.width < 1 or any(size < 1 for size in self.extent):
            raise InputError(f"a site needs positive sizes; got width {self.width}, extent {self.extent}")
        if len(self.extent) not in _EXTENT_SIZES[self.family]:
            raise InputError(f"extent {self.extent} does not fit the family {self.family}")

    @property
    def positions(self) -> int:
        """How many places share the width: H·W, L, T or 1."""
        return math.prod(self.extent)

    @property
    def carries(self) -> str:
        """What is passed on here, in a few words: what a controller has been trained on, or not."""
        of_sequences = self.family is Family.FEATURES and self.extent
        return "sequences of features" if of_sequences else self.family.value

    def source(self, reach: Reach) -> Self | None:
        return self.near if reach == "near" else self.far

    def tensor_shape(self, batch: int) -> tuple[int, ...]:
        if self.family is Family.FEATURES:
            return (batch, *self.extent, self.width)
        return (batch, self.width, *self.extent)


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the forward pass that seeds further on can read."""

    path: str
    """The submodule; "" is the model itself."""
    port: Port
    """What it is given, or what it returns."""
    argument: int | str
    """Of an input: which argument, by position or by keyword; 0 for an output."""
    shape: SiteShape
    changed: bool = False
    """Whether something later in the pass writes into it, so that readers need a copy."""

    def __str__(self) -> str:
        return f"the {self.port} of {repr(self.path) if self.path else 'the model'}"


@dataclass(frozen=True, slots=True)
class Site:
    """One place where a host can grow."""

    path: str
    """Name of the submodule behind which the slot sits."""
    slot_id: str
    shape: SiteShape
    dtype: torch.dtype
    """Of the submodule's output when the slot was grafted."""
    sources: tuple[tuple[Reach, Source], ...] = ()
    """What seeds of kinds that connect read here."""
    rectified: bool = False
    """Whether the output had no value below 0 when the slot was grafted, as behind a ReLU."""

    def source_of(self, reads: Reach | None) -> Source | None:
        """What a seed whose kind reads from there reads; None if that is the tensor at the slot itself."""
        return dict(self.sources).get(reads) if reads else None


def common_path(*paths: str) -> str:
    """The innermost module that holds all these submodules, themselves included."""
    levels = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))


def _channels(layer: nn.Module) -> int | None:
    """The size that `layer` gives axis 1 of its output, if it is of that kind."""
    if isinstance(layer, Convolution):
        return layer.out_channels
    if isinstance(layer, nn.GroupNorm):
        return layer.num_channels
    return layer.num_features if isinstance(layer, BatchNorm) else None


def _features(layer: nn.Module) -> int | None:
    """The size that `layer` gives the last axis of its output, if it is of that kind."""
    if isinstance(layer, nn.Linear):
        return layer.out_features
    if isinstance(layer, nn.Embedding):
        return layer.embedding_dim
    return layer.normalized_shape[-1] if isinstance(layer, nn.LayerNorm | nn.RMSNorm) else None


def _reads_channels(layer: nn.Module) -> int | None:
    """The size that axis 1 of the input of `layer` must have, if it is of that kind."""
    return layer.in_channels if isinstance(layer, Convolution) else _channels(layer)


def _reads_features(layer: nn.Module) -> int | None:
    """The size that the last axis of the input of `layer` must have, if it is of that kind."""
    if isinstance(layer, nn.Linear):
        return layer.in_features
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        width: int = layer.input_size if isinstance(layer, nn.RNNBase) else layer.embed_dim
        return width
    return None if isinstance(layer, nn.Embedding) else _features(layer)


def family_at(module: nn.Module, shape: tuple[int, ...], port: Port) -> Family | None:
    """What a single layer says of a tensor that it is given or returns; None if it does not tell."""
    channels, features = (_reads_channels, _reads_features) if port == "input" else (_channels, _features)
    if channels(module) == shape[1] and len(shape) in _CHANNEL_FAMILIES:
        return _CHANNEL_FAMILIES[len(shape)]
    return Family.FEATURES if features(module) == shape[-1] else None


def infer_family(module: nn.Module, shape: tuple[int, ...]) -> Family:
    """The family of `module`'s output of shape `shape`.

    `[N, C, L]` and `[N, T, D]` look alike, so the layers inside the module that fix the size of one of its
    axes decide. Where they contradict each other, or where there are none and the rank alone does not
    tell, the answer is an error: a wrong guess would grow along the wrong axis.
    """
    channels = [size for layer in module.modules() if (size := _channels(layer))]
    readings = {Family.FEATURES for layer in module.modules() if _features(layer) == shape[-1]}
    if shape[1] in channels:
        readings.add(_CHANNEL_FAMILIES.get(len(shape), Family.FEATURES))
    if len(readings) == 1 and len(shape) <= 4:
        return readings.pop()
    if not readings and len(shape) in FAMILY_BY_RANK:
        return FAMILY_BY_RANK[len(shape)]
    if readings == {Family.FEATURES} and not channels:
        return Family.FEATURES
    raise InputError(
        f"it does not tell which axis of its output of shape {list(shape)} is the width; say so with "
        "at={'name': 'features'} for the last, at={'name': 'conv1d'} or 'conv2d' for the second"
    )


def site_shape(family: Family, shape: tuple[int, ...], batch: int) -> SiteShape:
    """The site that a tensor of `shape` makes, from an example of `batch` samples.

    Features count as a sequence only where the first axis is the batch: attending along any other axis
    would mix samples.
    """
    if family is Family.FEATURES:
        is_sequence = len(shape) == 3 and shape[0] == batch
        return SiteShape(family, shape[-1], (shape[1],) if is_sequence else ())
    if len(shape) != 2 + _EXTENT_SIZES[family][0]:
        raise InputError(f"its output of shape {list(shape)} does not fit the family {family}")
    return SiteShape(family, shape[1], shape[2:])
