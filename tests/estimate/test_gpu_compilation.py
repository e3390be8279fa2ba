"""The programs, compiled for NVIDIA GPUs by the XLA compiler on a machine without a GPU."""

import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# `make gpu-test`, which .ci/run calls, runs these tests. They compile for a minute; `make test` skips them.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
COMPILER = ROOT / ".venv" / "gpu-compiler"
CUDNN = {"__cudnn$fmhaScaleBiasSoftmax": 1, "__cudnn$fmhaScaleBiasSoftmaxBackward": 1}


def forward(kernels):
    return dict([next(iter(kernels.items()))])


def environment():
    """Returns the environment of a process that finds the compiler, in a separate folder or installed."""
    installed = list(importlib.metadata.distributions(name="jax-cuda12-plugin"))
    if not COMPILER.is_dir() and not installed:
        pytest.skip("no XLA for GPUs: make gpu-compiler, or pip install '.[estimate-gpu]'")
    path = os.pathsep.join([str(ROOT), *sys.path, str(COMPILER)])
    # Without the XLA flags of the other tests, which set eight CPU devices and quick compilation.
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"PYTHONPATH": path}


@pytest.fixture(scope="module")
def programs():
    """The output of `compilations.py` for all programs, by name."""
    script = ROOT / "tests" / "support" / "compilations.py"
    names = (
        "train on one", "train on eight", "train with data and tensor", "train with dropout",
        "train with fsdp", "evaluate", "fine-tune", "predict", "predict in float32", "unrolled",
        "unrolled, computed again",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script), "h100", *names],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


def attention(program):
    return {name: count for name, count in program["calls"].items() if "fmha" in name or "attention" in name}


@pytest.mark.parametrize(
    "name, expected",
    [
        ("train on one", CUDNN),
        ("train on eight", CUDNN),
        ("train with data and tensor", CUDNN),
        ("train with dropout", {}),
        ("train with fsdp", {}),
        ("evaluate", forward(CUDNN)),
        ("fine-tune", {}),
        ("predict", forward(CUDNN)),
        ("predict in float32", {}),
    ],
)
def test_cudnn_attends_in_bfloat16_without_dropout(programs, name, expected):
    assert attention(programs[name]) == expected
    assert programs[name]["calls"]["__cublas$lt$matmul"] > 0 and programs[name]["memory"] > 0


def test_attention_is_split_by_rows_and_heads(programs):
    assert programs["train on one"]["heads"] == ["bf16[16,2,128,64]"] * 2
    assert programs["train on eight"]["heads"] == ["bf16[2,2,128,64]"] * 2
    assert programs["train with data and tensor"]["heads"] == ["bf16[4,1,128,64]"] * 2


def test_one_gpu_sends_nothing(programs):
    for name in ("train on one", "predict", "predict in float32"):
        assert programs[name]["traffic"] == []


def test_gradients_are_reduced_once(programs):
    """All-reduces send each gradient once, also for the word embeddings, which are used twice."""
    found = programs["train on eight"]
    shapes = [shape for kind, shapes in found["traffic"] for shape in shapes if kind == "all-reduce"]
    sizes = [math.prod(map(int, re.findall(r"\d+", shape.partition("[")[2]))) for shape in shapes]
    assert found["parameters"] <= sum(sizes) < 1.02 * found["parameters"]


def test_parameters_are_gathered_and_their_gradients_scattered_with_fsdp(programs):
    kinds = {kind for kind, _ in programs["train with fsdp"]["traffic"]}
    assert {"all-gather", "reduce-scatter"} <= kinds


def test_unrolled_layers_that_are_computed_again_take_less_memory(programs):
    """Rematerialization saves memory: without a barrier, XLA would reuse and keep the first results."""
    kept, again = (programs[name]["memory"] for name in ("unrolled", "unrolled, computed again"))
    assert again < 0.7 * kept
