"""The project's programs, compiled for each TPU by the newest libtpu, on a machine without one."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# `make tpu-test`, which .ci/run calls: minutes of compiling.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
COMPILER = Path(sys.prefix) / "tpu-compiler"
PROGRAMS = (
    "train with data", "train with fsdp alone", "train on two slices", "evaluate with data",
    "fine-tune with data", "disentangled with data",
)  # fmt: skip


@pytest.fixture(scope="module", params=["v4", "v5e", "v5p", "v6e", "tpu7x"])
def chip(request):
    """A chip, and what `compilations.py` prints for its programs, by name."""
    if not COMPILER.is_dir() and not list(importlib.metadata.distributions(name="libtpu")):
        pytest.skip("no compiler for TPUs: make tpu-compiler, or pip install '.[estimate]'")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path, str(COMPILER)])
    script = ROOT / "tests" / "support" / "compilations.py"
    done = subprocess.run(
        [sys.executable, str(script), request.param, *PROGRAMS],
        capture_output=True, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return request.param, {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


def test_every_program_compiles_with_its_kernels(chip):
    _, programs = chip
    assert set(programs) == set(PROGRAMS)
    assert all(found["calls"]["tpu_custom_call"] > 0 for found in programs.values())


def test_gradients_are_reduced_on_the_sparse_cores_of_v6e(chip):
    name, programs = chip
    if name == "tpu7x":
        pytest.skip("libtpu uses them there by default")
    for program in ("train with data", "train on two slices", "fine-tune with data"):
        assert (programs[program]["calls"].get("sparsecore", 0) > 0) == (name == "v6e"), program
