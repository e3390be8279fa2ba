"""Classification and regression of texts and text pairs, from [CLS] (paper, section 4.1)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models import ClassificationModel
from bert_jax.models.baselines.bilstm_classifier import BilstmClassifier
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import SEQUENCE, ClassificationHead
from bert_jax.models.row_inputs import TYPES
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Pairs
from bert_jax.objectives.rows import RowObjective


@dataclasses.dataclass(frozen=True, eq=False)
class Classification(RowObjective):
    """Classification or regression of rows with one text or one pair, or with several of them.

    Batches with one example per row come from `bert_jax.tasks.rows.batches`. Packed batches come from
    `bert_jax.tasks.rows.packing` and have [B, S] examples instead of [B].

    A `kind` of "classification" has `num_labels` logits and cross-entropy; "regression" has one output and
    squared error; "multilabel" has one logit per label, [B, C] targets and a binary cross-entropy per label.
    """

    config: EncoderConfig
    num_labels: int
    kind: str = "classification"
    class_weights: tuple[float, ...] = ()  # weight of each label in the loss; empty: all 1
    windows: bool = False
    token_types: tuple[int, int] = TYPES
    classifier: ClassificationHead = SEQUENCE
    may_be_packed = True

    @property
    def model(self) -> ClassificationModel | BilstmClassifier:
        return ClassificationModel(self.config, self.output_count, self.classifier)

    @property
    def output_count(self) -> int:
        """Returns the number of outputs of the model."""
        return 1 if self.kind == "regression" else self.num_labels

    def options(self, batch: Batch) -> dict[str, Any]:
        """Returns the positions of [CLS]. The logits of packed rows are [B, S, C], and [B, C] of others."""
        return {"cls_positions": batch.get("cls_positions")}

    @property
    def has_softmax(self) -> bool:
        """Returns whether this is a classification; other kinds have no softmax."""
        return self.kind == "classification"

    def criterion(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> losses.Pair:
        if self.kind == "regression":
            return losses.squared_error(logits[..., 0], targets, weights)
        if self.kind == "multilabel":
            return losses.binary_cross_entropy(logits, targets, weights)
        return losses.cross_entropy(logits, targets, weights)

    def metrics(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> Pairs:
        """Returns the accuracy of a classification; other kinds have no training metrics."""
        return super().metrics(logits, targets, weights) if self.kind == "classification" else {}

    def example_weights(self, batch: Batch) -> jax.Array:
        if not self.class_weights:
            return batch["weights"]
        return batch["weights"] * jnp.asarray(self.class_weights, jnp.float32)[batch["targets"]]

    def outputs(self, logits: jax.Array) -> jax.Array:
        """Returns float32 [B, C] probabilities, or the [B, 1] predictions of a regression."""
        if self.kind == "regression":
            return logits
        return jax.nn.sigmoid(logits) if self.kind == "multilabel" else jax.nn.softmax(logits, axis=-1)

    def logits_of(self, outputs: jax.Array) -> jax.Array:
        if self.kind == "regression":
            return outputs
        if self.kind == "multilabel":
            # A probability that is rounded to 1 differs from it by at most 2^-25.
            return super().logits_of(outputs) - super().logits_of(jnp.maximum(1 - outputs, 2.0**-25))
        return super().logits_of(outputs)
