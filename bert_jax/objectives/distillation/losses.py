"""How far outputs or states of a student are from those of its teacher, as sums over weighted rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.kernels.xla_attention import attention_logits

_COSINE_EPSILON = 1e-12  # of torch.nn.CosineEmbeddingLoss, added to each squared norm


def divergence(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, temperature: float = 1.0
) -> jax.Array:
    """Returns the sum of weight x T^2 KL(softmax(targets / T) || softmax(logits / T)), in nats.

    The factor keeps the size of the gradient the same for each temperature (Hinton et al. 2015, section 2).

    Args:
        logits: of the student, float [..., C]; converted to float32.
        targets: logits of the teacher, as `logits`. No gradient passes.
        weights: float32, broadcast to [...].
        temperature: T, above 0.
    """
    logits, targets = (x.astype(jnp.float32) / temperature for x in (logits, targets))
    return temperature**2 * jnp.sum(_divergence(logits, targets) * weights)


@jax.custom_vjp
def _divergence(logits, targets):
    return _divergence_fwd(logits, targets)[0]


def _divergence_fwd(logits, targets):
    log_sum, log_sum_of_targets = (jax.nn.logsumexp(x, axis=-1, keepdims=True) for x in (logits, targets))
    expected = jnp.sum(jnp.exp(targets - log_sum_of_targets) * (targets - logits), axis=-1)
    divergence = expected + (log_sum - log_sum_of_targets)[..., 0]
    return divergence, (logits, targets, log_sum, log_sum_of_targets)


def _divergence_bwd(residuals, g):
    # One pass over both logits, whose probabilities autodiff would keep too.
    logits, targets, log_sum, log_sum_of_targets = residuals
    return (jnp.exp(logits - log_sum) - jnp.exp(targets - log_sum_of_targets)) * g[..., None], None


_divergence.defvjp(_divergence_fwd, _divergence_bwd)


def cosine_distance(states: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the sum of weight x (1 - cosine) of states [..., H], with weights [...]."""
    x, y = (each.astype(jnp.float32) for each in (states, targets))
    squares, squares_of_targets = (jnp.sum(jnp.square(each), axis=-1) + _COSINE_EPSILON for each in (x, y))
    cosine = jnp.sum(x * y, axis=-1) * jax.lax.rsqrt(squares * squares_of_targets)
    return jnp.sum((1 - cosine) * weights)


def squared_distance(states: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the sum of weight x mean squared difference of states [..., H], with weights [...]."""
    difference = states.astype(jnp.float32) - targets.astype(jnp.float32)
    return jnp.sum(jnp.mean(jnp.square(difference), axis=-1) * weights)


def relation_logits(
    states: jax.Array, others: jax.Array, sequence_ids: jax.Array, heads: int = 0
) -> jax.Array:
    """Returns the scaled products of each two tokens of a sequence, float32 [B, N, L, L].

    Args:
        states: [B, L, N, D], such as queries.
        others: as `states`, such as keys.
        sequence_ids: int32 [B, L]. Products of tokens of two sequences are -1e9.
        heads: the number of heads into which N x D is divided anew (Wang et al. 2021, section 3.1); 0 for N.
    """
    if heads:
        states, others = (x.reshape(*x.shape[:2], heads, -1) for x in (states, others))
    return attention_logits(states, others, sequence_ids)
