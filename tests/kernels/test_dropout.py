import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels.dropout import dropout, dropout_rows, keep_mask, kernel_seeds


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.02])
def test_rate_and_independence(rate):
    shape = (16, 128, 640)
    mask = np.asarray(keep_mask(jax.random.key(3), shape, rate), np.float64)
    count = mask.size
    error = np.sqrt(rate * (1 - rate) / count)
    assert abs(1 - mask.mean() - rate) < 5 * error
    centered = (mask - mask.mean()) / mask.std()
    for axis in range(3):  # neighbors in each direction, and rows against rows, are uncorrelated
        for lag in (1, 2, 15, 128, 256):  # at a distance of 128, one word is derived from the other
            if lag >= shape[axis]:
                continue
            products = centered.take(range(lag, shape[axis]), axis) * centered.take(
                range(shape[axis] - lag), axis
            )
            assert abs(products.mean()) < 5 / np.sqrt(products.size), (axis, lag)
    assert np.abs(mask.mean((1, 2)) - (1 - rate)).max() < 6 * error * np.sqrt(shape[0])


def mixed(x, between=0):
    """Computes the hash of a number in integers of any size."""
    x = ((x ^ x >> 16) * 0x21F0AAAD) % 2**32
    x = ((x ^ x >> 15) + between) % 2**32 * 0x735A2D97 % 2**32
    return x ^ x >> 15


@pytest.mark.long
def test_the_definition_of_a_mask():
    found = keep_mask(np.array([11, 22], np.uint32), (3, 2, 2, 300), 0.4)
    # Lines are numbered in the order of memory, as in the kernels, whose lines are (head, query) pairs.
    found = np.reshape(found, (3, 4, 300))

    def words(row):
        return mixed(row ^ 11), mixed((row + 0x9E3779B9) % 2**32 ^ 22)

    for row, token, place in np.ndindex(found.shape):
        (first, second), of_places = words(row), words(2**32 - 1)
        line = mixed(token ^ first, second) | 1
        block, within = divmod(place, 256)
        word = mixed(256 * block + within % 128 ^ of_places[0], of_places[1]) | 1
        if within >= 128:
            word *= 2**16 + 1
        value = line * word % 2**32
        assert found[row, token, place] == (value >= round(0.4 * 2**32)), (row, token, place)


def test_the_mask_of_a_row_depends_on_its_global_index_alone():
    whole = keep_mask(jax.random.key(0), (8, 40), 0.3)
    assert np.array_equal(keep_mask(jax.random.key(0), (3, 40), 0.3), whole[:3])
    mesh = jax.make_mesh((8,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    sharded = jax.jit(lambda key: keep_mask(key, (8, 40), 0.3), out_shardings=sharding)(jax.random.key(0))
    assert np.array_equal(sharded, whole)


@pytest.mark.long
def test_the_gradient_passes_where_the_value_does():
    x = jnp.ones((4, 1000))
    value, vjp = jax.vjp(lambda x: dropout(x, jax.random.key(1), 0.1), x)
    (gradient,) = vjp(jnp.ones_like(x))
    assert np.array_equal(value, gradient)
    assert set(np.unique(value)) == {np.float32(0), np.float32(1 / 0.9)}
    assert dropout(x, None, 0.1) is x


@pytest.mark.long
def test_rows_of_a_part_draw_what_they_draw_in_the_whole_batch():
    key, whole, ids = jax.random.key(2), jnp.ones((12, 300)), np.array([7, 1, 10])
    expected, seeds = dropout(whole, key, 0.3)[ids], kernel_seeds(key, 12)[ids]
    with dropout_rows(ids):
        found, pull = jax.vjp(lambda x: dropout(x, key, 0.3), whole[ids])
        assert np.array_equal(kernel_seeds(key, 3), seeds)
    assert np.array_equal(found, expected)
    assert np.array_equal(pull(jnp.ones_like(found))[0], expected)  # outside the context, as JAX calls it
    assert np.array_equal(dropout(whole, key, 0.3)[ids], expected)


def test_rows_of_a_group_follow_each_other():
    key, whole = jax.random.key(2), jnp.ones((12, 300))
    with dropout_rows(np.array([3, 1])):
        found = dropout(whole[:6], key, 0.3)
        for rows in (5, 1):
            with pytest.raises(ValueError, match=f"{rows} rows inside dropout_rows of 2"):
                dropout(whole[:rows], key, 0.3)
    assert np.array_equal(found, dropout(whole, key, 0.3)[np.array([9, 10, 11, 3, 4, 5])])
