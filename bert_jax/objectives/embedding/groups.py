"""Base class of objectives that compare the texts of a batch, which come in groups, with each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.models.heads.structures import LEAST_LENGTH
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Pairs, Params, Rngs
from bert_jax.objectives.rows import RowObjective

HIGHEST = jax.lax.Precision.HIGHEST  # of inner products, whose differences a low temperature multiplies
EXCLUDED = -1e9  # a logit of a text that is no candidate


class TextObjective(RowObjective):
    """Base class of objectives that train vectors, which evaluation compares by pairs of texts."""

    choices = 2  # texts in a group of evaluation

    @property
    def has_softmax(self) -> bool:
        """Returns False: the outputs are vectors."""
        return False


class TextGroups(TextObjective):
    """An objective that compares texts.

    Texts come in groups: an anchor, its positive, and any number of hard negatives, in this order. Batches
    are those of `rows.batches`, [B, K] rows of K texts a group, with int32 `texts`, equal for equal texts.

    Attributes:
        group: number of texts in a group of training. Groups of evaluation are pairs.
        temperature: what scores are divided by.
        symmetric: whether the anchor of each positive is sought too; the loss is the mean.
    """

    group: int = 2
    temperature: float = 1.0
    symmetric: bool = False

    @property
    def compares_rows(self) -> bool:
        """Returns True."""
        return True

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the number of groups."""
        return {"task": jnp.sum(self.by_group("weights", batch)[:, 0])}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns the loss `task`, and the metric `accuracy` of losses that have one."""
        return self.compare(params, self.row_outputs(params, batch, rngs), batch)

    def by_group(self, name: str, batch: Batch) -> jax.Array:
        """Returns values of the texts of a batch, [B, K]; those of packed batches are [B x K]."""
        return batch[name].reshape(-1, self.group)

    def contrast(self, scores: jax.Array, batch: Batch) -> tuple[Pairs, Pairs]:
        """Returns InfoNCE, the cross-entropy of finding each anchor's positive, and its accuracy.

        A text that is equal to the anchor, or to a positive of an equal anchor, is no negative.

        Args:
            scores: float32 [B, (K - 1) B], of each anchor with the other texts of all groups: all positives,
                then all first negatives, and so on.
            batch: a batch with `texts` and `weights`.
        """
        texts, present = self.by_group("texts", batch), self.by_group("weights", batch)
        weights = present[:, 0]
        candidates = _candidates(texts, present)
        numbers = jnp.arange(len(scores))
        logits = jnp.where(candidates, scores / self.temperature, EXCLUDED)
        loss = losses.cross_entropy(logits, numbers, weights)
        accuracy = losses.accuracy(logits, numbers, weights)
        if self.symmetric:
            # The pairs that are excluded in one direction are excluded in the other one, too.
            among = slice(len(scores))
            back = jnp.where(candidates[:, among] & (weights > 0)[:, None], logits[:, among], EXCLUDED).T
            loss = ((loss[0] + losses.cross_entropy(back, numbers, weights)[0]) / 2, loss[1])
        return {"task": loss}, {"accuracy": accuracy}


def _candidates(texts: jax.Array, present: jax.Array) -> jax.Array:
    """Returns bool [B, (K - 1) B], which texts are candidates for each anchor; its positive always is."""
    anchors, positives = texts[:, :1], texts[:, 1:2]
    others = texts[:, 1:].T.reshape(1, -1)
    # A product of numbers, which is fast on every platform, as one of booleans is not.
    equal_anchors, equal_positives = (
        jnp.asarray(equal, jnp.float32) for equal in (anchors == anchors.T, positives == others)
    )
    is_positive = jnp.matmul(equal_anchors, equal_positives) > 0  # of an anchor that is equal
    own = jnp.arange(len(anchors))[:, None] == jnp.arange(others.shape[1])
    real = present[:, 1:].T.reshape(1, -1) > 0
    return own | (real & (others != anchors) & ~is_positive)


def normalize(vectors: jax.Array) -> jax.Array:
    """Returns vectors [..., H] scaled to length 1; a vector of zeros stays, and its gradient is finite."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, LEAST_LENGTH**2))
