"""Controllers in files to hand on, and the one that comes with the package."""

from collections.abc import Iterable
from pathlib import Path

from esper.kasmina import graft
from esper.simic.training import (
    LearnedController,
    RunFolder,
    about_controller,
    load_controller,
    pack_controller,
    read_controller,
)
from esper.tasks import find_task

SHIPPED = "shipped"
"""The name of the controller that comes with the package."""
_FILE = Path(__file__).with_name("shipped.safetensors")


def shipped_controller() -> LearnedController:
    """The controller that comes with the package; docs/shipped-controller.md says what it can do."""
    return read_controller(_FILE)


def about_shipped() -> dict[str, str]:
    """What its file tells of where it comes from."""
    return about_controller(_FILE)


def pack_run(run: Path) -> bytes:
    """The best controller of a run of `esper train`, as the bytes of a controller file."""
    controller, config = load_controller(run), RunFolder(run).stored_config()
    about = {"tasks": ", ".join(config.world.tasks), "seed": str(config.seed)}
    return pack_controller(controller.policy, passed_on(config.world.tasks), about)


def passed_on(tasks: Iterable[str]) -> set[str]:
    """What the hosts of these tasks pass on."""
    found: set[str] = set()
    for task in {(task.host, str(task.host_settings)): task for task in map(find_task, tasks)}.values():
        host = task.build_host()
        grafted = graft(host, at=host.slot_sites, example=task.splits().val.x[:2])
        found |= {site.shape.carries for site in grafted.sites}
    return found
