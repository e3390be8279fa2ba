"""Poolings: one state for each sequence of a row, from the states of its tokens."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.models.layers import gather_positions


def _cls(hidden, sequence_ids, cls_positions):
    return hidden[:, 0] if cls_positions is None else gather_positions(hidden, cls_positions)


def _mean(hidden, sequence_ids, cls_positions):
    weights = members_of(sequence_ids, cls_positions).astype(hidden.dtype)
    sums = jnp.einsum("bsl,blh->bsh", weights, hidden, preferred_element_type=jnp.float32)
    # In bfloat16, which has 8 significant bits, a sum of more than 256 ones is rounded.
    counts = jnp.sum(weights, axis=-1, keepdims=True, dtype=jnp.float32)
    means = (sums / jnp.maximum(counts, 1)).astype(hidden.dtype)  # 0 for an empty sequence
    return means[:, 0] if cls_positions is None else means


def _max(hidden, sequence_ids, cls_positions):
    highest = highest_of(hidden, members_of(sequence_ids, cls_positions))
    return highest[:, 0] if cls_positions is None else highest


def _last(hidden, sequence_ids, cls_positions):
    members = members_of(sequence_ids, cls_positions)
    place = jnp.arange(hidden.shape[1])
    states = gather_positions(hidden, jnp.max(jnp.where(members, place, 0), axis=-1))
    return states[:, 0] if cls_positions is None else states


def highest_of(hidden: jax.Array, members: jax.Array) -> jax.Array:
    """Returns the maximum over the tokens of each set in a row, [B, S, H], and 0 for an empty set.

    `members`, bool [B, S, L], are the tokens of each set, and the states are [B, L, H].
    """
    members = members[..., None]
    highest = jnp.max(jnp.where(members, hidden[:, None], jnp.finfo(hidden.dtype).min), axis=2)
    return jnp.where(jnp.any(members, axis=2), highest, 0)


def members_of(sequence_ids: jax.Array, cls_positions: jax.Array | None) -> jax.Array:
    """Returns bool [B, S, L], the tokens of each sequence of a row.

    Without `cls_positions`, S is 1 and all real tokens form one sequence.
    """
    if cls_positions is None:
        return (sequence_ids > 0)[:, None]
    return sequence_ids[:, None] == jnp.arange(1, cls_positions.shape[1] + 1)[:, None]


def first_states(hidden: jax.Array, sequence_ids: jax.Array, cls_positions: jax.Array | None) -> jax.Array:
    """Returns the state of the first token of each token's sequence, [B, L, H] (0 at padding) or [B, 1, H].

    The arguments are as for the functions in `POOLINGS`.
    """
    if cls_positions is None:
        return hidden[:, :1]
    # This is a matmul, because a gather for each token would be serialized.
    weights = members_of(sequence_ids, cls_positions).astype(hidden.dtype)
    states = gather_positions(hidden, cls_positions)
    return jnp.einsum("bsl,bsh->blh", weights, states, precision=jax.lax.Precision.HIGHEST)


# Functions (hidden [B, L, H], sequence_ids [B, L], cls_positions [B, S] or None) -> [B, H] without and
# [B, S, H] with cls_positions; "none" returns [B, L, H]. After "pooler", the caller applies the pre-trained
# dense layer and tanh.
POOLINGS: dict[str, Callable[..., jax.Array]] = {
    "mean": _mean,
    "cls": _cls,
    "max": _max,
    "last": _last,
    "pooler": _cls,
    "none": lambda hidden, sequence_ids, cls_positions: hidden,
}
