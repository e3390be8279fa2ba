"""Attention maps of a text: the attention probabilities of every layer and head."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from bert_jax.convert import Model
from bert_jax.errors import UserError
from bert_jax.inference.engine import Engine, text_rows
from bert_jax.kernels.xla_attention import probabilities
from bert_jax.models import Encoder, intermediates, positions
from bert_jax.models.config import EncoderConfig
from bert_jax.models.intermediates import KEYS, QUERIES
from bert_jax.models.parameters import layer_slices
from bert_jax.models.row_inputs import INPUTS, TYPES, row_inputs
from bert_jax.parallel import placement
from bert_jax.plots.attention import AttentionMaps


def attention_maps(model: Model, text: str, text_b: str | None = None) -> AttentionMaps:
    """Returns the attention maps of a model for a text or a pair of texts; UserError if it is too long.

    Special tokens in a text, such as [MASK], are recognized.
    """
    tokenizer, limit = model.require_tokenizer(), model.config.max_seq_length
    texts = [text if text_b is None else (text, text_b)]
    (row,) = text_rows(tokenizer, texts, limit, special=tuple(tokenizer.special_tokens.values()))
    if row.cut:
        raise UserError(f"the text has more tokens than the {limit} positions of the model")
    if model.config.position == "disentangled":
        raise UserError(f"{model.source}: attention maps do not support position=disentangled")
    compute = functools.partial(attention_weights, types=tokenizer.layout.types)
    config = model.config.replace(dtype="float32", attention="xla", remat="none")
    engine = Engine(model, config, ("encoder",), compute, max_seq_length=len(row.token_ids))
    ((_, (weights,)),) = engine.outputs([row], total=1)
    return AttentionMaps([tokenizer.tokens[i] for i in row.token_ids], row.first_length, weights)


@functools.partial(jax.jit, static_argnames=("config", "types"))
def attention_weights(
    params, batch: dict[str, jax.Array], *, config: EncoderConfig, types: tuple[int, int] = TYPES
) -> jax.Array:
    """Returns attention probabilities, [B, layers, heads, L, L]; arguments are as in `embedding.features`."""
    encoder = placement.restack(params["encoder"])
    inputs = row_inputs(batch["input_ids"], batch["lengths"], batch["first_lengths"], types)
    arrays = (inputs[name] for name in INPUTS)
    _, states = intermediates.apply(Encoder(config), config, encoder, *arrays, collect=(QUERIES, KEYS))
    is_alibi = config.position == "alibi"
    slopes = positions.alibi_slopes(config.num_attention_heads) if is_alibi else None
    windows = {number: each.window for each in layer_slices(config) for number in each.numbers}
    weights = [
        probabilities(*both, inputs["sequence_ids"], config.causal, windows[layer], slopes)
        for layer, both in enumerate(zip(states[QUERIES], states[KEYS], strict=True))
    ]
    return jnp.stack(weights, axis=1)
