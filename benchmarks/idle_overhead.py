"""What an empty slot costs: forward and backward of a grafted model against the same model without slots."""

import statistics
import time

import torch
from torch import Tensor, nn

from esper.kasmina import build_host, graft

ROUNDS = 40


def time_step(model: nn.Module, x: Tensor) -> float:
    """Seconds of one forward and backward pass."""
    start = time.perf_counter()
    model(x).sum().backward()
    return time.perf_counter() - start


def main() -> None:
    """Interleave both models, print the median of the paired ratios."""
    torch.set_num_threads(1)
    x = torch.randn(32, 3, 32, 32)
    plain, host = build_host("conv2d"), build_host("conv2d")
    grafted = graft(host, at=host.slot_sites, example=x)
    pairs = [(time_step(plain, x), time_step(grafted, x)) for _ in range(ROUNDS)]
    ratio = statistics.median(with_slots / without for without, with_slots in pairs)
    milliseconds = 1e3 * statistics.median(without for without, _ in pairs)
    print(f"plain step {milliseconds:.1f} ms; with three empty slots {ratio:.3f} times that (median of {ROUNDS})")


if __name__ == "__main__":
    main()
