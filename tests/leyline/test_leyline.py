"""The contracts stand alone, and every constant is exported."""

import importlib
import subprocess
import sys

import esper.leyline as leyline


def test_leyline_imports_with_every_other_package_blocked() -> None:
    blocked = ["kasmina", "tolaria", "tamiyo", "simic", "karn", "nissa", "api", "cli"]
    script = "import sys\n"
    script += "".join(f"sys.modules['esper.{name}'] = None\n" for name in blocked)
    script += "sys.modules['torch'] = None\nimport esper.leyline\n"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_constant_is_exported() -> None:
    for module_name in ("thresholds", "actions"):
        module = importlib.import_module(f"esper.leyline.{module_name}")
        constants = {name for name in vars(module) if name.isupper() and not name.startswith("_")}
        assert constants <= set(leyline.__all__)
