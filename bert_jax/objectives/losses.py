"""Losses and accuracies as (sum, weight) pairs; the mean is computed once, over the global batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.kernels import tied_table
from bert_jax.kernels.tied_table import LateLogits

Pair = tuple[jax.Array, jax.Array]


def cross_entropy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Pair:
    """Returns the weighted negative log-likelihood in nats.

    Args:
        logits: float [..., C]; converted to float32. Their gradient is float32, so any other loss term that
            uses the same bfloat16 logits must convert them to float32 first.
        labels: int32 [...], in [0, C) wherever the weight is not zero.
        weights: float32 [...].

    Returns:
        float32 scalars (sum of weight x loss, sum of weights).
    """
    labels = jnp.where(weights > 0, labels, 0)
    return jnp.sum(_negative_log_likelihood(logits, labels) * weights), jnp.sum(weights)


def _pick(logits, labels):
    # A comparison is used instead of a gather: its gradient is elementwise, and it stays local if classes
    # are sharded.
    return jnp.sum(jnp.where(labels[..., None] == jnp.arange(logits.shape[-1]), logits, 0.0), axis=-1)


@jax.custom_vjp
def _negative_log_likelihood(logits, labels):
    return _negative_log_likelihood_fwd(logits, labels)[0]


def _negative_log_likelihood_fwd(logits, labels):
    logits = logits.astype(jnp.float32)
    largest = jnp.max(logits, axis=-1, keepdims=True)
    log_sum = jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)) + largest[..., 0]
    return log_sum - _pick(logits, labels), (logits, labels, log_sum)


def _negative_log_likelihood_bwd(residuals, g):
    # One pass over the logits, which with 30,522 classes are the largest array of a step; autodiff would also
    # keep their exponentials.
    logits, labels, log_sum = residuals
    hit = (labels[..., None] == jnp.arange(logits.shape[-1])).astype(jnp.float32)
    return (jnp.exp(logits - log_sum[..., None]) - hit) * g[..., None], None


_negative_log_likelihood.defvjp(_negative_log_likelihood_fwd, _negative_log_likelihood_bwd)


def accuracy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Pair:
    """Returns the weighted count of rows whose largest logit is the label's; shapes as in `cross_entropy`.

    A label that shares the maximum with others counts as one divided by the number of tied classes, which is
    the expected score of choosing among them at random: bfloat16 logits have 8 significant bits, so ties are
    common among 30,522 classes. The maximum has already been computed for the loss, whereas an argmax would
    read the logits once more.
    """
    labels = jnp.where(weights > 0, labels, 0)
    largest = jnp.max(logits, axis=-1)
    tied = jnp.sum(logits == largest[..., None], axis=-1, dtype=jnp.float32)
    hit = (_pick(logits, labels) >= largest).astype(jnp.float32) / jnp.maximum(tied, 1.0)
    return jnp.sum(hit * weights), jnp.sum(weights)


def of_tokens(logits: jax.Array | LateLogits, labels: jax.Array, weights: jax.Array) -> tuple[Pair, Pair]:
    """Returns `cross_entropy` and `accuracy`, also for logits that are computed only here."""
    if not isinstance(logits, LateLogits):
        return cross_entropy(logits, labels, weights), accuracy(logits, labels, weights)
    total = jnp.sum(weights)
    loss, hits = tied_table.cross_entropy(logits, labels, weights)
    return (loss, total), (hits, total)


def squared_error(predictions: jax.Array, targets: jax.Array, weights: jax.Array) -> Pair:
    """Returns the weighted squared error as (sum, weight); all arguments are float32 [...]."""
    return jnp.sum(jnp.square(predictions.astype(jnp.float32) - targets) * weights), jnp.sum(weights)


def binary_cross_entropy(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> Pair:
    """Returns the weighted mean over C labels of the binary cross-entropy in nats, as (sum, weight).

    The logits, float [..., C], are converted to float32. The targets, float32 [..., C], are 1 for labels that
    apply, and the weights float32 [...].
    """
    logits = logits.astype(jnp.float32)
    each = jnp.maximum(logits, 0) - logits * targets + jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return jnp.sum(jnp.mean(each, axis=-1) * weights), jnp.sum(weights)


def mean(pair: Pair, otherwise: float = 0.0) -> jax.Array:
    """Returns sum / weight, or `otherwise` where the weight is 0."""
    total, weight = pair
    return jnp.where(weight > 0, total / jnp.maximum(weight, 1e-9), otherwise)
