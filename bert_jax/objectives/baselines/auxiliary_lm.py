"""Classification with an auxiliary loss, that of the next token (Radford et al. 2018, section 3.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import jax

from bert_jax.models.baselines.classification_lm import ClassificationAndLanguageModel
from bert_jax.models.heads.structures import MASKED_LM, MaskedLMHead
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Computed, Pairs, Params, Predicted, Rngs
from bert_jax.objectives.causal_lm import next_tokens
from bert_jax.objectives.classification import Classification


@dataclasses.dataclass(frozen=True, eq=False)
class ClassificationAndLM(Classification):
    """`Classification` by a causal model, with the loss of the task + `lm_weight` * that of the next token.

    The latter, `clm`, is the mean over all tokens of a batch but the last of each sequence. Evaluation and
    prediction do not compute it.

    Attributes:
        lm_weight: the paper's lambda.
        language_model: structure of the head that predicts the next token, which is that of masked LM.
    """

    lm_weight: float = 0.5
    language_model: MaskedLMHead = MASKED_LM

    initial_loss = None  # that of the next token is chance unless the head is that of a checkpoint
    may_differ = "(pooler|mlm)/.*"

    @property
    def model(self) -> ClassificationAndLanguageModel:
        """Returns the encoder with both heads."""
        return ClassificationAndLanguageModel(
            self.config, self.output_count, self.classifier, self.language_model
        )

    @property
    def scales(self) -> Mapping[str, float]:
        """Returns the factor of the loss of the next token."""
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
        found = self.apply(params, batch, rngs, **self.options(batch))
        return cast(tuple[jax.Array, jax.Array], found)

    def computed(self, left_to_right: bool = False) -> Sequence[Computed]:
        """Returns the model, which predicts the next token at every token."""
        return (Computed(self, Predicted.EVERY),)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the weights of both losses."""
        return super().weights(batch) | {"clm": batch["next_weights"].sum()}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns the losses `task` and `clm`, and the metrics of the task."""
        logits, of_next = self._both(params, batch, rngs)
        pairs, metrics = self.losses_of(logits, batch)
        pairs["clm"] = losses.cross_entropy(of_next, batch["next_labels"], batch["next_weights"])
        return pairs, metrics
