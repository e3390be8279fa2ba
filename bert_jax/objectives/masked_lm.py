"""Masked LM and next-sentence prediction over rows of records, as a pure task for the train step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import PretrainingModel
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives import losses
from bert_jax.objectives.masking import MaskingOptions, Vocabulary, mask_tokens


def unpack(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The model's inputs from packed rows.

    Args:
      batch: int32 `input_ids` [B, L]; `lengths` [B], real tokens; `starts` [B, S], where each sequence
          starts, L where
        absent; `first_lengths` [B, S], tokens of sentence A with [CLS] and its [SEP].

    Returns:
      int32 `sequence_ids` (1.. by sequence, 0 at padding), `position_ids` (restarting at each sequence) and
      `token_type_ids` (0 in A, 1 in B and 0 at padding), [B, L]; `cls_positions` [B, S], in range where
      absent.
    """
    length = batch["input_ids"].shape[1]
    index = jnp.arange(length)
    real = index < batch["lengths"][:, None]
    starts = batch["starts"]
    begun = index[None, :, None] >= starts[:, None, :]  # [B, L, S]
    sequence_ids = jnp.where(real, jnp.sum(begun, axis=-1), 0)
    own_start = jnp.max(jnp.where(begun, starts[:, None, :], 0), axis=-1)
    own_first = jnp.max(jnp.where(begun, (starts + batch["first_lengths"])[:, None, :], 0), axis=-1)
    return {
        "sequence_ids": sequence_ids.astype(jnp.int32),
        "position_ids": jnp.where(real, index - own_start, 0).astype(jnp.int32),
        "token_type_ids": (real & (index >= own_first)).astype(jnp.int32),
        "cls_positions": jnp.minimum(starts, length - 1).astype(jnp.int32),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class PretrainingTask:
    """BERT's pre-training (paper, section 3.1). Next-sentence labels of -1 are left out of the loss."""

    config: EncoderConfig
    vocabulary: Vocabulary
    masking: MaskingOptions
    next_sentence: bool = True  # whether the records have next-sentence labels at all

    @property
    def model(self) -> PretrainingModel:
        return PretrainingModel(self.config)

    @property
    def expected_initial_loss(self) -> float:
        """ln V + ln 2: what an untrained model loses; ln V without next-sentence labels."""
        return float(np.log(self.config.vocab_size) + np.log(2) * self.next_sentence)

    def init(self, key: jax.Array) -> Any:
        ids = jnp.zeros((1, 8), jnp.int32)
        return self.model.init(key, ids, ids, ids, ids, ids[:, :1], ids[:, :1])["params"]

    def prepare(self, batch: dict[str, jax.Array], key: jax.Array, train: bool) -> dict[str, jax.Array]:
        """Unpacks the rows and draws their masks; a row's masks depend on (key, its place in the global
        batch). Rows that come with masks (see `data.google`) keep them.
        """
        del train
        labels = batch["next_sentence_labels"]
        prepared = unpack(batch) | self._masked(batch, key)
        return prepared | {
            "next_sentence_labels": jnp.maximum(labels, 0),
            "next_sentence_weights": (labels >= 0).astype(jnp.float32),
            "tokens": batch["lengths"],
            "sequences": jnp.sum(batch["first_lengths"] > 0, axis=1),
        }

    def _masked(self, batch: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
        names = ("input_ids", "masked_positions", "masked_labels", "masked_weights")
        if "masked_positions" in batch:
            return {name: batch[name] for name in names}
        row_keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(batch["row_ids"])
        masked = mask_tokens(row_keys, batch["input_ids"], batch["lengths"], self.vocabulary, self.masking)
        return dict(zip(names, masked, strict=True))

    def loss_weights(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"mlm": jnp.sum(batch["masked_weights"]), "nsp": jnp.sum(batch["next_sentence_weights"])}

    def loss(self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None):
        mlm_logits, nsp_logits = self.model.apply(
            {"params": params},
            batch["input_ids"],
            batch["token_type_ids"],
            batch["position_ids"],
            batch["sequence_ids"],
            batch["masked_positions"],
            batch["cls_positions"],
            deterministic=dropout_key is None,
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )
        mlm = (mlm_logits, batch["masked_labels"], batch["masked_weights"])
        nsp = (nsp_logits, batch["next_sentence_labels"], batch["next_sentence_weights"])
        return (
            {"mlm": losses.cross_entropy(*mlm), "nsp": losses.cross_entropy(*nsp)},
            {"mlm_accuracy": losses.accuracy(*mlm), "nsp_accuracy": losses.accuracy(*nsp)},
        )
