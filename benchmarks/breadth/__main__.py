"""`python -m benchmarks.breadth` grows every architecture and writes docs/breadth.md."""

import logging
from collections import Counter
from pathlib import Path

import torch
import transformers

from benchmarks.breadth.awkward import AWKWARD
from benchmarks.breadth.handmade import HANDMADE
from benchmarks.breadth.life import Life, live
from benchmarks.breadth.transformer_models import TRANSFORMERS

PAGE = Path(__file__).parents[2] / "docs" / "breadth.md"
HEAD = """# On which architectures growth was tried

One whole life on each, with random weights and small inputs, by `python -m benchmarks.breadth` (which needs the extra
`huggingface`): places proposed by `at="auto"`, two seeds germinated, two optimiser steps per epoch in train mode,
blending, the first seed kept for good, the second culled, a failure rolled back, and an export. The one that is kept is
a bypass wherever one is offered; slots, kinds of seeds and blends rotate. On the way it is checked that

- empty slots change no bit of the output, and the seed that is kept does change it;
- the optimiser holds exactly the model's parameters;
- once a pass is over, no tensor is kept for a bypass;
- the rollback, with the kept seed in place, is exact: every parameter and buffer, and the output;
- the export computes the same to 1e-5 without slots, and so does the program that `torch.export` makes of it, for all
  models of which it can make one before anything grew.

{summary}

The models of timm were not tried: it does not install beside the CPU build of torch that is used here. What is
refused is refused with a sentence; nothing else may fail (`tests/breadth`, run by `make test-slow`). "The same to 1e-5"
is relative to the largest output, or to 1 if outputs are smaller. EfficientNet was first tried with its usual initial
weights: at this size its gradient vanishes (1e-10), and its seeds were culled at their gate, as they should be; the
row below is with larger ones.

The fourth column counts the places at which a bypass is offered. Where it is not, in "repeated block" and albert, the
layers run several times in a pass, in "checkpointed blocks" they run again in the backward pass, and in the two swins
`downsample` merges neighbours inside of itself, so that no tensor in front of it has as many positions.

| architecture | kind | parameters | bypasses | outcome | kept | culled |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Grow them all, one after the other."""
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # it tells at length why a model cannot be a program
    transformers.logging.set_verbosity_error()
    lives: list[Life] = []
    for number, architecture in enumerate([*HANDMADE, *TRANSFORMERS, *AWKWARD]):
        lives.append(live(architecture, number))
        print(f"{lives[-1].outcome:8} {lives[-1].seconds:5.1f} s  {architecture.name}: {lives[-1].kept}", flush=True)
    counts = Counter(life.outcome for life in lives)
    share = 100 * counts["passed"] / len(lives)
    summary = (
        f"{counts['passed']} of {len(lives)} pass ({share:.0f} %), {counts['refused']} are refused; "
        f"{sum(life.bypass for life in lives)} keep a bypass."
    )
    PAGE.write_text(HEAD.format(summary=summary) + "\n".join(map(_row, lives)) + "\n")
    print(summary)


def _row(life: Life) -> str:
    cells = [life.name, life.kind, f"{life.params:,}", life.places, life.outcome, life.kept, life.culled]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    main()
