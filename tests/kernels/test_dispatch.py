"""Which implementation is chosen for what, and what is refused by name."""

import dataclasses
import subprocess
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import AttentionCase, ResidualCase, Target

CPU, TPU, H100, T4, MI300 = (
    Target("cpu"),
    Target("tpu"),
    Target("gpu", "9.0"),
    Target("gpu", "7.5"),
    Target("gpu", "gfx942"),
)
BASE = AttentionCase("bfloat16", 512, 12, 64, 0.0)


def attention(target, requested="auto", **changes):
    return dispatch.choose("attention", requested, dataclasses.replace(BASE, **changes), target)


@pytest.mark.parametrize(
    "target, changes, chosen, reason",
    [
        (CPU, {}, "xla", "cpu has no fused kernel"),
        (TPU, {}, "pallas", "the fused kernel of tpu"),
        (TPU, {"dtype": "float32", "dropout_rate": 0.1}, "pallas", "the fused kernel of tpu"),
        (TPU, {"length": 1024}, "pallas", "the fused kernel of tpu"),
        (TPU, {"length": 8192}, "pallas", "the fused kernel of tpu"),
        (TPU, {"length": 8320}, "splash", "the fused kernel of tpu"),
        (TPU, {"heads": 96, "head_size": 8}, "splash", "the fused kernel of tpu"),
        (
            TPU,
            {"head_size": 16, "heads": 8, "window": 256, "length": 640},
            "pallas",
            "the fused kernel of tpu",
        ),
        (
            TPU,
            {"heads": 8, "head_size": 16, "window": 448, "length": 1024},
            "splash",
            "the fused kernel of tpu",
        ),
        (TPU, {"heads": 3}, "splash", "the fused kernel of tpu"),
        (TPU, {"length": 96}, "xla", "multiple of 128 tokens"),
        (TPU, {"length": 8320, "dropout_rate": 0.1}, "xla", "splash has no dropout"),
        (TPU, {"window": 64}, "pallas", "the fused kernel of tpu"),
        (TPU, {"window": 64, "length": 16384}, "pallas", "the fused kernel of tpu"),
        (TPU, {"window": 150, "length": 128}, "pallas", "the fused kernel of tpu"),
        (TPU, {"window": 128, "length": 2048}, "pallas", "the fused kernel of tpu"),
        (TPU, {"window": 129, "length": 2048}, "splash", "the fused kernel of tpu"),
        (TPU, {"heads": 8, "head_size": 16, "window": 448}, "pallas", "the fused kernel of tpu"),
        (TPU, {"heads": 3, "length": 192}, "xla", "splash needs rows of a multiple of 128 tokens, not 192"),
        (TPU, {"window": 64, "length": 96}, "xla", "multiple of 128 tokens"),
        (TPU, {"bias": True}, "pallas", "the fused kernel of tpu"),
        (TPU, {"bias": True, "heads": 3}, "xla", "splash adds no bias to the logits"),
        (H100, {"window": 64}, "triton", "the fused kernel of gpu"),
        (H100, {"window": 64, "length": 8192}, "triton", "the fused kernel of gpu"),
        (H100, {"bias": True}, "triton", "the fused kernel of gpu"),
        (H100, {"bias": True, "length": 100}, "xla", "cudnn adds no bias"),
        (H100, {}, "cudnn", "the fused kernel of gpu"),
        (Target("gpu"), {}, "cudnn", "the fused kernel of gpu"),
        (Target("gpu", "8.0"), {"dtype": "float16"}, "cudnn", "the fused kernel of gpu"),
        (H100, {"dtype": "float32"}, "triton", "the fused kernel of gpu"),
        (H100, {"dtype": "float32", "length": 24}, "xla", "cudnn needs bfloat16 or float16, not float32"),
        (H100, {"length": 127}, "xla", "cudnn needs rows of an even number of tokens, not 127"),
        (H100, {"length": 127}, "xla", "triton needs rows of a multiple of 16 tokens, not 127"),
        (H100, {"length": 102}, "cudnn", "the fused kernel of gpu"),
        (H100, {"head_size": 20}, "xla", "cudnn needs heads of a multiple of 8 up to 128, not 20"),
        (H100, {"head_size": 256}, "xla", "cudnn needs heads of a multiple of 8 up to 128, not 256"),
        (H100, {"head_size": 256}, "xla", "triton needs heads of 16, 32, 64 or 128, not 256"),
        (
            H100,
            {"head_size": 96, "dropout_rate": 0.1},
            "xla",
            "triton needs heads of 16, 32, 64 or 128, not 96",
        ),
        (H100, {"dropout_rate": 0.1}, "triton", "the fused kernel of gpu"),
        (H100, {"dropout_rate": 0.1, "length": 100}, "xla", "cudnn has no dropout on the attention probab"),
        (T4, {}, "xla", "cudnn needs compute capability 8.0 or newer, and this GPU has 7.5"),
        (
            T4,
            {"dropout_rate": 0.1},
            "xla",
            "triton needs compute capability 8.0 or newer, and this GPU has 7.5",
        ),
        (MI300, {}, "xla", "cudnn needs an NVIDIA GPU, and this one is gfx942"),
        (MI300, {"dtype": "float32"}, "xla", "triton needs an NVIDIA GPU, and this one is gfx942"),
    ],
)
def test_what_auto_chooses_and_why(target, changes, chosen, reason):
    choice = attention(target, **changes)
    assert choice.implementation == chosen and reason in choice.reason


@pytest.mark.parametrize(
    "target, requested, changes, problem",
    [
        (H100, "cudnn", {"dtype": "float32"}, "needs bfloat16 or float16, not float32"),
        (H100, "cudnn", {"length": 127}, "even number of tokens"),
        (H100, "cudnn", {"dropout_rate": 0.1}, "no dropout"),
        (T4, "cudnn", {}, "compute capability 8.0"),
        (CPU, "cudnn", {}, "is made for a GPU, and this program is for a CPU"),
        (TPU, "triton", {}, "is made for a GPU, and this program is for a TPU"),
        (H100, "triton", {"length": 40}, "multiple of 16 tokens, not 40"),
        (MI300, "triton", {}, "needs an NVIDIA GPU"),
        (TPU, "cudnn", {}, "is made for a GPU, and this program is for a TPU"),
        (H100, "pallas", {}, "is made for a TPU, and this program is for a GPU"),
        (TPU, "pallas", {"length": 8320}, "up to 8192, not 8320"),
        (
            TPU,
            "pallas",
            {"length": 2048, "window": 600},
            "local_window of at most 128 .*, not 600",
        ),
        (TPU, "splash", {"length": 96}, "multiple of 128 tokens, not 96"),
        (H100, "cudnn", {"window": 64}, "has no local attention"),
        (TPU, "splash", {"bias": True}, "adds no bias to the logits"),
    ],
)
def test_a_kernel_requested_by_name_that_cannot_work_is_refused(target, requested, changes, problem):
    with pytest.raises(UserError, match=f"attention={requested} .*{problem}.*; use attention=auto, or xla"):
        attention(target, requested, **changes)


def test_what_is_requested_by_name_is_chosen():
    assert attention(TPU, "xla").implementation == "xla"
    assert attention(TPU, "splash").implementation == "splash"
    assert attention(H100, "cudnn").implementation == "cudnn"
    assert attention(H100, "triton").implementation == "triton"


def test_a_kernel_that_failed_its_check_is_not_chosen(monkeypatch):
    monkeypatch.setattr(dispatch, "_distrusted", {})
    dispatch.distrust("attention=pallas", "it differs")
    assert attention(TPU).implementation == "splash"
    choice = attention(TPU, dropout_rate=0.1)
    assert choice.implementation == "xla" and "pallas failed its check on this device" in choice.reason
    with pytest.raises(
        UserError, match=r"attention=pallas failed its check on this device \(it differs\); use"
    ):
        attention(TPU, "pallas")
    assert dispatch.choose("residual", "pallas", ResidualCase(512, 768), TPU).implementation == "pallas"


@pytest.mark.parametrize("target", [CPU, Target("cpu", "bfloat16")])
def test_a_cpu_interprets_every_pallas_kernel(target):
    for name in ("pallas", "splash", "triton"):
        assert attention(target, name).implementation == name
    residual = ResidualCase(512, 768)
    for name in ("pallas", "triton"):
        assert dispatch.choose("residual", name, residual, target).implementation == name


@pytest.mark.parametrize(
    "target, shape, chosen",
    [
        (TPU, (512, 768), "pallas"),
        (TPU, (512, 1024), "pallas"),
        (TPU, (96, 768), "xla"),
        (TPU, (128, 312), "xla"),
        (TPU, (128, 2048), "xla"),
        (H100, (512, 768), "triton"),
        (H100, (48, 128), "triton"),
        (H100, (40, 128), "xla"),
        (H100, (128, 312), "xla"),
        (T4, (512, 768), "xla"),
        (MI300, (512, 768), "xla"),
        (CPU, (512, 768), "xla"),
    ],
)
def test_the_end_of_half_a_layer(target, shape, chosen):
    assert dispatch.choose("residual", "auto", ResidualCase(*shape), target).implementation == chosen
    assert dispatch.choose("residual", "xla", ResidualCase(*shape), target).implementation == "xla"


@pytest.mark.parametrize(
    "target, dtype",
    [
        (CPU, "float32"),
        (Target("cpu", "bfloat16"), "bfloat16"),
        (TPU, "bfloat16"),
        (H100, "bfloat16"),
        (T4, "float32"),
        (MI300, "bfloat16"),
    ],
)
def test_the_dtype_that_auto_means(target, dtype):
    assert dispatch.resolve_dtype("auto", target) == dtype
    assert dispatch.resolve_dtype("float32", target) == "float32"
    assert dispatch.resolve_dtype("bfloat16", target) == "bfloat16"


def test_choices_are_recorded_once_each():
    with dispatch.record() as choices:
        attention(TPU)
        attention(TPU)
        attention(TPU, length=96)
    attention(CPU)
    assert [choice.implementation for choice in choices] == ["pallas", "xla"]
    assert str(choices[0]) == "attention: pallas (the fused kernel of tpu)"


def test_the_table_needs_no_jax():
    code = "import sys, bert_jax.kernels.dispatch; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_the_norm_at_the_start_of_half_a_layer(norm):
    case = ResidualCase(512, 768, "pre", norm)
    assert dispatch.choose("residual", "auto", case, TPU).implementation == "pallas"
    assert dispatch.choose("residual", "auto", case, H100).implementation == "triton"


@pytest.mark.parametrize("target", [TPU, H100])
def test_another_norm_at_the_end_is_left_to_xla(target):
    choice = dispatch.choose("residual", "auto", ResidualCase(512, 768, norm="rmsnorm"), target)
    assert choice.implementation == "xla" and "needs LayerNorm where norms follow" in choice.reason


def test_a_configuration_may_name_each_kernel_of_an_operation():
    assert dispatch.choices("attention") == ("auto", "xla", "pallas", "splash", "cudnn", "triton")
    assert dispatch.choices("residual") == ("auto", "xla", "pallas", "triton")
