"""Computes token types, positions and sequence ids of an encoder's input from the lengths of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
TYPES = (0, 1)  # BERT's token types: first text with its special tokens, second text


def row_inputs(
    input_ids: jax.Array,
    lengths: jax.Array,
    first_lengths: jax.Array | None = None,
    types: Sequence[int] = TYPES,
) -> dict[str, jax.Array]:
    """Returns the inputs for rows of one text, or of one pair of texts.

    Args:
        input_ids: int32 [..., L].
        lengths: int32 [...] or [..., 1], number of tokens of each row, including special tokens.
        first_lengths: int32 [...], number of tokens before the second text; None if no row has a second text.
        types: token types of the first and the second text (`bert_jax.tokenization.templates`).

    Returns:
        int32 [..., L] arrays by the names in `INPUTS`: `input_ids`; `token_type_ids`; `position_ids`, which
        count from 0; and `sequence_ids`, which are 1. At padding, positions and sequence ids are 0, and token
        types are the type of the first text (0 in BERT).
    """
    index = jnp.arange(input_ids.shape[-1], dtype=jnp.int32)
    real = index < (lengths if lengths.ndim == input_ids.ndim else lengths[..., None])
    if first_lengths is None:
        second = jnp.zeros_like(input_ids)
    else:
        second = (real & (index >= first_lengths[..., None])).astype(jnp.int32)
    return {
        "input_ids": input_ids,
        "token_type_ids": _token_types(second, types),
        "position_ids": jnp.where(real, index, 0),
        "sequence_ids": real.astype(jnp.int32),
    }


def packed_inputs(batch: Mapping[str, jax.Array], types: Sequence[int] = TYPES) -> dict[str, jax.Array]:
    """Returns the inputs for rows that hold several sequences, each of one text or one pair.

    Args:
        batch: int32 `input_ids` [B, L]; `lengths` [B], number of tokens of each row; `starts` [B, S], where
            each sequence starts, L for unused entries; `first_lengths` [B, S], number of tokens of each
            sequence before its second text.
        types: token types, as for `row_inputs`.

    Returns:
        int32 [B, L] `sequence_ids` (1, 2, ... by sequence, 0 at padding), `position_ids` (from 0 in each
        sequence) and `token_type_ids`; int32 `cls_positions` [B, S], which are also in range for unused
        entries.
    """
    length = batch["input_ids"].shape[1]
    index = jnp.arange(length)
    real = index < batch["lengths"][:, None]
    starts = batch["starts"]
    begun = index[None, :, None] >= starts[:, None, :]  # [B, L, S]
    sequence_ids = jnp.where(real, jnp.sum(begun, axis=-1), 0)
    own_start = jnp.max(jnp.where(begun, starts[:, None, :], 0), axis=-1)
    own_first = jnp.max(jnp.where(begun, (starts + batch["first_lengths"])[:, None, :], 0), axis=-1)
    return {
        "sequence_ids": sequence_ids.astype(jnp.int32),
        "position_ids": jnp.where(real, index - own_start, 0).astype(jnp.int32),
        "token_type_ids": _token_types((real & (index >= own_first)).astype(jnp.int32), types),
        "cls_positions": jnp.minimum(starts, length - 1).astype(jnp.int32),
    }


def _token_types(second: jax.Array, types: Sequence[int]) -> jax.Array:
    """Returns the type of each token; `second` is 1 for tokens of the second text, else 0."""
    first_type, second_type = types
    if (first_type, second_type) == (0, 1):
        return second
    return jnp.where(second > 0, jnp.int32(second_type), jnp.int32(first_type))
