"""`esper doctor`: check the installation, with advice on what to fix."""

import os
import platform
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from esper.cli.output import check_writable, make_console, say, write_json

_MIN_FREE_GB = 1.0
_EXTRAS = ("ray", "tensorboard", "wandb", "mlflow", "lightning", "onnx")


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its result."""

    what: str
    found: str
    ok: bool = True
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Doctor:
    """Check Python, torch, devices, threads and disk space, with advice on what to fix."""

    json: Path | None = None
    """Write the findings to this file too."""

    def run(self) -> bool:
        """Returns False if a check fails."""
        check_writable(self.json)
        from rich.table import Table
        from rich.text import Text

        checks = examine()
        table = Table("", "what", "found", "advice")
        for check in checks:
            mark = Text("ok", "green") if check.ok else Text("no", "red")
            table.add_row(mark, check.what, check.found, check.advice)
        ready = all(check.ok for check in checks)
        make_console().print(table)
        say("This machine is ready." if ready else "Something needs attention: see the advice above.")
        write_json(self.json, {"ready": ready, "checks": [asdict(check) for check in checks]})
        return ready


def examine() -> list[Check]:
    return [_python(), _torch(), _growth(), _native(), _controller(), _device(), _threads(), _disk(), _extras()]


def _judge(what: str, found: str, ok: bool, advice: str) -> Check:
    """A check that shows its advice only if it fails."""
    return Check(what, found, ok, "" if ok else advice)


def _python() -> Check:
    return _judge("Python", platform.python_version(), sys.version_info >= (3, 11), "Esper needs Python 3.11 or newer")


def _torch() -> Check:
    import torch

    major_minor = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return _judge("torch", torch.__version__, major_minor >= (2, 13), "install torch 2.13 or newer")


def _growth() -> Check:
    """Train one seed for a step: a broken build of torch shows here and not in the middle of a run."""
    import torch

    from esper.kasmina import build_host, graft

    host = build_host("mlp")
    model = graft(host, at=host.slot_sites, example=torch.randn(2, 40))
    model.germinate(host.slot_sites[0], "mlp")
    model.begin_epoch()
    model(torch.randn(2, 40)).sum().backward()
    grew = bool(model.seed_gradient_norms()[0, 0] > 0)
    return _judge("growing", "a seed learns" if grew else "a seed gets no gradient", grew, "reinstall torch")


def _native() -> Check:
    """Whether hosts can run compiled; where they cannot, other executors do, so nothing is wrong."""
    from esper.leyline import first_line

    try:
        import esper.tolaria.executors.native  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        return Check("native hosts", first_line(error), advice="hosts train up to ten times slower; reinstall numba")
    return Check("native hosts", f"numba {version('numba')}")


def _controller() -> Check:
    """Whether the controller that comes with the package is whole."""
    from esper.api.shipping import about_shipped, shipped_controller
    from esper.leyline import InputError

    try:
        shipped_controller()
    except InputError as error:
        return Check("shipped controller", str(error), ok=False, advice="reinstall esper")
    tasks = about_shipped()["tasks"].count(", ") + 1
    return Check("shipped controller", f"trained on {tasks} tasks")


def _device() -> Check:
    import torch

    if torch.cuda.is_available():
        return Check("device", f"cuda: {torch.cuda.get_device_name()}")
    mps = torch.backends.mps.is_available()
    return Check("device", "mps" if mps else "cpu", advice="" if mps else "fine for the small tasks")


def _threads() -> Check:
    import torch

    count = torch.get_num_threads()
    advice = "" if count == 1 else "small networks run faster with OMP_NUM_THREADS=1"
    return Check("torch threads", f"{count} of {os.cpu_count()} cores", advice=advice)


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    return _judge("free disk", f"{free:.1f} GB", free >= _MIN_FREE_GB, "free some disk space: runs write checkpoints")


def _extras() -> Check:
    present = {}
    for name in _EXTRAS:
        with suppress(PackageNotFoundError):
            present[name] = f"{name} {version(name)}"
    missing = [name for name in _EXTRAS if name not in present]
    advice = f"optional, e.g. pip install 'esper[{missing[0]}]'" if missing else ""
    return Check("extras", ", ".join(present.values()) or "none", advice=advice)
