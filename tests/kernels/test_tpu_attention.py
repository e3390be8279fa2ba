import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gradients import assert_close, with_gradients

from bert_jax.kernels import attention, dispatch, xla_attention
from bert_jax.kernels.dropout import dropout, dropout_rows
from bert_jax.kernels.tpu import local_rows
from bert_jax.parallel import sharding

pallas = functools.partial(attention.attention, implementation="pallas")


@functools.partial(jax.jit, static_argnums=range(4))
def draw(batch, length, heads, head_size):
    keys = jax.random.split(jax.random.key(length + heads), 5)
    biases = jax.random.normal(keys[4], (3, heads, head_size))
    return [jax.random.normal(key, (batch, length, heads, head_size)) for key in keys[:4]], tuple(biases)


def inputs(batch, length, heads, head_size):
    arrays, biases = draw(batch, length, heads, head_size)
    ids = np.zeros((batch, length), np.int32)
    ids[0, : length // 2], ids[0, length // 2 : length - 9] = 1, 2
    ids[1:] = 1
    return *arrays, biases, jnp.asarray(ids)


def compiled(query, key, value, ids, **options):
    """Runs `attention.attention` as one program."""
    return jax.jit(functools.partial(attention.attention, **options))(query, key, value, ids)


@functools.partial(jax.jit, static_argnums=1)
def angles_of(ids, head_size):
    """Returns the rotary angles of every plane of a head; they differ between rows."""
    places = jnp.arange(ids.shape[1]) + 100 * jnp.arange(ids.shape[0])[:, None]
    turned = places[:, :, None, None] * 100.0 ** -jnp.linspace(0, 1, head_size // 2)
    return jnp.cos(turned), jnp.sin(turned)


def slopes_of(heads):
    return np.float32(2.0 ** -np.arange(1, heads + 1))


@pytest.mark.long
@pytest.mark.parametrize(
    "batch, length, heads, head_size, causal, window, rate, position",
    [
        (2, 128, 4, 64, True, 0, 0.1, "rotary"),
        (3, 512, 4, 32, False, 0, 0.5, "rotary"),
        (2, 256, 2, 64, False, 64, 0.0, "rotary"),
        (1, 384, 1, 128, True, 100, 0.3, ""),
        (1, 1152, 1, 128, True, 70, 0.0, "rotary"),
        (1, 640, 2, 64, False, 0, 0.3, "rotary"),
        (2, 640, 1, 128, True, 0, 0.1, ""),
        (2, 128, 8, 32, True, 0, 0.1, "alibi"),
        (1, 384, 4, 64, False, 150, 0.3, "alibi"),
        (2, 640, 4, 64, False, 0, 0.1, "alibi"),
    ],
)
def test_values_and_gradients_are_those_of_the_plain_formula(
    batch, length, heads, head_size, causal, window, rate, position
):
    *arrays, weights, biases, ids = inputs(batch, length, heads, head_size)
    angles = angles_of(ids, head_size) if position == "rotary" else None
    slopes = slopes_of(heads) if position == "alibi" else None
    fused = functools.partial(
        pallas, sequence_ids=ids, angles=angles, causal=causal, window=window, slopes=slopes,
        dropout_rate=rate, dropout_key=jax.random.key(5),
    )  # fmt: skip

    def plain(query, key, value, biases):
        query, key, value = attention.prepare(query, key, value, biases, angles)
        weights = xla_attention.probabilities(query, key, ids, causal, window, slopes)
        return jnp.einsum("bnqk,bknd->bqnd", dropout(weights, jax.random.key(5), rate), value)

    given = *arrays, biases
    found, *mine = with_gradients(lambda *qkv: fused(*qkv[:3], biases=qkv[3]), given, weights)
    with jax.enable_x64(True):  # so that only the kernel contributes to the differences
        exact = functools.partial(jax.tree.map, lambda x: jnp.asarray(np.asarray(x), jnp.float64))
        angles, slopes = exact((angles, slopes))
        expected, *theirs = with_gradients(plain, exact(given), exact(weights))
    # Rotary embeddings and ALiBi's subtraction round once more, and sums over longer rows are less exact.
    assert_close(found, expected, atol=6e-6 if position or length > 512 else 3e-6, rtol=3e-6)
    assert_close(mine[:3], theirs[:3], atol=1e-5 if length <= 1024 else 2e-5, rtol=1e-7)
    assert_close(mine[3], theirs[3], atol=1e-4)  # sums over all tokens; those of the key's bias cancel to 0


@pytest.mark.long
def test_devices_that_split_heads_have_their_slopes():
    query, key, value, _, biases, ids = inputs(2, 128, 4, 64)
    options = dict(biases=biases, implementation="pallas", slopes=slopes_of(4))
    expected = compiled(query, key, value, ids, **options)
    with sharding.on_mesh(sharding.make_mesh(data=4, tensor=2)):
        split = jax.jit(functools.partial(attention.attention, **options))(
            *(jnp.concatenate([x, x]) for x in (query, key, value, ids))
        )
    np.testing.assert_allclose(split[2:], expected, atol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_rows_of_a_part_have_the_dropout_of_the_whole_batch(implementation):
    query, key, value, _, biases, ids = inputs(3, 128, 2, 64)
    options = dict(implementation=implementation, dropout_rate=0.5, dropout_key=jax.random.key(5))

    def attend(rows):
        arrays = [x[rows] for x in (query, key, value, ids)]
        return compiled(*arrays, biases=biases, **options)

    part = np.array([2, 1])
    whole = attend(np.arange(3))[part]
    with dropout_rows(part):
        np.testing.assert_allclose(attend(part), whole, atol=1e-6)
    assert np.abs(attend(part) - whole).max() > 0.1


@given(st.integers(1, 128), st.data())
def test_a_block_of_queries_has_the_keys_in_its_reach(blocks, data):
    length, window = 128 * blocks, data.draw(st.integers(1, 256))
    case = dispatch.AttentionCase("float32", length, 1, 128, 0.0, window)
    if dispatch.choose_attention("auto", case, dispatch.Target("tpu")).implementation != "pallas":
        return
    parts = local_rows.divide(length, window)
    assert parts.size * parts.count == length and parts.size % 128 == 0
    assert parts.reach >= window and parts.span <= parts.extended
    if parts.count > 1:
        assert parts.size % parts.halo == 0 and parts.reach <= parts.halo
        # Halos do not overlap: a token is in the halo of at most one neighbor.
        assert 2 * parts.halo <= parts.size
