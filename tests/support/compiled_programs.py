"""Programs that another process compiles for chips that are not attached."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def compile_programs(chip, names, compiler, package, target):
    """Returns {name of a program: line that `compilations.py` prints}.

    The compiler is in the folder `compiler`, made by `make TARGET`, or the installed `package`.
    """
    if not Path(compiler).is_dir() and not list(importlib.metadata.distributions(name=package)):
        pytest.skip(f"no compiler: make {target}")
    # Without the XLA flags of the other tests, which set eight CPU devices and quick compilation.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path, str(compiler)])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "compilations.py"), chip, *names],
        capture_output=True, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}
