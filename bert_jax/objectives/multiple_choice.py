"""Choice among several texts, with one row for each text (paper, section 4.4)."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from bert_jax.models import ClassificationModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import SEQUENCE, ClassificationHead
from bert_jax.models.row_inputs import TYPES
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch
from bert_jax.objectives.rows import RowObjective


@dataclasses.dataclass(frozen=True, eq=False)
class MultipleChoice(RowObjective):
    """Each question has `choices` rows with one score from [CLS] each; the softmax is over these rows.

    Batches are those of `bert_jax.tasks.rows.batches`, with [B, choices] rows.
    """

    config: EncoderConfig
    choices: int
    windows: bool = False
    token_types: tuple[int, int] = TYPES
    classifier: ClassificationHead = SEQUENCE

    @property
    def model(self) -> ClassificationModel:
        """Returns the encoder with a head that scores one choice."""
        return ClassificationModel(self.config, 1, self.classifier)

    @property
    def initial_loss(self) -> float | None:
        """Returns ln of the number of choices; None for windows, because their rows are weighted."""
        return None if self.windows else float(np.log(self.choices))

    def shaped(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Returns the logits, float32 [B, choices]."""
        return output.reshape(-1, self.choices)

    def criterion(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> losses.Pair:
        """Returns the cross-entropy over the choices as (sum, weight)."""
        return losses.cross_entropy(logits, targets, weights)

    def targets(self, batch: Batch) -> jax.Array:
        """Returns the index of the right choice of each question."""
        return batch["targets"][:, 0]

    def present(self, batch: Batch) -> jax.Array:
        """Returns float32 1 for each question, and 0 for padding."""
        return batch["weights"][:, 0]

    def row_weights(self, batch: Batch) -> jax.Array:
        """Returns the weight of each question's windows."""
        return batch["row_weights"][:, 0]
