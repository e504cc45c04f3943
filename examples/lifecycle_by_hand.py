"""Grow a small network on handwritten digits by hand, and watch each stage of a seed's life.

The controller here is a script: germinate at epoch 4, keep or cull on the evidence. Run it with `make run`.
"""

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from esper.kasmina import graft
from esper.leyline import Stage

EPOCHS = 16
GERMINATE_AT = 4
BATCH = 64
SITE = "1"


def load(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Shuffled digits as (train, validation) pairs of images in [0, 1] and labels."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target)[order]
    return (images[:1200], labels[:1200]), (images[1200:], labels[1200:])


def main() -> None:
    """Train, grow, measure, decide, and print what happened."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (x, y), (x_val, y_val) = load(seed=0)
    host = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    optimizer = torch.optim.AdamW(host.parameters(), lr=1e-2)
    model = graft(host, at=[SITE], example=x[:2], optimizer=optimizer)
    slot = model.slot(SITE)

    def score() -> float:
        with torch.inference_mode():
            right: Tensor = model(x_val).argmax(1) == y_val
        return right.float().mean().item()

    table = Table("epoch", "accuracy", "stage", "alpha", "adds", "params", "what happened")
    for epoch in range(1, EPOCHS + 1):
        said = ""
        if epoch == GERMINATE_AT:
            model.germinate(SITE, "mlp")
            said = f"germinated an mlp: +{int(model.table.added_params)}"
        if slot.stage is Stage.HOLDING:
            keep = slot.contribution > 0
            _ = model.fossilize(SITE) if keep else model.cull(SITE)
            said = "kept it" if keep else "culled it"

        model.begin_epoch()
        stage, alpha = slot.stage, slot.alpha
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        accuracy = score()
        contributions = {}
        if alpha > 0:
            with model.override_alpha(SITE, 0.0):
                contributions[SITE] = accuracy - score()
        model.end_epoch(score=accuracy, loss=loss.item(), contributions=contributions)

        shown = f"{100 * contributions[SITE]:+.1f}" if contributions else "-"
        size = sum(p.numel() for p in model.parameters())
        table.add_row(str(epoch), f"{100 * accuracy:.1f}", stage.name, f"{alpha:.2f}", shown, f"{size:,}", said)
    Console().print(table)


if __name__ == "__main__":
    main()
