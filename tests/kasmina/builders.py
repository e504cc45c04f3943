"""Small worlds that several tests grow in."""

from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina import EpochEvidence, GraftedModel, SlotTable, graft
from esper.leyline import Stage

BATCH = 8


def make_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def make_batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, 6, generator=generator), torch.randint(3, (BATCH,), generator=generator)


def make_grafted(**overrides: Any) -> GraftedModel:
    """An MLP with slots behind its two hidden layers and an AdamW that follows its growth."""
    model = overrides.pop("model", None) or make_mlp()
    optimizer = overrides.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=1e-2)
    settings: dict[str, Any] = {"at": ["1", "3"], "example": make_batch()[0], **overrides}
    return graft(model, optimizer=optimizer, **settings)


def train_step(model: GraftedModel, seed: int = 0) -> float:
    """One optimiser step on a fixed batch; seeds in training learn by shadow passes where that is chosen."""
    x, y = make_batch(seed)
    assert model.optimizer is not None
    model.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if model.growth.isolation == "shadow":
        for site in model.sites:
            if model.slot(site.path).stage is Stage.TRAINING:
                nn.functional.cross_entropy(model.shadow(site.path, x), y).backward()
    model.optimizer.step()
    return loss.item()


def run_epoch(model: GraftedModel, contribution: float = 0.1, score: float = 0.5) -> None:
    """One step of a host's life after its action: begin, train, measure, end."""
    model.begin_epoch()
    loss = train_step(model)
    measured = {site.path: contribution for site in model.sites if model.slot(site.path).alpha > 0}
    model.end_epoch(score=score, loss=loss, contributions=measured)


def grow_until(model: GraftedModel, path: str, stage: Stage, **evidence: float) -> None:
    """Run epochs until the seed behind `path` has reached `stage`."""
    for _ in range(20):
        if model.slot(path).stage is stage:
            return
        run_epoch(model, **evidence)
    raise AssertionError(f"{path} never reached {stage.name}; it is {model.slot(path).stage.name}")


def evidence_for(table: SlotTable, **overrides: Tensor) -> EpochEvidence:
    """Healthy evidence for every slot of `table`."""
    num_hosts, num_slots = table.shape
    values = {
        "score": torch.full((num_hosts,), 0.5),
        "loss_finite": torch.ones(num_hosts, dtype=torch.bool),
        "seed_gradient": torch.ones(num_hosts, num_slots),
        "contribution": torch.full((num_hosts, num_slots), 0.1),
        "trial": torch.zeros(num_hosts, num_slots),
    }
    return EpochEvidence(**{**values, **overrides})
