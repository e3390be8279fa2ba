"""Denoising auto-encoder for texts (TSDAE): a text is restored from the vector of its damaged version.

Wang, Reimers and Gurevych 2021, "TSDAE: Using Transformer-based Sequential Denoising Auto-Encoder for
Unsupervised Sentence Embedding Learning". The training data are single texts.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.models import PretrainingModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.pooling import members_of
from bert_jax.models.heads.structures import MASKED_LM, SENTENCE, ClassificationHead, MaskedLMHead
from bert_jax.models.row_inputs import INPUTS, TYPES
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Pairs, Params, Rngs
from bert_jax.objectives.causal_lm import next_tokens
from bert_jax.objectives.embedding.sentence import TextVectors

DENOISING = "denoising"  # the name of the loss
DECODER = "decoder"  # the group of parameters that only the decoder has

_DAMAGED = "damaged_"  # prefix of the names of the encoder's inputs in a prepared batch


@dataclasses.dataclass(frozen=True, eq=False)
class DenoisingAutoEncoder(TextVectors):
    """Restores each text, token by token, from the vector of the same text with some tokens deleted.

    The decoder predicts every token of the original text from the tokens before it and from the vector of the
    damaged text. It is the encoder with causal attention, the same parameters, a `CrossAttention` in each
    layer and the masked LM head (section 3, with tied parameters). The parameters are {"encoder", "mlm",
    "decoder"}, so the encoder is stored like any other; "decoder" contains only the cross-attention. Batches
    have one text per row, or are packed.

    A token is deleted with the probability `deletion`, except the special tokens of a row's layout,
    `special_ids`. The pooling of `classifier` makes the vectors.
    """

    config: EncoderConfig
    special_ids: tuple[int, ...]
    deletion: float = 0.6
    token_types: tuple[int, int] = TYPES
    classifier: ClassificationHead = SENTENCE
    head: MaskedLMHead = MASKED_LM
    may_differ = "(pooler|mlm)/.*"

    @property
    def decoder(self) -> PretrainingModel:
        """Returns the decoder, which also needs the encoder's parameters."""
        return PretrainingModel(self.config.replace(causal=True), self.head, next_sentence=False)

    @property
    def new_groups(self) -> tuple[str, ...]:
        """Returns the group of the cross-attention. The head is read from a checkpoint that has one."""
        return (DECODER,)

    def init(self, key: jax.Array) -> Params:
        params = super().init(key)
        ids, vectors = jnp.zeros((1, 8), jnp.int32), jnp.zeros((1, 1, self.config.hidden_size))
        decoder = self.decoder.init(
            jax.random.fold_in(key, 1), ids, ids, ids, ids, None, None, vectors=vectors
        )["params"]
        tied = flatten_dict(params["encoder"])
        own = {name: x for name, x in flatten_dict(decoder.pop("encoder")).items() if name not in tied}
        return params | decoder | {DECODER: unflatten_dict(own)}

    def prepare(self, batch: Batch, key: jax.Array | None, train: bool) -> Batch:
        """Returns the batch with the decoder's inputs, the encoder's inputs and the labels.

        The deleted tokens of a row depend on `key` and the row's position in the global batch. Without a key,
        as in `predict`, no token is deleted.
        """
        prepared = super().prepare(batch, key, train)
        if key is None:
            return prepared
        kept = kept_tokens(key, prepared, self.special_ids, self.deletion)
        damaged = super().prepare(without_deleted(batch, kept), key, train)
        labels, weights = next_tokens(prepared["input_ids"], prepared["sequence_ids"])
        return prepared | {
            **{f"{_DAMAGED}{name}": damaged[name] for name in (*INPUTS, "cls_positions") if name in damaged},
            "next_labels": labels,
            "next_weights": weights,
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"task": jnp.sum(batch["next_weights"])}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        damaged = {name.removeprefix(_DAMAGED): x for name, x in batch.items() if name.startswith(_DAMAGED)}
        vectors = self.row_outputs(params, damaged, rngs)
        # Layers of both networks have the same names, so one key would give them the same dropout masks.
        rngs = None if rngs is None else {name: jax.random.fold_in(key, 1) for name, key in rngs.items()}
        logits, _ = self.decoder.apply(
            {"params": decoder_params(params)},
            *(batch[name] for name in INPUTS),
            None,
            None,
            deterministic=rngs is None,
            late_logits=True,
            vectors=vectors,
            rngs=rngs,
        )
        loss, accuracy = losses.of_tokens(logits, batch["next_labels"], batch["next_weights"])
        return {"task": loss}, {"accuracy": accuracy}


def decoder_params(params: Params) -> Params:
    """Returns the decoder's parameters, {"encoder", "mlm"}, from the parameters of both networks."""
    encoder = flatten_dict(params["encoder"]) | flatten_dict(params[DECODER])
    return {name: x for name, x in params.items() if name != DECODER} | {"encoder": unflatten_dict(encoder)}


def kept_tokens(key: jax.Array, prepared: Batch, special_ids: tuple[int, ...], deletion: float) -> jax.Array:
    """Returns bool [B, L], true for the real tokens that are not deleted.

    Each token is deleted with the probability `deletion`, in [0, 1). Special tokens are always kept, and so
    is the token with the largest random number of its text, so that no text becomes empty. `prepared` has
    `sequence_ids` and `input_ids`, int32 [B, L], and `cls_positions` for packed rows.
    """
    input_ids, sequence_ids = prepared["input_ids"], prepared["sequence_ids"]
    rows, length = input_ids.shape

    def draw(row):
        return jax.random.uniform(jax.random.fold_in(key, row), (length,), jnp.float32)

    draws = jax.vmap(draw)(jnp.arange(rows, dtype=jnp.int32))
    real = sequence_ids > 0
    special = jnp.isin(input_ids, jnp.array(special_ids))
    candidates = members_of(sequence_ids, prepared.get("cls_positions")) & ~special[:, None]  # [B, S, L]
    largest = jnp.max(jnp.where(candidates, draws[:, None], -1.0), axis=-1, keepdims=True)
    is_largest = jnp.any(candidates & (draws[:, None] == largest), axis=1)
    return real & (special | is_largest | (draws >= deletion))


def without_deleted(batch: Batch, kept: jax.Array) -> Batch:
    """Returns a batch whose rows contain only the kept tokens, in their original order.

    It has `input_ids` [B, L] and `lengths` [B]; packed rows also have `starts` and `first_lengths` [B, S]. In
    `kept`, bool [B, L], the first token of each sequence must be kept.
    """
    order = jnp.argsort(~kept, axis=-1, stable=True)
    found = batch | {
        "input_ids": jnp.take_along_axis(batch["input_ids"], order, axis=-1),
        "lengths": jnp.sum(kept, axis=-1, dtype=jnp.int32),
    }
    if "starts" not in batch:
        return found
    length, starts = kept.shape[1], batch["starts"]
    before = jnp.pad(jnp.cumsum(kept, axis=-1, dtype=jnp.int32), ((0, 0), (1, 0)))  # kept tokens before each

    def moved(places):
        return jnp.take_along_axis(before, jnp.minimum(places, length), axis=-1)

    return found | {
        "starts": jnp.where(starts < length, moved(starts), starts),
        "first_lengths": moved(starts + batch["first_lengths"]) - moved(starts),
    }
