"""Prediction of the start and the end of an answer in a text (paper, sections 4.2 and 4.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from bert_jax.models import ClassificationModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import SPANS, ClassificationHead
from bert_jax.models.row_inputs import TYPES
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Pairs
from bert_jax.objectives.rows import RowObjective

Targets = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Spans(RowObjective):
    """Predicts where the answer starts and ends in rows of a question and a window of its context.

    Batches come from `bert_jax.tasks.rows.batches` and have int32 targets `starts` and `ends` [B].
    """

    config: EncoderConfig
    token_types: tuple[int, int] = TYPES
    classifier: ClassificationHead = SPANS

    @property
    def model(self) -> ClassificationModel:
        return ClassificationModel(self.config, 2, self.classifier)

    def shaped(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Returns float32 [B, L, 2] start and end scores; padding has the lowest finite number."""
        return jnp.where(batch["sequence_ids"][..., None] > 0, output, jnp.finfo(output.dtype).min)

    def soft_logits(self, logits: jax.Array) -> list[jax.Array]:
        """Returns the start and end scores; padding has -1e9, which any temperature can divide."""
        return [jnp.maximum(logits[..., i], -1e9) for i in range(2)]

    def criterion(self, logits: jax.Array, targets: Targets, weights: jax.Array) -> losses.Pair:
        """Returns the mean of the start and end cross-entropies; classes are the tokens of the row."""
        start_sum, weight = losses.cross_entropy(logits[..., 0], targets["starts"], weights)
        end_sum, _ = losses.cross_entropy(logits[..., 1], targets["ends"], weights)
        return (start_sum + end_sum) / 2, weight

    def metrics(self, logits: jax.Array, targets: Targets, weights: jax.Array) -> Pairs:
        return {
            "start_accuracy": losses.accuracy(logits[..., 0], targets["starts"], weights),
            "end_accuracy": losses.accuracy(logits[..., 1], targets["ends"], weights),
        }

    def targets(self, batch: Batch) -> Targets:
        return {name: batch[name] for name in ("starts", "ends")}

    def outputs(self, logits: jax.Array) -> jax.Array:
        """Returns the scores unchanged, float32 [B, L, 2]."""
        return logits

    def logits_of(self, outputs: jax.Array) -> jax.Array:
        return outputs
