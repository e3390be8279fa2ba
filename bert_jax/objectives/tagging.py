"""Tagging of words from their first word piece (paper, section 5.3)."""

from __future__ import annotations

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp

from bert_jax.models import ClassificationModel, FeatureTagger
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import TOKENS, ClassificationHead
from bert_jax.models.row_inputs import INPUTS, TYPES, row_inputs
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Params, Rngs
from bert_jax.objectives.rows import RowObjective


@dataclasses.dataclass(frozen=True, eq=False)
class Tagging(RowObjective):
    """Predicts one tag per token in batches of `bert_jax.tasks.rows.batches`; a negative tag means none.

    If encoder and head are trained together, `layers` is empty, and `classifier` has the settings of the
    BiLSTM layers. Otherwise the head reads the outputs of these layers of a frozen encoder, combined by
    `mix`, a name in `models.baselines.feature_tagger.FEATURE_MIXES`.
    """

    config: EncoderConfig
    num_labels: int
    layers: tuple[int, ...] = ()
    lstm_layers: int = 0
    lstm_size: int = 768
    mix: str = "concat"
    token_types: tuple[int, int] = TYPES
    classifier: ClassificationHead = TOKENS

    @property
    def model(self) -> ClassificationModel | FeatureTagger:
        if not self.layers:
            return ClassificationModel(self.config, self.num_labels, self.classifier)
        return FeatureTagger(
            self.config, self.num_labels, self.layers, self.lstm_layers, self.lstm_size, self.mix
        )

    def prepare(self, batch: Batch, key: jax.Array | None, train: bool) -> Batch:
        """Returns the model's inputs for rows of one text, with their `tags` and `features` if present."""
        del key, train
        given = {name: batch[name] for name in ("tags", "features") if name in batch}
        inputs = row_inputs(batch["input_ids"], batch["lengths"], types=self.token_types)
        return given | inputs | {"tokens": batch["lengths"], "sequences": batch["weights"]}

    @property
    def feature_width(self) -> int:
        """Returns the number of values per token in the result of `features`."""
        return (1 if self.mix == "sum" else len(self.layers)) * self.config.hidden_size

    def features(self, params: Params, batch: Batch) -> jax.Array:
        """Returns float16 [B, L, `feature_width`] for a loader's batch; only the encoder needs `params`."""
        return self._features(params, self.prepare(batch, None, False))

    def _features(self, params, batch):
        params = {"params": {"encoder": params["encoder"]}}
        features = self.model.apply(params, *(batch[name] for name in INPUTS), method="features")
        return cast(jax.Array, features)

    def logits(self, params: Params, batch: Batch, rngs: Rngs | None = None) -> jax.Array:
        """Returns float32 [B, L, C]."""
        if not self.layers:
            return super().logits(params, batch, rngs)
        features = batch["features"] if "features" in batch else self._features(params, batch)
        logits = self.model.apply(
            {"params": {"classifier": params["classifier"]}},
            features,
            batch["sequence_ids"],
            deterministic=rngs is None,
            method="classify",
            rngs=rngs,
        )
        return cast(jax.Array, logits)

    def criterion(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> losses.Pair:
        return losses.cross_entropy(logits, targets, weights)

    def targets(self, batch: Batch) -> jax.Array:
        return batch["tags"]

    def present(self, batch: Batch) -> jax.Array:
        """Returns float32 1 for each token with a tag, and 0 for the others."""
        return (batch["tags"] >= 0).astype(jnp.float32)
