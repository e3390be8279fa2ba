"""Classification and regression of texts and pairs, from [CLS] (paper, section 4.1), as a pure task."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import SequenceClassifier
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives import losses
from bert_jax.objectives.masked_lm import unpack
from bert_jax.objectives.rows import RowTask


@dataclasses.dataclass(frozen=True, eq=False)
class ClassificationTask(RowTask):
    """One text or one pair a row, in the batches of `bert_jax.tasks.rows.batches`; or several, in those of
    `bert_jax.tasks.rows.packing`, with [B, S] examples where there are [B].

    A `kind` of "classification" has `num_labels` logits and cross-entropy, of "regression" one output and
    squared error; of "multilabel" one logit a label, [B, C] targets and the cross-entropy of each.
    """

    config: EncoderConfig
    num_labels: int
    kind: str = "classification"
    class_weights: tuple[float, ...] = ()  # of the loss, by label; empty: 1 each
    windows: bool = False  # whether rows are windows of longer texts, with `shares`

    head = "classifier"

    @property
    def model(self) -> SequenceClassifier:
        return SequenceClassifier(self.config, num_labels=1 if self.kind == "regression" else self.num_labels)

    @property
    def expected_initial_loss(self) -> float | None:
        """ln C: what an untrained classifier loses, or ln 2 of labels that do not exclude each other; None
        for a regression, whose loss depends on the targets, and for windows, where it depends on the shares
        that a batch happens to have.
        """
        if self.kind == "regression" or self.windows:
            return None
        return float(np.log(2 if self.kind == "multilabel" else self.num_labels))

    def prepare(self, batch: dict[str, jax.Array], key: jax.Array, train: bool) -> dict[str, jax.Array]:
        """Adds the model's inputs; of packed rows, int32 `cls_positions` [B, S] too."""
        if "starts" not in batch:
            return super().prepare(batch, key, train)
        return batch | unpack(batch) | {"tokens": batch["lengths"], "sequences": batch["weights"]}

    def logits(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """float32 [B, C] of a prepared batch."""
        return self.apply(params, batch, dropout_key, cls_positions=batch.get("cls_positions"))

    def loss_weights(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"task": jnp.sum(self._weights(batch))}

    def loss(self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None):
        logits = self.logits(params, batch, dropout_key)
        weights = self._weights(batch)
        counted = weights * batch["shares"] if self.windows else weights
        found = {}
        if self.kind == "regression":
            total, _ = losses.squared_error(logits[..., 0], batch["targets"], counted)
        elif self.kind == "multilabel":
            total, _ = losses.binary_cross_entropy(logits, batch["targets"], counted)
        else:
            total, _ = losses.cross_entropy(logits, batch["targets"], counted)
            found["accuracy"] = losses.accuracy(logits, batch["targets"], batch["weights"])
        # Not divided by the sum of the shares: windows of long texts, all of one length, fill batches of
        # their own, where that would give each of them the weight of a whole text.
        return {"task": (total, jnp.sum(weights))}, found

    def _weights(self, batch: dict[str, jax.Array]) -> jax.Array:
        if not self.class_weights:
            return batch["weights"]
        return batch["weights"] * jnp.asarray(self.class_weights, jnp.float32)[batch["targets"]]

    def predict(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """float32 [B, C] probabilities, or [B, 1] numbers, of a batch as the loader gives it."""
        logits = self.logits(params, self.prepare(batch, None, False))
        if self.kind == "regression":
            return logits
        return jax.nn.sigmoid(logits) if self.kind == "multilabel" else jax.nn.softmax(logits, axis=-1)
