"""`python -m benchmarks.breadth` grows every architecture and writes docs/breadth.md."""

from collections import Counter
from pathlib import Path

import torch
import transformers

from benchmarks.breadth.handmade import HANDMADE
from benchmarks.breadth.life import Life, live
from benchmarks.breadth.transformer_models import TRANSFORMERS

PAGE = Path(__file__).parents[2] / "docs" / "breadth.md"
HEAD = """# On which architectures growth was tried

One whole life on each, with random weights and small inputs, by `python -m benchmarks.breadth` (which needs the extra
`huggingface`): places proposed by `at="auto"`, two seeds germinated (their kinds rotate over the blueprints), two
optimiser steps per epoch, blending, the first kept for good, the second culled, a failure rolled back, and an export.
On the way it is checked that empty slots change no bit of the output, that the optimiser holds exactly the model's
parameters, that the rollback is exact, and that the export computes the same to 1e-5 without slots. {summary}

The models of timm were not tried: it does not install beside the CPU build of torch that is used here. What is
refused is refused with a sentence; nothing else may fail (`tests/breadth`, run by `make test-slow`). "The same to 1e-5"
is relative to the largest output, or to 1 if outputs are smaller. EfficientNet was first tried with its usual initial
weights: at this size its gradient vanishes (1e-10), and its seeds were culled at their gate, as they should be; the
row below is with larger ones.

| architecture | kind | parameters | outcome | seeds, or why not |
|---|---|---|---|---|
"""


def main() -> None:
    """Grow them all, one after the other."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    lives: list[Life] = []
    for number, architecture in enumerate([*HANDMADE, *TRANSFORMERS]):
        lives.append(live(architecture, number))
        print(f"{lives[-1].outcome:8} {lives[-1].seconds:5.1f} s  {architecture.name}: {lives[-1].detail}", flush=True)
    counts = Counter(life.outcome for life in lives)
    share = 100 * counts["passed"] / len(lives)
    summary = f"{counts['passed']} of {len(lives)} pass ({share:.0f} %), {counts['refused']} are refused."
    rows = [
        f"| {life.name} | {life.kind} | {life.params:,} | {life.outcome} | {life.detail.replace('|', '/')} |"
        for life in lives
    ]
    PAGE.write_text(HEAD.format(summary=summary) + "\n".join(rows) + "\n")
    print(summary)


if __name__ == "__main__":
    main()
