"""Left-to-right (causal) language modeling (Devlin et al. 2019, section 5.1).

The encoder and the head are the same as in masked LM, so a model can switch between the two objectives.
`CausalThenMasked` does this in one run (Gisserot-Boukhlef et al. 2025, arXiv:2507.00994).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from bert_jax.models import PretrainingModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import MASKED_LM, MaskedLMHead
from bert_jax.models.row_inputs import INPUTS, TYPES, packed_inputs
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Objective, Pairs, Params, Rngs
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import place_at

# This entry of a batch, [B] with any values, marks a left-to-right step.
LEFT_TO_RIGHT = "left_to_right"


def next_tokens(input_ids: jax.Array, sequence_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the label of each position, int32 [B, L], and its weight, float32 [B, L].

    The label is the next token of the same sequence. The last token of a sequence and padding have weight 0.
    Both arguments are int32 [B, L]; `sequence_ids` are 1, 2, ... for the sequences and 0 for padding.
    """
    labels, following = (jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (input_ids, sequence_ids))
    return labels, ((sequence_ids == following) & (sequence_ids > 0)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class CausalLM(Objective):
    """Predicts the next token at every position. Next-sentence labels are not used.

    The configuration has causal attention, and the head is the same as in masked LM.
    """

    config: EncoderConfig
    token_types: tuple[int, int] = TYPES
    head: MaskedLMHead = MASKED_LM

    @property
    def model(self) -> PretrainingModel:
        return PretrainingModel(self.config, self.head, next_sentence=False)

    def init(self, key: jax.Array) -> Params:
        ids = jnp.zeros((1, 8), jnp.int32)
        return self.model.init(key, ids, ids, ids, ids, None, None)["params"]

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        """Unpacks the rows and adds the labels, without randomness.

        In rows that already have masks (see `data.google`), the original tokens are restored.
        """
        del key, train
        prepared = packed_inputs(batch, self.token_types)
        input_ids = batch["input_ids"]
        if "masked_positions" in batch:
            masks = (batch[f"masked_{name}"] for name in ("positions", "labels", "weights"))
            input_ids = place_at(input_ids, *masks)
        labels, weights = next_tokens(input_ids, prepared["sequence_ids"])
        return prepared | {
            "input_ids": input_ids,
            "next_labels": labels,
            "next_weights": weights,
            "tokens": batch["lengths"],
            "sequences": jnp.sum(batch["first_lengths"] > 0, axis=1),
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"clm": jnp.sum(batch["next_weights"])}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns the loss and the accuracy of next-token prediction.

        `params` may have more groups, such as a next-sentence head.
        """
        inputs = [batch[name] for name in INPUTS]
        logits = self.model.apply(
            {"params": params}, *inputs, None, None, deterministic=rngs is None, late_logits=True, rngs=rngs
        )[0]
        loss, accuracy = losses.of_tokens(logits, batch["next_labels"], batch["next_weights"])
        return {"clm": loss}, {"clm_accuracy": accuracy}


@dataclasses.dataclass(frozen=True, eq=False)
class CausalThenMasked(Objective):
    """Trains with causal LM in the first steps and with masked LM afterwards, on the same parameters.

    Batches with the entry `LEFT_TO_RIGHT` use causal LM, and others `masked`. Each kind of batch compiles its
    own program. A next-sentence head gets no gradient from causal LM. Evaluation uses masked LM.
    """

    masked: MaskedLM

    @property
    def config(self) -> EncoderConfig:
        return self.masked.config

    @functools.cached_property
    def causal(self) -> CausalLM:
        return CausalLM(self.config.replace(causal=True), self.masked.token_types, self.masked.head)

    def init(self, key: jax.Array) -> Params:
        return self.masked.init(key)

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        marks = {name: batch[name] for name in (LEFT_TO_RIGHT,) if name in batch}
        return self._of(batch).prepare(batch, key, train) | marks

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return self._of(batch).weights(batch)

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        return self._of(batch).loss(params, batch, rngs)

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        return self.masked.predict(params, batch)

    def _of(self, batch: Batch) -> Objective:
        return self.causal if LEFT_TO_RIGHT in batch else self.masked
