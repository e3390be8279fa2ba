"""What replaces the chosen tokens: [MASK], random tokens, or nothing; and values placed in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from etils import epy

with epy.lazy_imports():  # the options are read before jax may be imported
    import jax
    import jax.numpy as jnp


Draw: TypeAlias = "Callable[..., jax.Array]"


def replaced(
    draw: Draw,
    input_ids: jax.Array,
    group: jax.Array | None,
    mask_id: int,
    shares: tuple[float, float, float],
    size: int,
    excluded: tuple[int, ...],
) -> jax.Array:
    """Returns int32 [B, L], what each token becomes if it is chosen.

    Args:
        draw: (stream, function of a key, a shape and a dtype, that dtype) -> random numbers [B, L].
        input_ids: int32 [B, L].
        group: int32 [B, L], see `Choice`, or None.
        mask_id: id of [MASK].
        shares: probabilities of [MASK], of a random token, and of the same token.
        size: number of tokens of the vocabulary.
        excluded: ids that random tokens are never, in ascending order.
    """
    mask, random, same = shares
    draws = draw(1, jax.random.uniform, jnp.float32)
    if group is not None:
        draws = jnp.take_along_axis(draws, group, axis=1)
    # The draws are less than 1, so that no token stays the same by an error of rounding.
    random_below = mask + random if same else 1.0
    if not random:
        return jnp.where(draws < random_below, mask_id, input_ids)
    random_ids = draw(
        2, lambda key, shape, dtype: jax.random.randint(key, shape, 0, size - len(excluded), dtype), jnp.int32
    )
    for skipped in excluded:
        random_ids += (random_ids >= skipped).astype(jnp.int32)
    return jnp.where(draws < mask, mask_id, jnp.where(draws < random_below, random_ids, input_ids))


def place_at(ids: jax.Array, positions: jax.Array, values: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns ids [B, L] with `values` [B, P] at `positions` [B, P] wherever the weight is not 0."""
    unused = ids.shape[1]  # outside the row, and dropped
    places = jnp.where(weights > 0, positions, unused)
    return jax.vmap(lambda row, at, value: row.at[at].set(value, mode="drop"))(ids, places, values)
