"""Attention maps of a text: the attention probabilities of every layer and head."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import Model
from bert_jax.errors import UserError
from bert_jax.kernels.attention import probabilities
from bert_jax.models import Encoder
from bert_jax.models.config import EncoderConfig
from bert_jax.models.row_inputs import INPUTS, TYPES, row_inputs

# The options that change how a layer computes its queries and keys, of which `attention_weights` only
# supports the values of BERT.
_AS_IN_BERT = ("norm_placement", "attention_bias", "local_window", "layer_groups")
_BERT = EncoderConfig()


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The attention maps of one text or pair of texts.

    Attributes:
        tokens: the L tokens, including [CLS] and [SEP].
        first_length: the number of tokens of the first text, including its [CLS] and [SEP].
        weights: float32 [layers, heads, L, L], where the first L is the query and the second one the key.
            Each row sums to 1.
    """

    tokens: list[str]
    first_length: int
    weights: np.ndarray


def attention_maps(model: Model, text: str, text_b: str | None = None) -> AttentionMaps:
    """Returns the attention maps of a model for a text or a pair of texts.

    Special tokens that are written out in a text, such as [MASK], are recognized.

    Args:
        model: the model, with a tokenizer.
        text: the first text.
        text_b: the second text; None for a single text.

    Raises:
        UserError: the model has no tokenizer, or its layers are not those of BERT; or the text has more
            tokens than the model has positions.
    """
    if model.config.position in ("rotary", "alibi"):
        raise UserError(
            f"attention is only drawn of models whose positions are in the embeddings, and this one has "
            f"position={model.config.position}"
        )
    if unlike := [name for name in _AS_IN_BERT if getattr(model.config, name) != getattr(_BERT, name)]:
        raise UserError(
            f"attention is only drawn of models with the layers of BERT, and this one has "
            f"{unlike[0]}={getattr(model.config, unlike[0])}"
        )
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise UserError(f"{model.source or 'the model'} has no vocabulary: put its vocab.txt beside it")
    texts = [text] if text_b is None else [text, text_b]
    ids = tokenizer.encode_batch(texts, allow_special=tuple(tokenizer.special_tokens.values()))
    row = tokenizer.layout.row(*ids)
    first_length = tokenizer.layout.first_length(len(ids[0]), pair=text_b is not None)
    most = model.config.max_position_embeddings
    if len(row) > most:
        raise UserError(f"the text has {len(row)} tokens and the model {most} positions; shorten it")
    batch = {
        "input_ids": row[None],
        "lengths": np.array([len(row)], np.int32),
        "first_lengths": np.array([first_length], np.int32),
    }
    config = computed_as(model.config)
    params = nest({name: x for name, x in model.params.items() if name.startswith("encoder/")})
    compute = functools.partial(attention_weights, config=config, types=tokenizer.layout.types)
    weights = jax.jit(compute)(params["encoder"], batch)
    return AttentionMaps([tokenizer.tokens[i] for i in row], first_length, np.asarray(weights[:, 0]))


def computed_as(config: EncoderConfig) -> EncoderConfig:
    """Returns a configuration that computes in float32 and without kernels, which return no probabilities."""
    return config.replace(dtype="float32", attention="xla", residual="xla", remat="none")


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
    states = Encoder(config).apply(
        {"params": params}, *(inputs[name] for name in INPUTS), lambda x: x, method="every_layer"
    )
    real = inputs["sequence_ids"]
    layers = params["layers"]["stack"]["layer"]

    def one(x, query, key):
        def project(dense):
            return jnp.einsum("blh,hnd->blnd", x, dense["kernel"].astype(x.dtype)) + dense["bias"].astype(
                x.dtype
            )

        return probabilities(project(query), project(key), real, config.causal)

    return jax.vmap(one)(states[:-1], layers["query"], layers["key"])
