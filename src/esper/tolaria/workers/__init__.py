"""Workers: the hosts of one environment, shared out over processes that speak one small protocol."""

from esper.tolaria.workers.pool import WorkerPool
from esper.tolaria.workers.process import ProcessTransport, Transport
from esper.tolaria.workers.worker import Command, EnvFactory, Reply, Request, ShardWorker

__all__ = [
    "Command",
    "EnvFactory",
    "ProcessTransport",
    "Reply",
    "Request",
    "ShardWorker",
    "Transport",
    "WorkerPool",
]
