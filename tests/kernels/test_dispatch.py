"""Which implementation is chosen for what, and which requests are errors."""

import dataclasses
import subprocess
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import AttentionCase, Target

CPU, TPU = Target("cpu"), Target("tpu")
H100, T4, MI300 = (Target("gpu", capability) for capability in ("9.0", "7.5", "gfx942"))
BASE = AttentionCase("bfloat16", 512, 12, 64, 0.0)


def attention(target, requested="auto", **changes):
    return dispatch.choose_attention(requested, dataclasses.replace(BASE, **changes), target)


@pytest.mark.parametrize(
    "target, changes, chosen",
    [
        (CPU, {}, "xla"),
        (TPU, {}, "pallas"),
        (TPU, {"dtype": "float32", "dropout_rate": 0.1}, "pallas"),
        (TPU, {"length": 8192}, "pallas"),
        (TPU, {"length": 8320}, "splash"),
        (TPU, {"length": 8320, "dropout_rate": 0.1}, "xla"),
        (TPU, {"heads": 96, "head_size": 8}, "splash"),
        (TPU, {"head_size": 16, "heads": 8, "window": 256, "length": 640}, "pallas"),
        (TPU, {"head_size": 16, "heads": 8, "window": 448, "length": 1024}, "splash"),
        (TPU, {"heads": 3}, "splash"),
        (TPU, {"length": 96}, "xla"),
        (TPU, {"window": 128, "length": 2048}, "pallas"),
        (TPU, {"window": 129, "length": 2048}, "splash"),
        (TPU, {"position": "alibi"}, "pallas"),
        (TPU, {"position": "alibi", "heads": 3}, "xla"),
        (H100, {}, "cudnn"),
        (H100, {"length": 102}, "cudnn"),
        (H100, {"length": 127}, "xla"),
        (H100, {"window": 64}, "xla"),
        (H100, {"position": "alibi"}, "xla"),
        (H100, {"dtype": "float32"}, "xla"),
        (H100, {"head_size": 20}, "xla"),
        (H100, {"dropout_rate": 0.1}, "xla"),
        (T4, {}, "xla"),
        (MI300, {}, "xla"),
    ],
)
def test_what_auto_chooses(target, changes, chosen):
    assert attention(target, **changes).implementation == chosen


@pytest.mark.parametrize(
    "target, requested, changes",
    [
        (CPU, "cudnn", {}),
        (H100, "pallas", {}),
        (TPU, "pallas", {"length": 100}),
        (TPU, "splash", {"dropout_rate": 0.1}),
        (H100, "cudnn", {"window": 64}),
    ],
)
def test_a_kernel_requested_by_name_that_cannot_work_is_an_error(target, requested, changes):
    with pytest.raises(UserError, match=f"model.attention={requested} cannot be used: "):
        attention(target, requested, **changes)


@pytest.mark.parametrize(
    "target, requested, norm, length, features, expected",
    [
        (TPU, "auto", "layernorm", 512, 768, True),
        (TPU, "xla", "layernorm", 512, 768, False),
        (TPU, "auto", "rmsnorm", 512, 768, False),
        (TPU, "auto", "layernorm", 96, 768, False),
        (TPU, "auto", "layernorm", 512, 2048, False),
        (H100, "auto", "layernorm", 512, 768, False),
        (CPU, "auto", "layernorm", 512, 768, False),
    ],
)
def test_the_norm_of_a_sublayer(target, requested, norm, length, features, expected):
    assert dispatch.fuses_norm(requested, norm, length, features, target) == expected


@pytest.mark.parametrize(
    "target, dtype",
    [(CPU, "float32"), (Target("cpu", "bfloat16"), "bfloat16"), (H100, "bfloat16"), (T4, "float32")],
)
def test_the_dtype_that_auto_means(target, dtype):
    assert dispatch.resolve_dtype("auto", target) == dtype
    assert dispatch.resolve_dtype("float32", target) == "float32"


def test_the_table_needs_no_jax():
    code = "import sys, bert_jax.kernels.dispatch; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
