"""Classification and regression of texts and text pairs, from [CLS] (paper, section 4.1).

The module also has two baselines for comparison: a BiLSTM, and a causal model with an auxiliary LM loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models import ClassificationModel
from bert_jax.models.baselines.bilstm_classifier import HEAD, BilstmClassifier
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.pretraining import ClassificationAndLanguageModel
from bert_jax.models.heads.structures import LSTM, MASKED_LM, SEQUENCE, ClassificationHead, MaskedLMHead
from bert_jax.models.row_inputs import TYPES
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Pairs, Params, Rngs
from bert_jax.objectives.causal_lm import next_tokens
from bert_jax.objectives.rows import RowObjective


@dataclasses.dataclass(frozen=True, eq=False)
class Classification(RowObjective):
    """Classification or regression of rows with one or, if packed, several texts or text pairs.

    Batches with one example per row come from `bert_jax.tasks.rows.batches`. Packed batches come from
    `bert_jax.tasks.rows.packing` and have [B, S] examples instead of [B].

    `kind` "classification" has `num_labels` logits and cross-entropy; "regression" has one output and
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
        """Returns the positions of [CLS]. Logits are [B, S, C] for packed rows and [B, C] for others."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class ClassificationAndLM(Classification):
    """`Classification` with a causal model and an auxiliary LM loss (Radford et al. 2018, section 3.2).

    The total is task loss + `lm_weight` (the paper's lambda) * `clm`. `clm` is the mean cross-entropy of the
    next token over all tokens of a batch except the last of each sequence. Evaluation and prediction do not
    compute it. The head `language_model` predicts the next token, and is the same as in masked LM.
    """

    lm_weight: float = 0.5
    language_model: MaskedLMHead = MASKED_LM

    may_differ = "(pooler|mlm)/.*"

    @property
    def model(self) -> ClassificationAndLanguageModel:
        return ClassificationAndLanguageModel(
            self.config, self.output_count, self.classifier, self.language_model
        )

    @property
    def scales(self) -> Mapping[str, float]:
        return {"clm": self.lm_weight}

    def prepare(self, batch: Batch, key: jax.Array | None, train: bool) -> Batch:
        """Returns the batch with the model's inputs and the next tokens, `next_labels` and `next_weights`."""
        batch = super().prepare(batch, key, train)
        labels, weights = next_tokens(batch["input_ids"], batch["sequence_ids"])
        return batch | {"next_labels": labels, "next_weights": weights}

    def logits(self, params: Params, batch: Batch, rngs: Rngs | None = None) -> jax.Array:
        """Returns the float32 logits of the task for a prepared batch."""
        return self._both(params, batch, rngs)[0]

    def _both(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[jax.Array, jax.Array]:
        return self.apply(params, batch, rngs, **self.options(batch))[0]

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | {"clm": batch["next_weights"].sum()}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        logits, of_next = self._both(params, batch, rngs)
        pairs, metrics = self.losses_of(logits, batch)
        pairs["clm"] = losses.cross_entropy(of_next, batch["next_labels"], batch["next_weights"])
        return pairs, metrics


@dataclasses.dataclass(frozen=True, eq=False)
class BilstmClassification(Classification):
    """`Classification` with a `BilstmClassifier`, which has the fields: a BiLSTM without a Transformer."""

    classifier: ClassificationHead = HEAD
    size: int = 384
    pairs: bool = False
    attends: bool = False
    skipped_ids: tuple[int, ...] = ()

    may_differ = "encoder/(?!embeddings/word_embeddings$).*|pooler/.*"

    @property
    def model(self) -> BilstmClassifier:
        return BilstmClassifier(
            self.config, self.output_count, self.size, self.pairs, self.attends, self.skipped_ids
        )

    @property
    def new_groups(self) -> tuple[str, ...]:
        return (LSTM, *self.classifier.new_groups)
