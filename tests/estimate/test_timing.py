"""Cycles, bytes and rooflines added up over a program."""

import jax
import jax.numpy as jnp
import pytest
from support import programs

from bert_jax.estimate import hlo, timing
from bert_jax.estimate.tpus import CHIPS

V5E = CHIPS["v5e"]
MODULE = hlo.parse(programs.TPU)


def visit(name):
    return next(visit for visit in hlo.walk(MODULE) if visit.instruction.name == name)


def test_cycles_of_a_loop_count_once_for_each_trip():
    cycles = 3 * (100 + 1000) + 10 + 500
    assert timing.compute(MODULE, V5E).estimated_seconds == pytest.approx(cycles / 1.5e9)


def test_a_kernel_without_an_estimate_is_added_and_named():
    without = timing.compute(MODULE, V5E)
    traffic = 3 * 4 * (3 * 8 * 128 + 16 * 128) / 819e9  # the kernel reads the whole stack, and writes
    assert without.added == {"tpu_custom_call": 3} and without.added_seconds == pytest.approx(traffic)
    with_flops = timing.compute(MODULE, V5E, attention_flops=197e9)
    assert with_flops.added_seconds == pytest.approx(traffic + 1e-3)
    assert with_flops.matrix_flops == without.matrix_flops + 197e9
    for head_size, idle in ((64, 2), (128, 1), (256, 1)):
        found = timing.compute(MODULE, V5E, attention_flops=197e9, head_size=head_size)
        assert found.added_seconds == pytest.approx(traffic + idle * 1e-3)
        assert found.matrix_flops == with_flops.matrix_flops


def test_a_kernel_with_a_schedule_takes_the_longer_of_it_and_its_bytes():
    settings = 'custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"TUzv"}}'
    module = hlo.parse(programs.TPU.replace('custom_call_target="tpu_custom_call"', settings))
    without = timing.compute(module, V5E, attention_flops=197e9)
    for cycles, seconds in ((15e6, 3e-2), (1.0, without.added_seconds - 1e-3)):
        found = timing.compute(module, V5E, attention_flops=197e9, kernel_cycles={"TUzv": cycles})
        assert found.kernels == 3 and not found.added and found.added_seconds == 0
        assert found.kernel_seconds == pytest.approx(seconds)
        assert found.seconds == found.estimated_seconds + found.kernel_seconds
        assert found.matrix_flops == without.matrix_flops and found.hbm_bytes == without.hbm_bytes
    assert timing.compute(module, V5E, 197e9, kernel_cycles={"another": 1.0}) == without


def test_attention_flops_are_left_out_where_there_is_no_kernel():
    text = programs.TPU.replace("tpu_custom_call", "AllocateBuffer")
    assert timing.compute(hlo.parse(text), V5E, attention_flops=197e9).added_seconds == 0


@pytest.mark.parametrize(
    "name, expected",
    [
        ("slice_fusion", 4 * (8 * 128 + 8 * 128) + 4),  # one layer of the stack, the output, the index
        ("product_fusion", 2 * 16 * 64 + 4 * 16 * 32),  # the other operand is in the core's memory
        ("copy-start", 2 * 64 * 32),
        ("copy.1.remat", 2 * 4 * 8 * 128),
    ],
)
def test_bytes_of_hbm(name, expected):
    assert timing.hbm_bytes(MODULE, visit(name)) == expected


def test_an_update_in_place_costs_what_it_writes():
    text = """\
%update (param_0: f32[12,8,128], param_1: f32[1,8,128]) -> f32[12,8,128] {
  %param_0 = f32[12,8,128] parameter(0)
  %param_1 = f32[1,8,128] parameter(1)
  %zero = s32[] constant(0)
  ROOT %put = f32[12,8,128] dynamic-update-slice(%param_0, %param_1, %zero, %zero, %zero)
}

ENTRY %main (a: f32[12,8,128], b: f32[1,8,128]) -> f32[12,8,128] {
  %a = f32[12,8,128] parameter(0)
  %b = f32[1,8,128] parameter(1)
  %fused = f32[12,8,128] fusion(%a, %b), kind=kLoop, calls=%update
  %zero.1 = s32[] constant(0)
  ROOT %bare = f32[12,8,128] dynamic-update-slice(%fused, %b, %zero.1, %zero.1, %zero.1)
}
"""
    module = hlo.parse(text)
    by_name = {visit.instruction.name: visit for visit in hlo.walk(module)}
    for name in ("fused", "bare"):
        assert timing.hbm_bytes(module, by_name[name]) == 2 * 4 * 8 * 128, name


def test_a_product_in_a_loop_counts_once_for_each_trip():
    assert timing.matrix_flops(hlo.parse(programs.TPU)) == 3 * 2 * 16 * 64 * 32


# Products as convolutions, one of them [2, 4, 8, 16] x [2, 4, 8, 16] -> [2, 4, 8, 8], batched over the first
# two dimensions: (left, right, output, attributes, FLOPs).
CONVOLUTIONS = {
    "plain": ("16,64", "64,32", "16,32", "dim_labels=bf_io->bf", 2 * 16 * 64 * 32),
    "transposed": ("64,16", "64,32", "16,32", "dim_labels=fb_io->bf", 2 * 16 * 64 * 32),
    "summed over a spatial dimension": (
        "8,128,32", "8,128,64", "32,64,1", "window={size=8}, dim_labels=0fb_0io->bf0", 2 * 8 * 128 * 32 * 64,
    ),
    "batched by dilation": (
        "2,8,4,16", "2,8,4,16", "2,4,8,8",
        "window={size=2x4 stride=1x3 lhs_dilate=2x4}, dim_labels=0b1f_0o1i->01bf", 2 * 2 * 4 * 8 * 8 * 16,
    ),
    "windowed with padding": (
        "1,4,3", "3,3,5", "1,4,5", "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", 2 * 10 * 3 * 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    left, right, output, attributes, expected = CONVOLUTIONS[name]
    text = f"""\
ENTRY %main (a: bf16[{left}], b: bf16[{right}]) -> f32[{output}] {{
  %a = bf16[{left}] parameter(0)
  %b = bf16[{right}] parameter(1)
  ROOT %c = f32[{output}] convolution(%a, %b), {attributes}
}}
"""
    assert timing.matrix_flops(hlo.parse(text)) == expected


def test_a_program_that_xla_compiled():
    def f(x, w):
        def layer(x, w):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(layer, x, w)[0]

    x, w = jax.ShapeDtypeStruct((16, 64), jnp.float32), jax.ShapeDtypeStruct((5, 64, 64), jnp.float32)
    text = jax.jit(f).lower(x, w).compile().as_text()
    assert timing.matrix_flops(hlo.parse(text)) == 5 * 2 * 16 * 64 * 64


def test_products_of_libraries_on_gpus():
    """Three trips with two products of cuBLAS, and cuDNN's attention forward, and once backward."""
    module = hlo.parse(programs.GPU)
    product, scores = 2 * 16 * 64 * 32, 2 * 2 * 4 * 8 * 8 * 16
    assert timing.matrix_flops(module) == 3 * 2 * product + (3 * 2 + 5) * scores + 2 * 16 * 64 * 8
    weights, x, out = 2 * 64 * 32, 2 * 16 * 64, 2 * 16 * 32  # without the 4 MiB of room that cuBLAS has
    cublas = [
        visit for visit in hlo.walk(module) if "__cublas" in visit.instruction.target and not visit.fused
    ]
    assert [timing.hbm_bytes(module, visit) for visit in cublas] == [x + weights + out]
