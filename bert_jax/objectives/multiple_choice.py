"""Choice among several texts, with one row per text (paper, section 4.4), and reranking."""

from __future__ import annotations

import dataclasses

import jax

from bert_jax.models import ClassificationModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import SEQUENCE, ClassificationHead
from bert_jax.models.row_inputs import TYPES
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch
from bert_jax.objectives.rows import RowObjective


@dataclasses.dataclass(frozen=True, eq=False)
class MultipleChoice(RowObjective):
    """Each question has `choices` rows. [CLS] gives a score per row, and the softmax is over these rows.

    Batches come from `bert_jax.tasks.rows.batches` and have [B, choices] rows.
    """

    config: EncoderConfig
    choices: int
    windows: bool = False
    token_types: tuple[int, int] = TYPES
    classifier: ClassificationHead = SEQUENCE

    @property
    def model(self) -> ClassificationModel:
        return ClassificationModel(self.config, 1, self.classifier)

    def shaped(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Returns the logits, float32 [B, choices]."""
        return output.reshape(-1, self.choices)

    def criterion(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> losses.Pair:
        return losses.cross_entropy(logits, targets, weights)

    def targets(self, batch: Batch) -> jax.Array:
        return batch["targets"][:, 0]

    def present(self, batch: Batch) -> jax.Array:
        """Returns float32 1 for each question, and 0 for padding."""
        return batch["weights"][:, 0]

    def row_weights(self, batch: Batch) -> jax.Array:
        return batch["row_weights"][:, 0]


@dataclasses.dataclass(frozen=True, eq=False)
class Reranking(MultipleChoice):
    """The cross-entropy of finding the relevant document, which comes first, among the candidates.

    This is the localized contrastive estimation of Gao, Dai and Callan (2021, Rethink training of BERT
    rerankers, section 3). Batches come from `bert_jax.tasks.rows.batches` and have [B, K] rows for K
    candidates (`choices`; K may differ in evaluation), or [B] rows for single pairs.
    """

    def shaped(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Returns the scores, float32 [B, K]."""
        return output.reshape(len(batch["lengths"]), -1)

    def outputs(self, logits: jax.Array) -> jax.Array:
        return logits

    def logits_of(self, outputs: jax.Array) -> jax.Array:
        return outputs
