"""Attention maps of a text: the attention probabilities of every layer and head."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.convert import Model
from bert_jax.errors import UserError
from bert_jax.inference.engine import Engine, text_rows, tokenizer_of
from bert_jax.kernels.xla_attention import probabilities
from bert_jax.models import Encoder
from bert_jax.models.config import EncoderConfig
from bert_jax.models.row_inputs import INPUTS, TYPES, row_inputs
from bert_jax.parallel import placement
from bert_jax.plots.attention import AttentionMaps

# `attention_weights` supports only BERT's values of the options that change queries and keys.
_AS_IN_BERT = ("norm_placement", "attention_bias", "local_window", "layer_groups")
_BERT = EncoderConfig()


def attention_maps(model: Model, text: str, text_b: str | None = None) -> AttentionMaps:
    """Returns the attention maps of a model for a text or a pair of texts.

    Special tokens that are written out in a text, such as [MASK], are recognized.

    Raises:
        UserError: the model has no tokenizer, or its layers differ from BERT's; or the text has more
            tokens than the model has positions.
    """
    unlike = [name for name in _AS_IN_BERT if getattr(model.config, name) != getattr(_BERT, name)]
    unlike += ["position"] if model.config.position in ("rotary", "alibi") else []
    if unlike:
        value = getattr(model.config, unlike[0])
        raise UserError(f"{unlike[0]}={value}: attention is plotted for layers as BERT's only")
    tokenizer, limit = tokenizer_of(model), model.config.max_seq_length
    texts = [text if text_b is None else (text, text_b)]
    (row,) = text_rows(tokenizer, texts, limit, special=tuple(tokenizer.special_tokens.values()))
    if row.cut:
        raise UserError(f"the text has more tokens than the {limit} positions of the model; shorten it")

    @functools.partial(jax.jit, static_argnames="config")
    def compute(params, batch, config):
        encoder = placement.restack(params["encoder"])
        weights = attention_weights(encoder, batch, config=config, types=tokenizer.layout.types)
        return jnp.moveaxis(weights, 1, 0)

    config = computed_as(model.config)
    engine = Engine(model, config, ("encoder",), compute, max_seq_length=len(row.token_ids))
    ((_, (weights,)),) = engine.outputs([row], total=1)
    return AttentionMaps([tokenizer.tokens[i] for i in row.token_ids], row.first_length, weights)


def computed_as(config: EncoderConfig) -> EncoderConfig:
    """Returns a configuration that computes in float32 and without kernels, which return no probabilities."""
    return config.replace(dtype="float32", attention="xla", remat="none")


def attention_weights(
    params, batch: dict[str, jax.Array], *, config: EncoderConfig, types: tuple[int, int] = TYPES
) -> jax.Array:
    """Returns the attention probabilities of each layer: [layers, B, heads, L, L].

    They are recomputed from the hidden states that each layer reads.

    Args:
        params: the parameters of `Encoder`.
        batch: a batch, as for `bert_jax.inference.embedding.features`.
        config: the configuration, as `computed_as` returns it.
        types: the token types of the first and the second text.
    """
    inputs = row_inputs(batch["input_ids"], batch["lengths"], batch["first_lengths"], types)
    arrays = [inputs[name] for name in INPUTS]
    states: Any = Encoder(config).apply({"params": params}, *arrays, lambda x: x, method="every_layer")
    layers = params["layers"]["stack"]["layer"]

    def one(x, query, key):
        def project(dense):
            kernel, bias = (dense[name].astype(x.dtype) for name in ("kernel", "bias"))
            return jnp.einsum("blh,hnd->blnd", x, kernel) + bias

        return probabilities(project(query), project(key), inputs["sequence_ids"], config.causal)

    return jax.vmap(one)(states[:-1], layers["query"], layers["key"])
