"""FLOPs of products, whichever way the compiler writes them."""

import jax
import jax.numpy as jnp
import pytest
from support.programs import TRAIN_STEP

from bert_jax.estimate.analysis import flop_count, hlo


def test_a_product_in_a_loop_counts_once_for_each_trip():
    assert flop_count.matrix_flops(hlo.parse(TRAIN_STEP)) == 3 * 2 * 16 * 64 * 32


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
    assert flop_count.matrix_flops(hlo.parse(text)) == expected


def test_a_program_that_xla_compiled():
    def f(x, w):
        def layer(x, w):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(layer, x, w)[0]

    x, w = jax.ShapeDtypeStruct((16, 64), jnp.float32), jax.ShapeDtypeStruct((5, 64, 64), jnp.float32)
    text = jax.jit(f).lower(x, w).compile().as_text()
    assert flop_count.matrix_flops(hlo.parse(text)) == 5 * 2 * 16 * 64 * 64
