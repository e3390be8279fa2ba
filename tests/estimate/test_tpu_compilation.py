"""The project's programs, compiled for each TPU by the newest libtpu, on a machine without one."""

import sys
from pathlib import Path

import pytest
from support.compiled_programs import compile_programs

# `make tpu-test`, which .ci/run calls: minutes of compiling.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PROGRAMS = (
    "train with data", "train with fsdp alone", "train on two slices", "evaluate with data",
    "fine-tune with data", "disentangled with data",
)  # fmt: skip


@pytest.fixture(scope="module", params=["v4", "v5e", "v5p", "v6e", "tpu7x"])
def chip(request):
    """Returns a chip, and what `compilations.py` prints for its programs, by name."""
    compiler = Path(sys.prefix) / "tpu-compiler"
    return request.param, compile_programs(request.param, PROGRAMS, compiler, "libtpu", "tpu-compiler")


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
