"""Networks of many structures, with the bypasses that are put into them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from esper.kasmina.export.bypass import Bypass
from esper.kasmina.sites import Family, SiteShape, Source

WIDTH = 6


def linear_branch(inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, outputs))


def conv_branch(inputs: int, outputs: int, strides: tuple[int, int] = (1, 1), dims: int = 1) -> nn.Sequential:
    conv = nn.Conv1d if dims == 1 else nn.Conv2d
    return nn.Sequential(
        conv(inputs, 4, 3, strides[0], padding=1), nn.ReLU(), conv(4, outputs, 3, strides[1], padding=1)
    )


def read(path: str, argument: int | str = 0, *, changed: bool = False) -> Source:
    return Source(path, "input", argument, SiteShape(Family.FEATURES, WIDTH), changed)


def returned(path: str, *, changed: bool = False) -> Source:
    return Source(path, "output", 0, SiteShape(Family.FEATURES, WIDTH), changed)


def layers(count: int = 6) -> nn.Sequential:
    """Linear layers with an activation between any two; layer 2n is linear."""
    return nn.Sequential(*(nn.Tanh() if index % 2 else nn.Linear(WIDTH, WIDTH) for index in range(count)))


class Loop(nn.Module):
    """Blocks in a list, an activation that is no module, a second argument, and a layer whose weights are read."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        h = x if shift is None else x + shift
        for block in self.blocks:
            h = block(h).relu_() + block.get_parameter("weight").mean()
        result: Tensor = self.head(h)
        return result


class Decoder(nn.Module):
    """Down and up again, with a skip connection around it."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 8, 3, 2, 1))
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU(inplace=True), nn.ConvTranspose2d(4, 2, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        low = self.down(x)
        result: Tensor = self.up(low) + x
        return result


@dataclass(frozen=True)
class Structure:
    """A network, what is inserted into it, and how that is expected to be done."""

    network: Callable[[], nn.Module]
    bypasses: Callable[[], list[Bypass]]
    nested: int
    """How many modules of nested layers there are in the end; 0 where everything is wired."""
    shapes: tuple[tuple[int, ...], ...] = ((5, WIDTH),)
    keyword: str | None = None
    """The name by which the last argument is given."""
    refining: Callable[[], Mapping[str, nn.Module]] = field(default=dict)

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        tensors = tuple(torch.randn(shape) for shape in self.shapes)
        return (tensors[:-1], {self.keyword: tensors[-1]}) if self.keyword else (tensors, {})


def features(*pairs: tuple[Source, str]) -> Callable[[], list[Bypass]]:
    return lambda: [Bypass(source, path, linear_branch()) for source, path in pairs]


def branches(*triples: tuple[Source, str, Callable[[], nn.Module]]) -> Callable[[], list[Bypass]]:
    return lambda: [Bypass(source, path, make()) for source, path, make in triples]


def convs(dims: int) -> nn.Sequential:
    conv = nn.Conv1d if dims == 1 else nn.Conv2d
    return nn.Sequential(
        nn.Sequential(conv(1, 5, 5, 2, 1), nn.ReLU()),
        nn.Sequential(conv(5, 6, 3, 2, 1), nn.ReLU(inplace=True)),
        conv(6, 7, 3, 2, 1),
    )


STRUCTURES = {
    "inside a sequence": Structure(layers, features((read("1"), "3")), 1),
    "around a single layer": Structure(layers, features((read("2"), "2")), 1),
    "from the beginning to the end": Structure(layers, features((read(""), "5")), 1),
    "what a layer returns": Structure(layers, features((returned("0"), "3")), 1),
    "two that overlap": Structure(layers, features((read("0"), "2"), (read("2"), "4")), 1),
    "two one after the other": Structure(layers, features((read("0"), "1"), (read("2"), "5")), 2),
    "one in another, listed last": Structure(layers, features((read("0"), "5"), (read("2"), "3")), 1),
    "one from where another ends": Structure(layers, features((read("0"), "2"), (returned("2"), "5")), 2),
    "two with the same ends": Structure(layers, features((read("1"), "4"), (read("1"), "4")), 1),
    "over a seed that refines": Structure(
        layers, features((read("1"), "4")), 1, refining=lambda: {"2": linear_branch(), "0": linear_branch()}
    ),
    "behind and before a seed that refines": Structure(
        layers, features((read("0"), "3"), (returned("3"), "5")), 2, refining=lambda: {"1": linear_branch()}
    ),
    "to the end of an inner sequence, as its own site": Structure(
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), layers(3), nn.Tanh()), features((read("1.1"), "1")), 1
    ),
    "to the last layer of a sequence that is refined": Structure(
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), layers(3), nn.Tanh()),
        features((read("0"), "1.2")),
        0,
        refining=lambda: {"1": linear_branch()},
    ),
    "from the first layer of one sequence to the last of another": Structure(
        lambda: nn.Sequential(layers(3), layers(2), layers(1)), features((read("0.0"), "1.1")), 1
    ),
    "between the middles of two sequences": Structure(
        lambda: nn.Sequential(layers(3), layers(3), layers(1)), features((read("0.1"), "1.1")), 0
    ),
    "one in a row and one across": Structure(
        lambda: nn.Sequential(layers(3), layers(3), layers(1)),
        features((read("0.1"), "1.1"), (read("0"), "1"), (read("1.0"), "1.1")),
        2,
    ),
    "a loop over a list": Structure(Loop, features((read("blocks.1"), "blocks.2")), 0),
    "two that overlap in a loop": Structure(
        Loop, features((read("blocks.0"), "blocks.2"), (returned("blocks.1", changed=True), "blocks.3")), 0
    ),
    "a loop with a seed that refines": Structure(
        Loop,
        features((read("blocks.0"), "blocks.1"), (read("blocks.2"), "blocks.3")),
        0,
        refining=lambda: {"blocks.2": linear_branch()},
    ),
    "from the model's input to its output": Structure(
        Loop, branches((read("", "x"), "head", partial(linear_branch, outputs=3))), 0
    ),
    "from an argument by keyword": Structure(
        Loop,
        branches((read("", "shift"), "head", partial(linear_branch, outputs=3))),
        0,
        ((5, WIDTH), (5, WIDTH)),
        "shift",
    ),
    "of what is changed in place, in a sequence": Structure(
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)),
        features((returned("0", changed=True), "2")),
        1,
    ),
    "of what is changed in place, by a wire": Structure(
        lambda: nn.Sequential(
            nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH)),
            nn.ReLU(inplace=True),
            nn.Sequential(layers(1), nn.Tanh()),
        ),
        features((returned("0.1", changed=True), "2.0.0")),
        0,
    ),
    "series with strides that do not come out even": Structure(
        partial(convs, 1),
        branches(
            (read(""), "1", partial(conv_branch, 1, 6, (2, 2))),
            (returned("0"), "2", partial(conv_branch, 5, 7, (3, 1))),
        ),
        1,
        ((3, 1, 41),),
    ),
    "pictures with strides that do not come out even": Structure(
        partial(convs, 2),
        branches((read("0.0"), "1.0", partial(conv_branch, 1, 6, (1, 3), 2))),
        0,
        ((3, 1, 19, 14),),
    ),
    "a decoder that is larger than its branch": Structure(
        Decoder,
        branches(
            (read("down"), "down.2", partial(conv_branch, 2, 8, (2, 2), 2)),
            (returned("down"), "up.2", partial(conv_branch, 8, 2, (1, 1), 2)),
        ),
        1,
        ((3, 2, 12, 8),),
    ),
    "from inside of the submodule that it is added to": Structure(
        Decoder, branches((read("down.2"), "up", partial(conv_branch, 4, 2, (1, 1), 2))), 0, ((3, 2, 12, 8),)
    ),
    "an activation that is used twice": Structure(
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), act := nn.Tanh(), nn.Linear(WIDTH, WIDTH), act, nn.Tanh()),
        features((read("0"), "2")),
        1,
    ),
}
