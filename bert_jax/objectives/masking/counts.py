"""The number of tokens to predict in a row, by the names of the programs that use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from etils import epy

with epy.lazy_imports():  # the options are read before jax may be imported
    import jax
    import jax.numpy as jnp


class Rows(NamedTuple):
    """What the counts of some rows depend on.

    Attributes:
        keys: typed PRNG keys [B].
        lengths: int32 [B], number of real tokens, including special ones.
        candidate: bool [B, L], the tokens that may be chosen.
        prob: share of the tokens to predict, a number, or a float32 scalar if it depends on the step.
        most: the largest count.
    """

    keys: jax.Array
    lengths: jax.Array
    candidate: jax.Array
    prob: float | jax.Array
    most: int


# Stream of the row's key. Streams 0 to 3 are those of `mask_tokens`.
_STREAM = 4


def _google(rows: Rows) -> jax.Array:
    """Returns round(prob n), at least 1, of the n tokens with [CLS] and [SEP] (google-research/bert)."""
    if isinstance(rows.prob, float):
        # Python's float64 round, as in the reference: float32 would differ at halves.
        return _table(rows, [round(n * rows.prob) for n in range(rows.candidate.shape[1] + 1)])
    return _at_least_one(rows, jnp.round(_wanted(rows)).astype(jnp.int32))


def _electra(rows: Rows) -> jax.Array:
    """Returns the same as `_google`, but rounds in float32 (google-research/electra, pretrain_helpers.py)."""
    if isinstance(rows.prob, float):
        numbers = np.arange(rows.candidate.shape[1] + 1, dtype=np.float32)
        return _table(rows, np.round(numbers * np.float32(rows.prob)).astype(int).tolist())
    return _at_least_one(rows, jnp.round(_wanted(rows)).astype(jnp.int32))


def _fairseq(rows: Rows) -> jax.Array:
    """Returns floor(prob n + U) of all n tokens, U uniform in [0, 1) (fairseq, mask_tokens_dataset.py)."""
    return jnp.minimum(rows.most, jnp.floor(_wanted(rows) + _uniform(rows)).astype(jnp.int32))


def _bernoulli(rows: Rows) -> jax.Array:
    """Returns the number of candidates if each is chosen independently (collator of transformers).

    A uniform choice of that many candidates then has the distribution of independent choices.
    """
    chosen = rows.candidate & (_uniform(rows, rows.candidate.shape[1]) < rows.prob)
    return jnp.minimum(rows.most, jnp.sum(chosen, axis=1, dtype=jnp.int32))


def _wanted(rows: Rows) -> jax.Array:
    """Returns the share of the tokens of each row, before it is rounded: float32 [B]."""
    return rows.lengths.astype(jnp.float32) * rows.prob


def _uniform(rows: Rows, *shape: int) -> jax.Array:
    """Returns uniform numbers of each row: float32 [B, *shape]."""
    return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, _STREAM), shape, jnp.float32))(
        rows.keys
    )


def _table(rows: Rows, counts: list[int]) -> jax.Array:
    table = np.array([min(rows.most, max(1, count)) for count in counts], np.int32)
    return jnp.asarray(table)[rows.lengths]


def _at_least_one(rows: Rows, counts: jax.Array) -> jax.Array:
    return jnp.clip(counts, 1, rows.most)


# Functions that return int32 [B], the number of tokens to predict in each row.
COUNTS: dict[str, Callable[[Rows], jax.Array]] = {
    "google": _google,
    "fairseq": _fairseq,
    "electra": _electra,
    "bernoulli": _bernoulli,
}


def default_max_predictions(length: int, prob: float, count: str = "google") -> int:
    """Returns the static number of predictions for full rows.

    It is the fraction `prob` of a row, rounded up to a multiple of 4: for 15%, 20 at 128 tokens and 80 at
    512, as is customary. ELECTRA's is int((prob + 0.005) length), and independent choices get four standard
    deviations more.

    Args:
        length: the maximum number of tokens in a row.
        prob: share of the tokens to predict.
        count: a name in `COUNTS`.
    """
    if count == "electra":
        return max(1, int((prob + 0.005) * length))
    most = prob * length
    if count == "bernoulli":
        most = min(float(length), most + 4 * np.sqrt(most * (1 - prob)))
    return max(4, -(-int(np.ceil(most)) // 4) * 4)
