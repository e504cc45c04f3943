"""How fast hosts train: the executors beside a bare PyTorch loop, and what a whole step of the environment costs."""

from esper.api.speed.growth import bench_growth
from esper.api.speed.host_steps import bench_host_steps
from esper.api.speed.settings import DEFAULT, QUICK, SpeedSettings
from esper.api.speed.whole_step import bench_whole_step

__all__ = ["DEFAULT", "QUICK", "SpeedSettings", "bench_growth", "bench_host_steps", "bench_whole_step"]
