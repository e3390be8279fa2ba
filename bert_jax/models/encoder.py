"""The BERT encoder: embeddings, a stack of post-LN Transformer layers run as one scan, and the pooler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, pallas_residual, platform, tied_table
from bert_jax.kernels.attention import attention, choose_here
from bert_jax.kernels.dropout import dropout
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layers import Dense, LayerNorm, activation, kernel_init


class _Module(nn.Module):
    config: EncoderConfig

    @property
    def dtype(self):
        return jnp.dtype(dispatch.resolve_dtype(self.config.dtype, platform.target()))

    def dense(self, name, features, in_axes, out_axes):
        return Dense(features, in_axes, out_axes, self.config.initializer_range, self.dtype, name=name)

    def norm(self, name):
        return LayerNorm(self.config.layer_norm_eps, self.dtype, name=name)

    def drop(self, x, deterministic):
        rate = self.config.hidden_dropout_prob
        return x if deterministic or rate == 0 else dropout(x, self.make_rng("dropout"), rate)


class Embeddings(_Module):
    """Sum of token, segment and learned position embeddings, then LayerNorm and dropout (paper, figure 2)."""

    def setup(self):
        config = self.config
        init = kernel_init(config.initializer_range)

        def table(name, axis, rows):
            return self.param(
                name,
                nn.with_logical_partitioning(init, (axis, "embed")),
                (rows, config.hidden_size),
                jnp.float32,
            )

        self.word = table("word_embeddings", "vocab", config.vocab_size)
        self.token_type = table("token_type_embeddings", "token_type", config.type_vocab_size)
        self.position = table("position_embeddings", "position", config.max_position_embeddings)
        self.layer_norm = LayerNorm(config.layer_norm_eps, self.dtype)

    def __call__(self, input_ids, token_type_ids, position_ids, deterministic, word=None):
        """`word`: `self.word` as `tied_table.for_each_shard` gives it, where the model uses it twice."""
        x = tied_table.look_up(self.word if word is None else word, input_ids)
        # Few rows: a product with one-hot vectors has a cheap gradient, where a scatter into two rows
        # serialises.
        x += jax.nn.one_hot(token_type_ids, self.config.type_vocab_size, dtype=x.dtype) @ self.token_type
        x += jnp.take(self.position, position_ids, axis=0, mode="clip")
        return self.drop(self.layer_norm(x), deterministic)


class EncoderLayer(_Module):
    """One post-LN Transformer layer (Vaswani et al. 2017). [B, L, H] -> [B, L, H]."""

    @nn.compact
    def __call__(self, x, sequence_ids, deterministic):
        config = self.config
        heads = (config.num_attention_heads, config.head_dim)
        rate = 0.0 if deterministic else config.attention_probs_dropout_prob
        # Parameters are initialised on a few tokens, for which kernels are not made.
        implementation = "xla"
        if not self.is_initializing():
            choice = choose_here(config.attention, str(self.dtype), rate, x.shape[1], *heads)
            implementation = choice.implementation
        bias_apart = implementation == "pallas"
        projected = [
            self.dense(name, heads, ("embed",), ("heads", "kv"))(x, bias_apart)
            for name in ("query", "key", "value")
        ]
        biases = None
        if bias_apart:
            projected, biases = zip(*projected, strict=True)
        context = attention(
            *projected,
            sequence_ids,
            biases=biases,
            implementation=implementation,
            causal=config.causal,
            dropout_rate=rate,
            dropout_key=self.make_rng("dropout") if rate else None,
        )
        project = self.dense("attention_output", x.shape[-1:], ("heads", "kv"), ("embed",))
        x = self._end_half(x, context, project, self.norm("attention_norm"), deterministic)

        inner = self.dense("intermediate", (config.intermediate_size,), ("embed",), ("mlp",))(x)
        inner = activation(config.hidden_act)(inner)
        project = self.dense("output", x.shape[-1:], ("mlp",), ("embed",))
        return self._end_half(x, inner, project, self.norm("output_norm"), deterministic)

    def _end_half(self, x, inner, project, norm, deterministic):
        """LayerNorm(x + dropout(inner W + b))."""
        config = self.config
        chosen = "xla"
        if not self.is_initializing():
            chosen = pallas_residual.choose_here(config.residual, *x.shape[1:]).implementation
        if chosen == "xla":
            return norm(x + self.drop(project(inner), deterministic))
        out, bias = project(inner, bias_apart=True)
        rate = 0.0 if deterministic else config.hidden_dropout_prob
        key = self.make_rng("dropout") if rate else None

        def fused(x, scale, offset, epsilon):
            return pallas_residual.residual_norm(
                x, out, bias, scale, offset, epsilon=epsilon, rate=rate, key=key
            )

        return norm(x, fused)


_REMAT = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class _ScannedLayer(nn.Module):
    config: EncoderConfig
    deterministic: bool
    collect: Callable[[jax.Array], Any] | None = None

    @nn.compact
    def __call__(self, x, sequence_ids):
        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        x = EncoderLayer(self.config, name="layer")(x, sequence_ids, self.deterministic)
        return x, self.collect(x) if self.collect else None


class Layers(_Module):
    """`num_hidden_layers` layers whose parameters are stacked along a leading axis named "layers"."""

    @nn.compact
    def __call__(self, x, sequence_ids, deterministic, collect=None):
        """([B, L, H] of the last layer, what `collect` made of every layer's output, stacked)."""
        config = self.config
        layer = _ScannedLayer
        if config.remat != "none":
            layer = nn.remat(layer, prevent_cse=False, policy=_REMAT[config.remat])
        stack = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=config.num_hidden_layers,
            unroll=config.scan_unroll or config.num_hidden_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return stack(config, deterministic, collect, name="stack")(x, sequence_ids)


class Pooler(_Module):
    """tanh(W h + b) of the hidden state at [CLS]. [..., H] -> [..., H]."""

    @nn.compact
    def __call__(self, x):
        return jnp.tanh(self.dense("dense", (self.config.hidden_size,), ("embed",), ("embed_out",))(x))


class Encoder(_Module):
    """Embeddings and layers.

    Inputs are int32 [B, L]: `input_ids`; `token_type_ids` (0 for sentence A, 1 for B); `position_ids`,
    restarting at each sequence of a packed row; `sequence_ids`, 0 at padding and 1, 2, ... for the sequences
    of a row. `word`: the word embeddings as `tied_table.for_each_shard` gives them, where the model uses them
    twice. Returns hidden states [B, L, H] in the dtype of `config`.
    """

    def setup(self):
        self.embeddings = Embeddings(self.config)
        self.layers = Layers(self.config)

    def __call__(self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, word=None):
        x = self.embeddings(input_ids, token_type_ids, position_ids, deterministic, word)
        return self.layers(x, sequence_ids, deterministic)[0]

    def every_layer(self, input_ids, token_type_ids, position_ids, sequence_ids, collect):
        """`collect` [B, L, H] -> array, of the embeddings and of each layer's output: [layers + 1, ...].

        What it leaves out, such as the tokens behind a mean, is never kept for more than one layer.
        """
        x = self.embeddings(input_ids, token_type_ids, position_ids, True)
        layers = self.layers(x, sequence_ids, True, collect)[1]
        return jnp.concatenate([collect(x)[None], layers])
