"""The attention kernels of NVIDIA GPUs, interpreted, beside the plain formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import lowering, triton_programs

from bert_jax.errors import UserError
from bert_jax.kernels import attention, xla_attention
from bert_jax.kernels.dropout import dropout, keep_mask, kernel_words
from bert_jax.kernels.gpu import attention as gpu_attention
from bert_jax.parallel import sharding

KEY = jax.random.key(5)


def inputs(batch, length, heads, head_size, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(length + heads), 4)
    arrays = [jax.random.normal(key, (batch, length, heads, head_size), dtype) for key in keys]
    ids = np.zeros((batch, length), np.int32)
    ids[0, : length // 2], ids[0, length // 2 : length - 9] = 1, 2
    ids[1:] = 1
    return *arrays, jnp.asarray(ids)


def plain(query, key, value, ids, causal=False, window=0, rate=0.0, slopes=None):
    """Not in blocks where there is a window, so that the masks of dropout are those of the whole row."""
    weights = xla_attention.probabilities(query, key, ids, causal, window, slopes)
    return jnp.einsum("bnqk,bknd->bqnd", dropout(weights, KEY if rate else None, rate), value)


def triton(query, key, value, ids, causal=False, window=0, rate=0.0, slopes=None):
    return attention.attention(
        query,
        key,
        value,
        ids,
        implementation="triton",
        causal=causal,
        window=window,
        slopes=slopes,
        dropout_rate=rate,
        dropout_key=KEY,
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def value_and_gradients(form, causal, window, rate, query, key, value, weights, ids, slopes=None):
    out, pull = jax.vjp(lambda *qkv: form(*qkv, ids, causal, window, rate, slopes=slopes), query, key, value)
    return out, *pull(weights)


@pytest.mark.long
@pytest.mark.parametrize(
    "batch, length, heads, head_size, causal, window, rate",
    [
        (2, 64, 2, 16, False, 0, 0.0),
        (2, 192, 2, 32, True, 0, 0.1),
        (1, 256, 1, 64, False, 0, 0.5),
        (1, 192, 2, 32, False, 50, 0.1),
        (1, 48, 1, 128, True, 10, 0.3),
    ],
)
def test_values_and_gradients_are_those_of_the_plain_formula(
    batch, length, heads, head_size, causal, window, rate
):
    given = inputs(batch, length, heads, head_size)
    found = value_and_gradients(triton, causal, window, rate, *given)
    expected = value_and_gradients(plain, causal, window, rate, *given)
    np.testing.assert_allclose(found[0], expected[0], atol=3e-6, rtol=3e-6)
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(
    "batch, length, heads, head_size, causal, window, rate",
    [(2, 192, 2, 32, False, 0, 0.1), (1, 192, 3, 16, True, 50, 0.0)],
)
def test_logits_fall_with_the_distance(batch, length, heads, head_size, causal, window, rate):
    given = inputs(batch, length, heads, head_size)
    slopes = np.float32(2.0 ** -np.arange(1, heads + 1))
    found = value_and_gradients(triton, causal, window, rate, *given, slopes)
    expected = value_and_gradients(plain, causal, window, rate, *given, slopes)
    np.testing.assert_allclose(found[0], expected[0], atol=6e-6, rtol=3e-6)
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.long
def test_probabilities_are_dropped_by_the_mask_of_the_plain_form():
    length = 64
    query, key, *_ = inputs(2, length, 2, length)
    ones = jnp.ones((2, length), jnp.int32)
    identity = jnp.broadcast_to(jnp.eye(length)[:, None], (2, length, 2, length))
    dropped = triton(query, key, identity, ones, rate=0.3)  # [B, L, N, L]
    kept = keep_mask(KEY, (2, 2, length, length), 0.3)
    np.testing.assert_array_equal(np.asarray(dropped) != 0, np.swapaxes(kept, 1, 2))


@pytest.mark.long
def test_bfloat16_is_as_close_to_float32_as_the_plain_formula():
    *arrays, ids = inputs(2, 64, 2, 16)
    exact = value_and_gradients(plain, False, 0, 0.1, *arrays, ids)
    halves = [x.astype(jnp.bfloat16) for x in arrays]
    found = value_and_gradients(triton, False, 0, 0.1, *halves, ids)
    rounded = value_and_gradients(plain, False, 0, 0.1, *halves, ids)
    for true, mine, theirs in zip(exact, found, rounded, strict=True):
        assert mine.dtype == jnp.bfloat16
        errors = [float(jnp.linalg.norm(x.astype(jnp.float32) - true)) for x in (mine, theirs)]
        assert errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize("shape", [(40, 2, 64), (64, 2, 48), (64, 2, 256)], ids=["length", "size", "large"])
def test_what_there_is_no_kernel_for_is_refused(shape):
    query, key, value, _, ids = inputs(1, *shape)
    with pytest.raises(UserError, match=r"attention=triton needs .*; use attention=auto, or xla"):
        triton(query, key, value, ids)


def computed_and_needed(ids, how, of_keys):
    """Two bool arrays [rows, blocks, steps]: the steps that are computed, and those with an allowed pair."""
    blocks = gpu_attention.Blocks(32, 16, 4, 2)
    rows, length = ids.shape
    spans = np.asarray(gpu_attention._spans(how, jnp.asarray(ids), blocks, of_keys))
    allowed = np.asarray(xla_attention.allowed_pairs(jnp.asarray(ids), how.causal, how.window))[:, 0]
    pairs = np.swapaxes(allowed, 1, 2) if of_keys else allowed
    steps = np.arange(length // 16)
    computed = (spans[..., :1] <= steps) & (steps < spans[..., 1:])
    return computed, pairs.reshape(rows, length // 32, 32, length // 16, 16).any((2, 4))


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize("causal, window", [(False, 0), (True, 0), (False, 20), (True, 20)])
def test_every_step_with_an_allowed_pair_is_computed_and_few_others(of_keys, causal, window):
    how = gpu_attention.How(causal, window, 0.0, False, True)
    any_order = np.random.default_rng(0).integers(0, 4, (6, 128), np.int32)
    computed, needed = computed_and_needed(any_order, how, of_keys)
    assert not np.any(needed & ~computed)
    packed = np.int32([[1] * 40 + [2] * 56 + [0] * 32, [1] * 128, [1] * 32 + [2] * 32 + [3] * 32 + [0] * 32])
    computed, needed = computed_and_needed(packed, how, of_keys)
    assert not np.any(needed & ~computed)
    if not causal and not window:
        np.testing.assert_array_equal(computed, needed)
    else:
        assert computed.sum() <= 1.2 * needed.sum()


def test_other_sequences_are_not_computed():
    """A NaN would spread to every token whose block is multiplied by it."""
    query, key, value, weights, _ = inputs(1, 256, 1, 16)
    ids = jnp.asarray([[1] * 128 + [2] * 100 + [0] * 28])
    value = value.at[:, 128:].set(jnp.nan)
    for x in value_and_gradients(triton, False, 0, 0.0, query, key, value, weights, ids):
        assert not jnp.isnan(x[:, :128]).any()


@pytest.mark.long
def test_devices_that_split_rows_and_heads_compute_the_same():
    given = inputs(4, 32, 4, 16)
    expected = value_and_gradients(triton, False, 0, 0.3, *given)
    with sharding.on_mesh(sharding.make_mesh(data=2, fsdp=2, tensor=2)):
        found = value_and_gradients(triton, False, 0, 0.3, *given)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    "causal, window, rate, slopes",
    [(True, 0, 0.3, []), (False, 20, 0.0, []), (False, 0, 0.1, [np.float32([0.25])])],
)
def test_what_triton_is_given_computes_the_same(causal, window, rate, slopes):
    """The operations of the kernels as Triton reads them, run in numpy."""
    length, head_size = 192, 16
    query, key, value, gradient, ids = (np.asarray(x) for x in inputs(1, length, 1, head_size))
    words = np.concatenate([kernel_words(KEY, 1), np.full((1, 1), 3, np.int32)], axis=1)

    def form(interpret):
        how = gpu_attention.How(causal, window, rate, bool(slopes), interpret)

        def forward_and_backward(query, key, value, words, ids, gradient, *slopes):
            by_row = words, ids, *(slopes or [None])
            out, residuals = gpu_attention._attend_fwd(how, query, key, value, by_row)
            *gradients, _ = gpu_attention._attend_bwd(how, residuals, gradient)
            return out, residuals[-1], gradients

        return forward_and_backward

    given = query, key, value, words, ids, gradient, *slopes
    out, totals, expected = jax.jit(form(True))(*given)
    module = lowering.lower(form(False), "cuda", *given).compiler_ir()
    (forward, grid), (backward, grid_of_backward) = triton_programs.kernels(module)

    def spans(blocks, *of_keys):
        how = gpu_attention.How(causal, window, rate, bool(slopes), True)
        found = [gpu_attention._spans(how, jnp.asarray(ids), blocks, which) for which in of_keys]
        return np.concatenate(found, axis=-1)

    found = [np.zeros_like(query), np.zeros(totals.shape, np.float32)]
    of_row = words, spans(gpu_attention.forward_blocks(length, head_size, 4), False), ids
    triton_programs.run(forward, grid, [*of_row, *slopes, query, key, value, *found])
    np.testing.assert_allclose(found[0], out, atol=3e-6)
    np.testing.assert_allclose(found[1], totals, atol=3e-6)

    inner = np.einsum("blnd,blnd->bnl", out, gradient)
    found = [np.zeros_like(query) for _ in range(3)]
    of_row = words, spans(gpu_attention.backward_blocks(length, head_size, 4), False, True), ids
    given = *of_row, *slopes, query, key, value, gradient, np.asarray(totals), inner
    triton_programs.run(backward, grid_of_backward, [*given, *found])
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.long
def test_no_array_of_all_pairs_is_written_for_a_gpu():
    x, ids = jax.ShapeDtypeStruct((2, 512, 2, 64), jnp.bfloat16), jax.ShapeDtypeStruct((2, 512), jnp.int32)

    def loss(x, ids, implementation):
        options = dict(implementation=implementation, dropout_rate=0.1, dropout_key=KEY)
        return jnp.sum(attention.attention(x, x, x, ids, **options).astype(jnp.float32))

    plain, fused, chosen = (
        lowering.lower(jax.grad(functools.partial(loss, implementation=name)), "cuda", x, ids).as_text()
        for name in ("xla", "triton", "auto")
    )
    assert "512x512" in plain and "512x512" not in fused
    assert fused.count("custom_call @__gpu$xla.gpu.triton") == 2 == chosen.count("@__gpu$xla.gpu.triton")
