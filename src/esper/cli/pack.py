"""`esper pack`: the controller of a run as one file to hand on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from esper.cli.output import check_writable, say, write_bytes
from esper.leyline import InputError


@dataclass(frozen=True, slots=True)
class Pack:
    """Pack the best controller of a run into one file (safetensors), which loads without pickle.

    Anywhere that a controller is asked for, the file can be named.
    """

    run_folder: Annotated[Path, tyro.conf.Positional]
    """Folder of `esper train`, whose controller is one for any host."""
    out: Path = Path("controller.safetensors")
    """The file; its name ends in .safetensors."""

    def run(self) -> bool:
        from esper.api.shipping import pack_run
        from esper.simic.training import CONTROLLER_SUFFIX, RunFolder

        check_writable(self.out)
        if self.out.suffix != CONTROLLER_SUFFIX:
            raise InputError(f"--out must end in {CONTROLLER_SUFFIX}; got {self.out}")
        if not RunFolder(self.run_folder).begun:
            raise InputError(f"{self.run_folder} is no run; name a folder of `esper train`")
        packed = pack_run(self.run_folder)
        write_bytes(self.out, packed)
        say(f"Controller: {self.out} ({len(packed) / 1000:,.0f} kB)")
        return True
