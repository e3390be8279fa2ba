"""The encoder: embeddings and layers. Each run of equal layers, or of a repeated pattern, is one scan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import disentangled, dispatch, platform
from bert_jax.kernels.attention import attention, prepare
from bert_jax.kernels.dropout import dropout
from bert_jax.models import intermediates, positions
from bert_jax.models.config import EncoderConfig
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.layers import ACTIVATIONS, Module, gather_positions, identity
from bert_jax.models.parameters import LayerSlice, scans


class CrossAttention(Module):
    """Attention of every token to the vector of its sequence, with the residual: [B, L, H] -> [B, L, H].

    This is the modified cross-attention of TSDAE (Wang et al. 2021, section 3). With a single key, the weight
    is 1 for every query, so queries and keys need no parameters. All tokens of a sequence get its value after
    the output projection.
    """

    def setup(self):
        config, bias = self.config, self.config.attention_bias
        heads = (config.num_attention_heads, config.head_dim)
        self.value = self.dense(None, heads, ("embed",), ("heads", "kv"), use_bias=bias)
        self.output = self.dense(
            None, (config.hidden_size,), ("heads", "kv"), ("embed",), use_bias=bias, is_output_projection=True
        )
        # A norm before the attention would only change the queries.
        self.layer_norm = self.norm() if config.norm_placement == "post" else identity

    def __call__(self, x, vectors, sequence_ids, deterministic):
        """Returns the states [B, L, H] after this sublayer for x [B, L, H] and vectors [B, S, H].

        There is one vector for each sequence of a row. `sequence_ids`, int32 [B, L], are 1 to S, and 0 at
        padding.
        """

        def read(x):
            return gather_positions(self.output(self.value(vectors)), sequence_ids - 1)

        drop = self.dropout(self.config.hidden_dropout_prob, deterministic)
        return self.add_sublayer(x, self.layer_norm, read, identity, drop)


class RelativeTable(Module):
    """The normalized embeddings of distances for all layers: float32 [2 S, H] (He et al. 2021)."""

    def setup(self):
        config = self.config
        rows = 2 * (config.position_buckets or config.longest_distance)
        self.rows = self.table("table", ("position", "embed"), (rows, config.hidden_size))
        self.layer_norm = self.norm() if config.relative_norm else identity

    def __call__(self, position_ids):
        """Returns the table, which does not depend on the positions."""
        return self.layer_norm(self.rows)


class Convolution(Module):
    """norm(y + act(W * x)) of the input x and the output y of a layer, both [B, L, H] (DeBERTa v2)."""

    @nn.compact
    def __call__(self, x, y, sequence_ids, deterministic):
        """Returns [B, L, H]; a token reads neighbors with the same id in `sequence_ids` int32 [B, L]."""
        config = self.config
        width = config.conv_kernel_size
        padded, ids = (
            jnp.pad(array, [(0, 0), (width // 2, width // 2), *[(0, 0)] * (array.ndim - 2)])
            for array in (x, sequence_ids)
        )
        length = x.shape[1]
        neighbors = [
            jnp.where((ids[:, i : i + length] == sequence_ids)[..., None], padded[:, i : i + length], 0)
            for i in range(width)
        ]
        project = self.dense("dense", (config.hidden_size,), (None, "embed"), ("embed_out",))
        drop = self.dropout(config.hidden_dropout_prob, deterministic)
        z = ACTIVATIONS[config.conv_act](drop(project(jnp.stack(neighbors, axis=2))))
        return self.norm("layer_norm")(y + z)


class EncoderLayer(Module):
    """One Transformer layer (Vaswani et al. 2017): [B, L, H] -> [B, L, H]."""

    spec: LayerSlice = LayerSlice()

    def setup(self):
        config, hidden = self.config, (self.config.hidden_size,)
        heads = (config.num_attention_heads, config.head_dim)
        bias = config.attention_bias
        self.query, self.key, self.value = (
            self.dense(None, heads, ("embed",), ("heads", "kv"), use_bias=bias) for _ in range(3)
        )
        self.attention_output = self.dense(
            None, hidden, ("heads", "kv"), ("embed",), use_bias=bias, is_output_projection=True
        )
        self.attention_norm = self.norm() if self.spec.attention_norm else identity
        # With `glu`, the first half of the output is activated and multiplied by the second.
        self.is_gated = config.feed_forward == "glu"
        self.intermediate = self.dense(
            None,
            (2, config.intermediate_size) if self.is_gated else (config.intermediate_size,),
            ("embed",),
            ("halves", "mlp") if self.is_gated else ("mlp",),
            use_bias=config.inner_bias,
            split_gate=self.is_gated,
        )
        self.output = self.dense(
            None, hidden, ("mlp",), ("embed",), use_bias=config.output_bias, is_output_projection=True
        )
        self.output_norm = self.norm()
        self.cross_attention = CrossAttention(config)  # without parameters unless it is called
        self.attention_adapter = self.adapter(config.attention_adapter)
        self.output_adapter = self.adapter(config.output_adapter)
        self.slopes = None
        if config.position == "alibi":
            self.slopes = positions.alibi_slopes(config.num_attention_heads)
        self.attend = self._attend
        if config.position == "disentangled":
            self.attend = self._attend_disentangled
            if not config.share_attention_key:
                self.position_key, self.position_query = (
                    self.dense(None, heads, ("embed",), ("heads", "kv"), use_bias=bias) for _ in range(2)
                )
        if self.spec.convolution:
            self.convolution = Convolution(config)

    def __call__(self, x, sequence_ids, shared, deterministic, vectors=None, context=None):
        """Returns the layer's output [B, L, H] for states x [B, L, H] and sequence ids int32 [B, L].

        `shared` are position inputs of all layers: the result of `positions.rotary_angles` or of
        `RelativeTable`, or None. With `vectors` [B, S, H] the layer is a decoder layer, with a
        `CrossAttention`. `context` are the states [B, L, H] of keys and values (`position=disentangled`
        only); None for x.
        """
        config, start = self.config, x

        def attend(x):
            return self.attend(x, sequence_ids, shared, deterministic, x if context is None else context)

        def feed(x):
            activate = ACTIVATIONS[config.hidden_act]
            if not self.is_gated:
                return activate(self.intermediate(x))
            gate, value = self.intermediate(x)
            return activate(gate) * value

        drop = self.dropout(config.hidden_dropout_prob, deterministic)
        x = self.add_sublayer(
            x, self.attention_norm, attend, self.attention_output, drop, self.attention_adapter
        )
        if vectors is not None:
            x = self.cross_attention(x, vectors, sequence_ids, deterministic)
        drop = self.dropout(config.inner_dropout_rate, deterministic)
        x = self.add_sublayer(x, self.output_norm, feed, self.output, drop, self.output_adapter)
        if self.spec.convolution:
            x = self.convolution(start, x, sequence_ids, deterministic)
        intermediates.sow_if_requested(self, intermediates.LAYERS, x)
        return x

    def _attend_disentangled(self, x, sequence_ids, table, deterministic, context):
        """Returns the attention output [B, L, N, D], as in `_attend`."""
        config, length = self.config, x.shape[1]
        drop = self.dropout(config.attention_probs_dropout_prob, deterministic)
        query, key, value = self.query(x), self.key(context), self.value(context)
        names = (intermediates.QUERIES, intermediates.KEYS, intermediates.VALUES)
        for name, projected in zip(names, (query, key, value), strict=True):
            intermediates.sow_if_requested(self, name, projected)
        shared = config.share_attention_key
        of_table = self.dropout(config.hidden_dropout_prob, deterministic)
        table = dropout(table, of_table.key, of_table.rate, in_batch=False)
        table, rows = disentangled.rows_of(table, length, config.position_buckets, config.longest_distance)
        relative_keys = relative_queries = None
        if "c2p" in config.position_attention:
            relative_keys = disentangled.expand((self.key if shared else self.position_key)(table), rows)
        if "p2c" in config.position_attention:
            project = self.query if shared else self.position_query
            relative_queries = disentangled.expand(project(table), rows[::-1])
        return disentangled.attend(
            query,
            key,
            value,
            relative_keys,
            relative_queries,
            sequence_ids,
            implementation=self._implementation(length, drop.rate),
            dropout_rate=drop.rate,
            dropout_key=drop.key,
        )

    def _attend(self, x, sequence_ids, angles, deterministic, context):
        """Returns the attention output [B, L, N, D] of x [B, L, H], before the output projection."""
        config = self.config
        drop = self.dropout(config.attention_probs_dropout_prob, deterministic)
        implementation = self._implementation(x.shape[1], drop.rate)
        separate_bias = implementation == "pallas" and config.attention_bias  # the kernel adds biases itself
        projected = [dense(x, separate_bias) for dense in (self.query, self.key, self.value)]
        biases = None
        if separate_bias:
            projected, biases = zip(*projected, strict=True)
        of_layer = None if angles is None else angles[self.spec.theta]
        names = (intermediates.QUERIES, intermediates.KEYS, intermediates.VALUES)
        if any(intermediates.is_requested(self, name) for name in names):
            for name, prepared in zip(names, prepare(*projected, biases, of_layer), strict=True):
                intermediates.sow_if_requested(self, name, prepared)
        return attention(
            *projected,
            sequence_ids,
            biases=biases,
            angles=of_layer,
            implementation=implementation,
            causal=config.causal,
            window=self.spec.window,
            slopes=self.slopes,
            dropout_rate=drop.rate,
            dropout_key=drop.key,
        )

    def _implementation(self, length, dropout_rate):
        """Returns the name of the implementation of attention for the platform and mesh being traced for."""
        config = self.config
        if self.is_initializing():  # with a few tokens, which the kernels do not support
            return "xla"
        case = dispatch.AttentionCase(
            str(self.dtype),
            length,
            config.num_attention_heads // platform.shards("heads"),
            config.head_dim,
            dropout_rate,
            self.spec.window,
            config.position,
        )
        return dispatch.choose_attention(config.attention, case, platform.target()).implementation


_LONGEST_BLOCK = 4  # layers, for training in float32 on a CPU

_REMAT = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


# The layer values that `intermediates` names are stacked along a first axis, like parameters.
_INTERMEDIATES: Any = {
    name: 0
    for name in (intermediates.LAYERS, intermediates.QUERIES, intermediates.KEYS, intermediates.VALUES)
}


class _ScannedLayers(nn.Module):
    """One repeat of the layers of a scan, which is its body."""

    config: EncoderConfig
    slices: tuple[LayerSlice, ...]
    deterministic: bool
    collect: Callable[[jax.Array], Any] | None = None

    @nn.compact
    def __call__(self, x, sequence_ids, shared, vectors, context):
        results = []
        for each in self.slices:
            x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
            layer = EncoderLayer(self.config, each, name=each.name)
            x = layer(x, sequence_ids, shared, self.deterministic, vectors, context)
            results.append(self.collect(x) if self.collect else None)
        return x, results


class Layers(Module):
    """All layers. Parameters of a scan that are not shared are stacked along an axis "layers"."""

    @nn.compact
    def __call__(self, x, sequence_ids, shared, deterministic, collect=None, vectors=None, positions=None):
        """Returns the output [B, L, H] of the last layer, and the stacked results of `collect` or None.

        `collect` is applied to the output of each layer. With `positions` [B, L, H], the last layer is the
        mask decoder. It is applied twice. The queries start from `positions` plus its input, and keys and
        values are computed from its input.
        """
        config = self.config
        results = []
        runs = scans(config)
        for slices in runs:
            repeats = len(slices[0].numbers)
            body = _ScannedLayers
            unroll = config.scan_unroll or self._block(repeats, len(slices), deterministic)
            if config.remat != "none":
                # On a CPU, XLA frees recomputed activations only between the iterations of a loop. Outside of
                # a loop, it would merge the recomputation with the first computation and keep the result. The
                # remaining layers after blocks of `unroll` are also outside.
                unroll = 1 if platform.target_platform() == "cpu" else unroll
                is_loop = unroll < repeats and not repeats % unroll
                body = nn.remat(body, prevent_cse=not is_loop, policy=_REMAT[config.remat])
            parameters = dict(
                variable_axes={"params": 0, **_INTERMEDIATES},
                split_rngs={"params": True, "dropout": True},
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            if slices[0].shared:
                parameters = dict(
                    variable_axes=_INTERMEDIATES,
                    variable_broadcast="params",
                    split_rngs={"params": False, "dropout": True},
                )
            scan = nn.scan(body, in_axes=nn.broadcast, length=repeats, unroll=unroll, **parameters)
            layers = scan(config, slices, deterministic, collect, name=slices[0].scan)
            context = None
            if positions is not None and slices is runs[-1]:
                context, x = x, layers(positions + x, sequence_ids, shared, vectors, x)[0]
            x, each = layers(x, sequence_ids, shared, vectors, context)
            if collect:
                results.append(_in_order(each))
        return x, jnp.concatenate(results) if len(results) > 1 else (results or [None])[0]

    def _block(self, repeats: int, members: int, deterministic: bool) -> int:
        """Returns the number of a scan's repeats that are compiled as one block if `scan_unroll` is 0."""
        if deterministic or self.dtype != jnp.float32 or platform.target_platform() != "cpu":
            return repeats
        # In float32, XLA:CPU does not store the residual sums and norms between layers. It recomputes them
        # for each use, from the sums and norms of all previous layers in the block (benchmarks/NOTES.md).
        return repeats if repeats * members <= _LONGEST_BLOCK else 1


def _in_order(each: list[jax.Array]) -> jax.Array:
    """Stacks one [repeats, ...] array per layer of a repeat to [repeats * members, ...], in layer order."""
    if len(each) == 1:
        return each[0]
    stacked = jnp.stack(each, axis=1)
    return stacked.reshape(-1, *stacked.shape[2:])


class Pooler(Module):
    """Returns tanh(W h + b) of the hidden state at [CLS], as in BERT: [..., H] -> [..., H].

    Heads of other model families use another activation, no bias, or a norm after the activation.
    """

    activation: str = "tanh"
    use_bias: bool = True
    has_norm: bool = False

    @nn.compact
    def __call__(self, x):
        """Returns [..., H] for states [..., H]."""
        dense = self.dense(
            "dense", (self.config.hidden_size,), ("embed",), ("embed_out",), use_bias=self.use_bias
        )
        norm = self.norm("norm") if self.has_norm else identity
        return norm(ACTIVATIONS[self.activation](dense(x)))


class Encoder(Module):
    """Embeddings and layers, which return hidden states [B, L, H] in the dtype of `config`.

    Inputs are int32 [B, L]: `input_ids`; `token_type_ids` (0 for sentence A, 1 for B); `position_ids`, which
    restart at each sequence of a packed row; `sequence_ids`, 0 at padding and 1, 2, ... for the sequences
    of a row. `word` holds the word embeddings as returned by `tied_table.for_each_shard`, for models that use
    them twice. With `vectors` [B, S, H], one for each sequence, the encoder is a decoder whose layers have a
    `CrossAttention` between their sublayers.
    """

    def setup(self):
        self.embeddings = Embeddings(self.config)
        self.layers = Layers(self.config)
        config = self.config
        self.final_norm = self.norm() if config.final_norm else identity
        self.shared = lambda position_ids: None
        if config.position == "rotary":
            self.shared = functools.partial(positions.rotary_angles, config)
        elif config.position == "disentangled":
            self.relative = RelativeTable(config)
            self.shared = self.relative
        self.mask_positions = None
        if config.mask_decoder:
            shape = (config.max_position_embeddings, config.hidden_size)
            self.mask_positions = self.table("mask_positions", ("position", "embed"), shape)

    def __call__(
        self,
        input_ids,
        token_type_ids,
        position_ids,
        sequence_ids,
        deterministic=True,
        word=None,
        vectors=None,
        for_masks=False,
    ):
        """Returns the hidden states [B, L, H] of the last layer.

        With `for_masks`, they are the states for a masked LM head: the mask decoder's states, if the model
        has one.
        """
        x = self.embeddings(input_ids, token_type_ids, position_ids, deterministic, word)
        intermediates.sow_if_requested(self, intermediates.EMBEDDINGS, x)
        absolute = None
        if for_masks and self.mask_positions is not None:
            absolute = jnp.take(self.mask_positions, position_ids, axis=0, mode="clip").astype(x.dtype)
        shared = self.shared(position_ids)
        x = self.layers(x, sequence_ids, shared, deterministic, vectors=vectors, positions=absolute)[0]
        x = self.final_norm(x)
        intermediates.sow_if_requested(self, intermediates.LAST, x)
        return x

    def every_layer(self, input_ids, token_type_ids, position_ids, sequence_ids, collect):
        """Returns `collect` of the embeddings and of each layer's output, stacked to [layers + 1, ...].

        `collect` is a function of hidden states [B, L, H] that returns an array. If it reduces them, for
        example to a mean over tokens, the full states are never kept for more than one layer. The last
        layer's output is taken after the final norm, if the model has one.
        """
        x = self.embeddings(input_ids, token_type_ids, position_ids, True)
        last, layers = self.layers(x, sequence_ids, self.shared(position_ids), True, collect)
        if self.config.final_norm:
            layers = jnp.concatenate([layers[:-1], collect(self.final_norm(last))[None]])
        return jnp.concatenate([collect(x)[None], layers])
