"""Six models with their data as people bring them: none is a host of Esper's own, and Esper was not tuned on them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics

import torch
from sklearn.datasets import make_classification
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from esper.tasks import find_task

Pair = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Data:
    """Inputs and targets of the three splits."""

    train: Pair
    val: Pair
    test: Pair


@dataclass(frozen=True, slots=True)
class Problem:
    """A model, its data and its training; `build(1.0)` is the model, a larger scale makes all its layers wider."""

    name: str
    build: Callable[[float], nn.Module]
    load: Callable[[], Data]
    loss: Loss
    epochs: int
    batch: int
    lr: float
    """Chosen on validation scores of the plain model (`--tune`)."""
    schedule: str = "cosine"
    is_accuracy: bool = False
    """Whether the score is accuracy, higher is better; otherwise it is the loss."""

    def make_scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """One that is stepped with the optimiser."""
        if self.schedule == "onecycle":
            return OneCycleLR(optimizer, self.lr, total_steps=steps)
        return CosineAnnealingLR(optimizer, steps)

    def score(self, model: nn.Module, split: Pair) -> float:
        """Accuracy or loss of a model in the mode that it is in."""
        with torch.no_grad():
            x, y = split
            outputs = torch.cat([model(part) for part in x.split(1000)])
            measured = (outputs.argmax(-1) == y).float().mean() if self.is_accuracy else self.loss(outputs, y)
            return float(measured)


def wide(width: int, scale: float, multiple: int = 1) -> int:
    """The width of a layer in a model that is wider by `scale`."""
    return max(1, round(width * scale / multiple)) * multiple


def split(x: Tensor, y: Tensor, train: int, val: int) -> Data:
    """The first samples for training, the next for validation, the rest for the test."""
    ends = (slice(0, train), slice(train, train + val), slice(train + val, None))
    first, second, third = ((x[rows], y[rows]) for rows in ends)
    return Data(first, second, third)


def table_classes(scale: float) -> nn.Module:
    """An MLP for five classes."""
    a, b = wide(16, scale), wide(16, scale)
    return nn.Sequential(nn.Linear(20, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, 5))


@cache
def classes_data() -> Data:
    """12,000 samples of five classes with three clusters each; twelve of twenty columns tell something."""
    x, y = make_classification(
        12_000, 20, n_informative=12, n_redundant=4, n_classes=5, n_clusters_per_class=3, flip_y=0.02, random_state=0
    )
    return split(torch.tensor(x, dtype=torch.float32), torch.tensor(y), 8_000, 2_000)


class Regressor(nn.Module):
    """Columns in, one number out; normalised and with dropout."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        a, b = wide(12, scale), wide(12, scale)
        self.body = nn.Sequential(
            *(nn.Linear(8, a), nn.BatchNorm1d(a), nn.ReLU(), nn.Dropout(0.05)),
            *(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.05)),
        )
        self.head = nn.Linear(b, 1)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, 8]` to `[N, 1]`."""
        result: Tensor = self.head(self.body(x))
        return result


@cache
def numbers_data() -> Data:
    """8,000 samples of a smooth function of eight columns with interactions and a little noise, of variance 1."""
    dice = torch.Generator().manual_seed(0)
    x = torch.rand(8_000, 8, generator=dice) * 2 - 1
    y = (
        torch.sin(math.pi * x[:, 0] * x[:, 1])
        + 2 * x[:, 2] ** 2
        + x[:, 3] * x[:, 4]
        + torch.relu(x[:, 5])
        + 0.5 * x[:, 6]
    )
    y = y + 0.1 * torch.randn(len(y), generator=dice)
    return split(x, ((y - y.mean()) / y.std())[:, None], 5_000, 1_000)


def normalised_cnn(scale: float) -> nn.Module:
    """Convolutions with BatchNorm, pooled between them."""

    def block(given: int, made: int) -> list[nn.Module]:
        return [nn.Conv2d(given, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU(), nn.MaxPool2d(2)]

    a, b, c = wide(4, scale), wide(8, scale), wide(12, scale)
    parts = [*block(1, a), *block(a, b), *block(b, c), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(c, 10))


class StridedCnn(nn.Module):
    """Convolutions with strides, activations in the forward pass."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        a, b, c = wide(4, scale), wide(8, scale), wide(16, scale)
        self.conv1 = nn.Conv2d(1, a, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(a, b, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(b, c, 3, stride=2, padding=1)
        self.head = nn.Linear(c, 10)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, 1, 28, 28]` to logits."""
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        result: Tensor = self.head(x.mean((2, 3)))
        return result


@cache
def fashion_data() -> Data:
    """4,000 pictures of clothes to learn from, 1,000 and 3,000 to validate and to test."""
    splits = find_task("fashion-mnist").splits()
    kept = ((splits.train, 4_000), (splits.val, 1_000), (splits.test, 3_000))
    train, val, test = ((part.x[:number], part.y[:number]) for part, number in kept)
    return Data(train, val, test)


class Block(nn.Module):
    """Causal attention and an MLP, each behind a LayerNorm and added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, T, D]` to the same."""
        queries, keys, values = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class CharacterModel(nn.Module):
    """A decoder over characters."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        width = wide(16, scale, 2)
        self.tokens = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        """`[N, T]` to logits `[N, T, V]`."""
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


ALPHABET = " etaoinsrhldcumfpgbywvkxqjz.,()'_\"-0123456789\n=:"
CONTEXT = 32


@cache
def text_data() -> Data:
    """Windows of Python's own help pages, in lower case."""
    codes = {letter: place for place, letter in enumerate(ALPHABET)}
    text = "\n".join(topics[name] for name in sorted(topics)).lower()[:180_000]
    tokens = torch.tensor([codes.get(letter, 0) for letter in text])
    windows = tokens[: (len(tokens) - 1) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    following = tokens[1 : 1 + windows.numel()].view(-1, CONTEXT)
    # In any order: neighbouring pages are alike, and the last ones are about something else.
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    return split(windows[order], following[order], 3_600, 800)


def next_character(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats per character."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Autoencoder(nn.Module):
    """Takes noise off pictures, through a narrow middle."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        a, b = wide(24, scale), wide(8, scale)
        self.encoder = nn.Sequential(nn.Linear(64, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(b, a), nn.ReLU(), nn.Linear(a, 64))

    def forward(self, x: Tensor) -> Tensor:
        """Pictures of 8 by 8, flat, to the same."""
        result: Tensor = self.decoder(self.encoder(x))
        return result


@cache
def noisy_data() -> Data:
    """Pictures of clothes, 8 by 8, with noise on what is given and none on what is wanted.

    With noise, because the aim then is the picture and not the code: more width past the middle is no cheating.
    """
    data = fashion_data()
    clean = torch.cat([F.adaptive_avg_pool2d(x, 8).flatten(1) for x, _ in (data.train, data.val, data.test)])[:8_000]
    noise = 0.3 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    return split(clean + noise, clean, 5_000, 1_000)


PROBLEMS = (
    Problem("tabular", table_classes, classes_data, F.cross_entropy, 12, 64, 2e-2, is_accuracy=True),
    Problem("regression", Regressor, numbers_data, F.mse_loss, 16, 64, 2e-2, "onecycle"),
    Problem("cnn", normalised_cnn, fashion_data, F.cross_entropy, 5, 64, 4e-2, is_accuracy=True),
    Problem("strided", StridedCnn, fashion_data, F.cross_entropy, 6, 64, 2e-2, is_accuracy=True),
    Problem("characters", CharacterModel, text_data, next_character, 4, 32, 4e-2),
    Problem("autoencoder", Autoencoder, noisy_data, F.mse_loss, 12, 64, 1e-2),
)
