"""Executors: three ways to run many hosts that agree.

`loop` defines what is right, `stacked` runs small hosts as one network, `native` runs them compiled, one at a time.
"""

from esper.tolaria.executors.base import EpochResult, Executor, Measurement
from esper.tolaria.executors.choice import DeviceExecutor, choose_executor, executor_names, make_executor
from esper.tolaria.executors.loop import LoopExecutor
from esper.tolaria.executors.stacked import StackedExecutor

__all__ = [
    "DeviceExecutor",
    "EpochResult",
    "Executor",
    "LoopExecutor",
    "Measurement",
    "StackedExecutor",
    "choose_executor",
    "executor_names",
    "make_executor",
]
