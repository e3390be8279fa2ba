import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    "batch, length, heads, head_size, causal, window, rate, turned",
    [
        (2, 128, 4, 64, True, 0, 0.1, True),
        (3, 512, 4, 32, False, 0, 0.5, True),
        (2, 256, 2, 64, False, 64, 0.0, True),
        (1, 384, 1, 128, True, 100, 0.3, False),
        (1, 1152, 1, 128, True, 70, 0.0, True),
        (1, 640, 2, 64, False, 0, 0.3, True),
        (2, 640, 1, 128, True, 0, 0.1, False),
    ],
)
def test_values_and_gradients_are_those_of_the_plain_formula(
    batch, length, heads, head_size, causal, window, rate, turned
):
    query, key, value, weights, biases, ids = inputs(batch, length, heads, head_size)
    angles = angles_of(ids, head_size) if turned else None
    compare_with_the_plain_formula(
        (query, key, value, biases), weights, ids, causal, window, rate, angles, None, turned
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "batch, length, heads, head_size, causal, window, rate",
    [
        (2, 128, 8, 32, True, 0, 0.1),
        (1, 384, 4, 64, False, 150, 0.3),
        (2, 640, 4, 64, False, 0, 0.1),
    ],
)
def test_logits_fall_with_the_distance(batch, length, heads, head_size, causal, window, rate):
    query, key, value, weights, biases, ids = inputs(batch, length, heads, head_size)
    compare_with_the_plain_formula(
        (query, key, value, biases), weights, ids, causal, window, rate, None, slopes_of(heads), True
    )


def with_gradients(function, given, weights):
    """Returns the result of a function and the gradients of its weighted sum, from one program."""

    @jax.jit
    def run(given, weights):
        found, pull = jax.vjp(function, *given)
        return found, pull(weights)

    return run(given, weights)


def compare_with_the_plain_formula(given, weights, ids, causal, window, rate, angles, slopes, is_rounded):
    length = ids.shape[1]

    def fused(query, key, value, biases):
        return pallas(
            query,
            key,
            value,
            ids,
            biases=biases,
            angles=angles,
            causal=causal,
            window=window,
            slopes=slopes,
            dropout_rate=rate,
            dropout_key=jax.random.key(5),
        )

    def plain(query, key, value, biases):
        query, key, value = attention.prepare(query, key, value, biases, angles)
        weights = xla_attention.probabilities(query, key, ids, causal, window, slopes)
        return jnp.einsum("bnqk,bknd->bqnd", dropout(weights, jax.random.key(5), rate), value)

    found, mine = with_gradients(fused, given, weights)
    with jax.enable_x64(True):  # so that only the kernel contributes to the differences
        exact = functools.partial(jax.tree.map, lambda x: jnp.asarray(np.asarray(x), jnp.float64))
        angles, slopes = exact((angles, slopes))
        expected, theirs = with_gradients(plain, exact(given), exact(weights))
    # Rotary embeddings and ALiBi's subtraction round once more, and sums over longer rows are less exact.
    atol = 6e-6 if is_rounded or length > 512 else 3e-6
    np.testing.assert_allclose(found, expected, atol=atol, rtol=3e-6)
    for number in range(3):
        np.testing.assert_allclose(mine[number], theirs[number], atol=1e-5 if length <= 1024 else 2e-5)
        # Sums over all tokens; the sums of the key's bias cancel to 0.
        np.testing.assert_allclose(mine[3][number], theirs[3][number], atol=1e-4, rtol=1e-5)


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
