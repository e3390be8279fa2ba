"""Reranking: a score for each pair of a query and a document, learned from lists of candidates."""

from __future__ import annotations

import dataclasses

import jax

from bert_jax.objectives.base import Batch
from bert_jax.objectives.multiple_choice import MultipleChoice


@dataclasses.dataclass(frozen=True, eq=False)
class Reranking(MultipleChoice):
    """The cross-entropy of finding the relevant document, which is the first one, among the candidates.

    This is the localized contrastive estimation of Gao, Dai and Callan (2021, Rethink training of BERT
    rerankers, section 3). Batches are those of `bert_jax.tasks.rows.batches`, with [B, K] rows for K
    candidates, of which evaluation may have another number, or [B] rows for single pairs.

    Attributes:
        choices: the number of candidates of a query.
    """

    def shaped(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Returns the scores, float32 [B, K]."""
        return output.reshape(len(batch["lengths"]), -1)

    def outputs(self, logits: jax.Array) -> jax.Array:
        """Returns the scores as they are, so that those of one pair are comparable with those of another."""
        return logits

    def logits_of(self, outputs: jax.Array) -> jax.Array:
        """Returns the scores."""
        return outputs
