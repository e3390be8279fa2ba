"""The programs, compiled for NVIDIA GPUs by the XLA compiler on a machine without a GPU."""

import math
import re

import pytest
from support.compiled_programs import ROOT, compile_programs

# `make gpu-test`, which .ci/run calls, runs these tests. They compile for a minute; `make test` skips them.
pytestmark = pytest.mark.slow

CUDNN = {"__cudnn$fmhaScaleBiasSoftmax": 1, "__cudnn$fmhaScaleBiasSoftmaxBackward": 1}
FORWARD = {"__cudnn$fmhaScaleBiasSoftmax": 1}
PROGRAMS = (
    "train on one", "train on eight", "train with data and tensor", "train with dropout", "train with fsdp",
    "evaluate", "fine-tune", "predict", "predict in float32", "unrolled", "unrolled, computed again",
)  # fmt: skip


@pytest.fixture(scope="module")
def programs():
    compiler = ROOT / ".venv" / "gpu-compiler"
    return compile_programs("h100", PROGRAMS, compiler, "jax-cuda12-plugin", "gpu-compiler")


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
        ("evaluate", FORWARD),
        ("fine-tune", {}),
        ("predict", FORWARD),
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
