"""Training a host in the plainest way, for tests."""

import torch
import torch.nn.functional as F

from esper.tasks import Task


def val_losses(task: Task, epochs: int) -> list[float]:
    """Validation loss before training and after each epoch of a plain loop."""
    splits, host = task.load(), task.build_host()
    optimizer = torch.optim.AdamW(host.parameters(), task.optimizer.lr)
    losses = []
    for epoch in range(epochs + 1):
        with torch.inference_mode():
            losses.append(F.cross_entropy(host(splits.val.x).flatten(0, 1), splits.val.y.flatten()).item())
        for _ in range(task.batches_per_epoch if epoch < epochs else 0):
            rows = torch.randint(len(splits.train), (task.batch_size,))
            optimizer.zero_grad()
            F.cross_entropy(host(splits.train.x[rows]).flatten(0, 1), splits.train.y[rows].flatten()).backward()
            optimizer.step()
    return losses
