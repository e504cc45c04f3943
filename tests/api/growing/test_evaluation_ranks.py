"""Two processes that train one model: they decide the same, and their weights stay equal."""

import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from esper.leyline import Blend
from tests.api.growing.builders import Script, germinate, make_data, make_grower, make_mlp

WORLD = 2
FAR_WIDE = 6
"""Its place in the blueprint head."""
EPOCHS = 14


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_rank(rank: int, port: int, out: str) -> None:
    """Both orders in one process: starting processes is what takes the time."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.save([train_on_rank(rank, wrapped_first) for wrapped_first in (True, False)], f"{out}/{rank}.pt")
    dist.destroy_process_group()


def train_on_rank(rank: int, wrapped_first: bool) -> dict[str, Any]:
    torch.manual_seed(rank)  # as many scripts do: dice of their own
    model = make_mlp()
    model.register_buffer("statistics", torch.zeros(1))
    x, y = make_data(10 + rank)

    def evaluate() -> float:
        with torch.no_grad():
            return float((model(x).argmax(-1) == y).float().mean())

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    wrapper: nn.Module = DistributedDataParallel(model) if wrapped_first else model
    bypass_and_residual = Script([germinate(1, FAR_WIDE, Blend.INSTANT), germinate(0)])
    settings: dict[str, Any] = {"controller": bypass_and_residual, "evaluate": evaluate, "seed": 3 + rank}
    grower = make_grower(model=wrapper, optimizer=optimizer, **settings)
    trained = grower.model if wrapped_first else DistributedDataParallel(grower.model)
    told = []
    for epoch in range(EPOCHS):
        if epoch == 6 and not wrapped_first:
            trained = DistributedDataParallel(grower.model)  # now with seeds in it
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(trained(x), y).backward()
            optimizer.step()
        if epoch == EPOCHS - 1 and rank == 1:
            model.get_buffer("statistics").fill_(torch.nan)
        told.append(str(grower.step()))
    state = {name: tensor.clone() for name, tensor in grower.grafted.state_dict().items()}
    return {"told": told, "state": state}


def test_ranks_decide_and_fail_alike_and_keep_equal_parameters(tmp_path: Path) -> None:
    spawn(run_rank, (free_port(), str(tmp_path)), nprocs=WORLD)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    for one, other in zip(*ranks, strict=True):
        assert one["told"][:-1] == other["told"][:-1]
        assert one["told"][-1] == "rolled back to the last good epoch: it failed in another process"
        assert other["told"][-1] == (
            "rolled back to the last good epoch: the buffer statistics holds values that are not finite"
        )
        assert one["told"][0].startswith("germinated far_wide in 3")
        assert any("far_wide in 3 is blended in" in sentence for sentence in one["told"])
        assert any("mlp in 1 has learned" in sentence for sentence in one["told"])
        torch.testing.assert_close(one["state"], other["state"], rtol=0, atol=0)
