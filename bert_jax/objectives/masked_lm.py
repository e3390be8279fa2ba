"""Masked LM and next-sentence prediction for rows of records (paper, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models import PretrainingModel, intermediates
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import MASKED_LM, MaskedLMHead
from bert_jax.models.row_inputs import INPUTS, TYPES, packed_inputs
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Objective, Pairs, Params, Rngs
from bert_jax.objectives.masking import MaskingOptions, Vocabulary, mask_tokens, place_at


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedLM(Objective):
    """The objective of BERT's pre-training. Next-sentence labels of -1 do not count in the loss."""

    config: EncoderConfig
    vocabulary: Vocabulary
    masking: MaskingOptions
    next_sentence: bool = True  # whether the records have next-sentence labels
    token_types: tuple[int, int] = TYPES  # of A and B
    head: MaskedLMHead = MASKED_LM
    next_sentence_head: bool = True  # whether the model has this head and its pooler, and uses the labels
    eval_masking: MaskingOptions | None = None  # by default as in training

    @property
    def model(self) -> PretrainingModel:
        return PretrainingModel(self.config, self.head, self.next_sentence_head)

    def init(self, key: jax.Array) -> Params:
        ids = jnp.zeros((1, 8), jnp.int32)
        return self.model.init(key, ids, ids, ids, ids, ids[:, :1], ids[:, :1])["params"]

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        """Unpacks the rows and samples their masks.

        The masks of a row depend on `key` and the row's position in the global batch. With `masking.copies`,
        training masks depend only on the entry `mask_keys` (see `data.loader`). Rows that already have masks
        (see `data.google`) keep them.
        """
        labels = batch["next_sentence_labels"]
        prepared = packed_inputs(batch, self.token_types) | self._masked(batch, key, train)
        return prepared | {
            "next_sentence_labels": jnp.maximum(labels, 0),
            "next_sentence_weights": (labels >= 0).astype(jnp.float32),
            "tokens": batch["lengths"],
            "sequences": jnp.sum(batch["first_lengths"] > 0, axis=1),
        }

    def _masked(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        names = ("input_ids", "masked_positions", "masked_labels", "masked_weights")
        if "masked_positions" in batch:
            return {name: batch[name] for name in names}
        masking = self.masking if train else self.eval_masking or self.masking
        if train and masking.copies:
            row_keys = jax.random.wrap_key_data(batch["mask_keys"], impl="threefry2x32")
        else:
            row_keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(batch["row_ids"])
        masked = mask_tokens(row_keys, batch["input_ids"], batch["lengths"], self.vocabulary, masking)
        return dict(zip(names, masked, strict=True))

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the numbers of masked tokens and of sequences with a next-sentence label."""
        weights = {"mlm": jnp.sum(batch["masked_weights"])}
        if self.next_sentence_head:
            weights["nsp"] = jnp.sum(batch["next_sentence_weights"])
        return weights

    @property
    def loss_names(self) -> tuple[str, ...]:
        return ("mlm", "nsp") if self.next_sentence_head else ("mlm",)

    def forward(
        self,
        params: Params,
        batch: Batch,
        rngs: Rngs | None = None,
        collect: Collection[str] = (),
        late_logits: bool = False,
    ) -> tuple[Any, intermediates.States]:
        """Returns the logits of both heads (None for a missing next-sentence head) and the collected states.

        The batch is prepared; without `masked_positions`, tokens are predicted at every position. For
        `collect`, see `models.intermediates`, and for `late_logits`, `models.PretrainingModel`.
        """
        inputs = [batch.get(name) for name in (*INPUTS, "masked_positions", "cls_positions")]
        options = {"deterministic": rngs is None, "rngs": rngs, "late_logits": late_logits}
        return intermediates.apply(self.model, self.config, params, *inputs, collect=collect, **options)

    def losses_of(self, logits: Any, batch: Batch) -> tuple[Pairs, Pairs]:
        mlm_logits, nsp_logits = logits
        heads = {"mlm": (mlm_logits, batch["masked_labels"], batch["masked_weights"])}
        if nsp_logits is not None:
            heads["nsp"] = (nsp_logits, batch["next_sentence_labels"], batch["next_sentence_weights"])
        pairs = {name: losses.of_tokens(*head) for name, head in heads.items()}
        return (
            {name: loss for name, (loss, _) in pairs.items()},
            {f"{name}_accuracy": accuracy for name, (_, accuracy) in pairs.items()},
        )

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        return self.losses_of(self.forward(params, batch, rngs, late_logits=True)[0], batch)

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the probabilities of the whole vocabulary at the masks: float32 [B, P, V].

        The batch of the loader already has masks, with their int32 `masked_positions` [B, P].
        """
        logits, _ = self.forward(params, batch | packed_inputs(batch, self.token_types))[0]
        return jax.nn.softmax(logits.astype(jnp.float32), axis=-1)

    def soft_logits(self, logits: Any) -> list[jax.Array]:
        return [logits[0]]

    def soft_weights(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the weights of the tokens whose logits are compared, and the divisor of their loss.

        These are the masked tokens, or all tokens in a batch of `at_every_token`.
        """
        weights = batch["masked_weights"]
        if "masked_positions" not in batch:
            weights = (batch["sequence_ids"] > 0).astype(jnp.float32)
        return weights, jnp.sum(weights)


def at_every_token(batch: Batch) -> Batch:
    """Returns a prepared batch in which the model predicts at every position, with the same loss."""
    names = ("masked_positions", "masked_labels", "masked_weights")
    positions, labels, weights = (batch[name] for name in names)
    nothing = jnp.zeros_like(batch["input_ids"])
    batch = {name: x for name, x in batch.items() if name != "masked_positions"}
    return batch | {
        "masked_labels": place_at(nothing, positions, labels, weights),
        "masked_weights": place_at(nothing.astype(weights.dtype), positions, weights, weights),
    }
