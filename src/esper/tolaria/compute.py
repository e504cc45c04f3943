"""Where and how hosts compute: devices, number formats, compiled or as written."""

import logging
import re
from dataclasses import dataclass

import torch

from esper.leyline import InputError, unknown_name

PRECISIONS = ("float32", "bfloat16", "float16")
_DEVICE_NAME = re.compile(r"cpu|cuda(:\d+)?")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """Where and how hosts compute. Everything but the defaults needs the executor `loop`."""

    precision: str = PRECISIONS[0]
    """Number format of training passes; weights, and what is measured, stay float32."""
    compile_hosts: bool = False
    """Whether training and validation passes are compiled; each new structure then costs 10 s or more at first."""
    devices: tuple[str, ...] = ("cpu",)
    """Devices that hosts are shared out over: "cpu", "cuda", "cuda:1"."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if not self.devices:
            raise InputError("devices must name at least one device, such as 'cpu' or 'cuda:0'")
        for name in self.devices:
            if not _DEVICE_NAME.fullmatch(name):
                raise InputError(f"a device is 'cpu', 'cuda' or 'cuda:<number>'; got {name!r}")

    @property
    def needs_loop(self) -> bool:
        """Whether only the executor `loop` can do this."""
        return self != DEFAULT_COMPUTE

    def check_executor(self, name: str) -> None:
        if name in ("stacked", "native") and self.needs_loop:
            raise InputError(
                f"the executor {name!r} computes in float32, as written, on the CPU; got precision "
                f"{self.precision!r}, compile_hosts {self.compile_hosts}, devices {', '.join(self.devices)}. "
                "Use the executor 'loop', or 'auto', which then takes it"
            )


DEFAULT_COMPUTE = ComputeSettings()


def present_devices() -> list[str]:
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def find_device(name: str) -> torch.device:
    """The device of this name; one that was named and is missing is an error.

    "auto" is the first CUDA device or, with a line in the log, the CPU where there is none.
    """
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
        if name == "cpu":
            _LOG.info("there is no CUDA device: computing on the CPU")
        return torch.device(name)
    if name == "cpu":
        return torch.device(name)  # CUDA is not even asked
    numbered, present = "cuda:0" if name == "cuda" else name, present_devices()
    if numbered not in present:
        raise unknown_name("device", name, present)
    return torch.device(numbered)
