"""The encoder: embeddings and layers. Each run of equal layers, or of a repeated pattern, is one scan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import platform
from bert_jax.kernels.attention import attention, choose_here, prepare, prepares_inputs
from bert_jax.models import collected, positions, runs
from bert_jax.models.config import EncoderConfig
from bert_jax.models.cross_attention import CrossAttention
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.layers import ACTIVATIONS, RESIDUALS, Module, identity
from bert_jax.models.row_inputs import check_inputs
from bert_jax.models.runs import LayerSpec, Run


class _FeedForward(NamedTuple):
    """A feed-forward block without its last product: the output of its dense layer, and what follows it.

    Attributes:
        axes: logical axes of the output.
        sizes: returns the sizes of the output for the width of the block.
        activate: returns the activations for the output, or for its two halves, and the activation function.
    """

    axes: tuple[str, ...]
    sizes: Callable[[int], tuple[int, ...]]
    activate: Callable[[Any, Callable[[jax.Array], jax.Array]], jax.Array]

    @property
    def gated(self) -> bool:
        """Returns whether the output has two halves."""
        return len(self.axes) > 1


# By `feed_forward`.
_FEED_FORWARDS = {
    "mlp": _FeedForward(("mlp",), lambda width: (width,), lambda x, function: function(x)),
    # The first half is activated and multiplied by the second.
    "glu": _FeedForward(
        ("halves", "mlp"), lambda width: (2, width), lambda x, function: function(x[0]) * x[1]
    ),
}


class EncoderLayer(Module):
    """One Transformer layer (Vaswani et al. 2017): [B, L, H] -> [B, L, H]."""

    spec: LayerSpec = LayerSpec()

    def setup(self):
        """Creates the parts."""
        config, hidden = self.config, (self.config.hidden_size,)
        heads = (config.num_attention_heads, config.head_dim)
        bias = config.attention_bias
        self.query, self.key, self.value = (
            self.dense(None, heads, ("embed",), ("heads", "kv"), use_bias=bias) for _ in range(3)
        )
        self.attention_output = self.dense(
            None, hidden, ("heads", "kv"), ("embed",), use_bias=bias, ends_half=True
        )
        self.attention_norm = self.norm() if self.spec.attention_norm else identity
        block = _FEED_FORWARDS[config.feed_forward]
        self.intermediate = self.dense(
            None,
            block.sizes(config.intermediate_size),
            ("embed",),
            block.axes,
            use_bias=config.inner_bias,
            apart=block.gated,
        )
        self.activate = functools.partial(block.activate, function=ACTIVATIONS[config.hidden_act])
        self.output = self.dense(
            None, hidden, ("mlp",), ("embed",), use_bias=config.output_bias, ends_half=True
        )
        self.output_norm = self.norm()
        self.cross_attention = CrossAttention(config)  # without parameters unless it is called
        self.attention_adapter = self.adapter(config.attention_adapter)
        self.output_adapter = self.adapter(config.output_adapter)
        self.residual = functools.partial(RESIDUALS[config.norm_placement], config.norm)
        adapted = config.attention_adapter or config.output_adapter
        self.residual_kernel = None if adapted else config.execution.residual
        self.scheme = positions.scheme(config)

    def __call__(self, x, sequence_ids, angles, deterministic, vectors=None):
        """Returns the layer's output [B, L, H]; `angles` come from `positions.PositionScheme.angles`.

        With `vectors` [B, S, H], the layer is that of a decoder: it attends to the vector of each sequence,
        too.
        """
        config = self.config

        def attend(x):
            return self._attend(x, sequence_ids, angles, deterministic)

        def feed(x):
            return self.activate(self.intermediate(x))

        requested = None if self.is_initializing() else self.residual_kernel
        drop = self.dropout(config.hidden_dropout_prob, deterministic)
        x = self.residual(
            x, self.attention_norm, attend, self.attention_output, drop, requested, self.attention_adapter
        )
        if vectors is not None:
            x = self.cross_attention(x, vectors, sequence_ids, deterministic)
        drop = self.dropout(config.inner_dropout_rate, deterministic)
        x = self.residual(x, self.output_norm, feed, self.output, drop, requested, self.output_adapter)
        collected.give(self, collected.LAYERS, x)
        return x

    def _attend(self, x, sequence_ids, angles, deterministic):
        """Returns the attention output [B, L, N, D] of x [B, L, H], before the output projection."""
        config = self.config
        drop = self.dropout(config.attention_probs_dropout_prob, deterministic)
        slopes = self.scheme.slopes()
        case = dict(window=self.spec.window, bias=slopes is not None)
        # Parameters are initialized with a few tokens, for which there are no kernels.
        implementation = "xla"
        if not self.is_initializing():
            heads = (config.num_attention_heads, config.head_dim)
            requested = config.execution.attention
            choice = choose_here(requested, str(self.dtype), drop.rate, x.shape[1], *heads, **case)
            implementation = choice.implementation
        separate_bias = prepares_inputs(implementation) and config.attention_bias
        projected = [dense(x, separate_bias) for dense in (self.query, self.key, self.value)]
        biases = None
        if separate_bias:
            projected, biases = zip(*projected, strict=True)
        of_layer = None if angles is None else angles[self.spec.theta]
        names = (collected.QUERIES, collected.KEYS, collected.VALUES)
        if any(collected.is_asked(self, name) for name in names):
            for name, prepared in zip(names, prepare(*projected, biases, of_layer), strict=True):
                collected.give(self, name, prepared)
        return attention(
            *projected,
            sequence_ids,
            biases=biases,
            angles=of_layer,
            implementation=implementation,
            causal=config.causal,
            window=self.spec.window,
            slopes=slopes,
            dropout_rate=drop.rate,
            dropout_key=drop.key,
        )


_LONGEST_BLOCK = 4  # layers, in a training in float32 on a CPU

_REMAT = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


# The values of layers that `collected` names are stacked along a first axis, as parameters are.
_COLLECTED: Any = {
    name: 0 for name in (collected.LAYERS, collected.QUERIES, collected.KEYS, collected.VALUES)
}


class _ScannedLayers(nn.Module):
    """One repeat of the layers of a run, which is the body of the scan."""

    config: EncoderConfig
    run: Run
    deterministic: bool
    collect: Callable[[jax.Array], Any] | None = None

    @nn.compact
    def __call__(self, x, sequence_ids, angles, vectors):
        found = []
        for member, spec in enumerate(self.run.layers):
            x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
            layer = EncoderLayer(self.config, spec, name=runs.member_name(self.run, member))
            x = layer(x, sequence_ids, angles, self.deterministic, vectors)
            found.append(self.collect(x) if self.collect else None)
        return x, found


class Layers(Module):
    """All layers. Parameters of a run that are not shared are stacked along an axis "layers"."""

    @nn.compact
    def __call__(self, x, sequence_ids, angles, deterministic, collect=None, vectors=None):
        """Applies all layers.

        Returns:
            The output [B, L, H] of the last layer, and the stacked results of `collect` for the output of
            each layer (None without `collect`).
        """
        config = self.config
        execution = config.execution
        found = []
        for name, run in runs.named(runs.layer_runs(config)):
            body, unroll = _ScannedLayers, execution.scan_unroll or self._block(run, deterministic)
            if execution.remat != "none":
                # On a CPU, XLA frees what is computed again only between the iterations of a loop. Outside of
                # one, it would find that it has been computed before, and keep it. The layers that are left
                # over by blocks of `unroll` are outside, too.
                unroll = 1 if platform.target_platform() == "cpu" else unroll
                is_loop = unroll < run.repeats and not run.repeats % unroll
                body = nn.remat(body, prevent_cse=not is_loop, policy=_REMAT[execution.remat])
            parameters = dict(
                variable_axes={"params": 0, **_COLLECTED},
                split_rngs={"params": True, "dropout": True},
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            if run.shared:
                parameters = dict(
                    variable_axes=_COLLECTED,
                    variable_broadcast="params",
                    split_rngs={"params": False, "dropout": True},
                )
            scan = nn.scan(
                body,
                in_axes=nn.broadcast,
                length=run.repeats,
                unroll=unroll,
                **parameters,
            )
            layers = scan(config, run, deterministic, collect, name=name)
            x, each = layers(x, sequence_ids, angles, vectors)
            if collect:
                found.append(_in_order(each))
        return x, _joined(found)

    def _block(self, run: Run, deterministic: bool) -> int:
        """Returns how many repeats of a run are compiled as one block if `scan_unroll` is 0."""
        if deterministic or self.dtype != jnp.float32 or platform.target_platform() != "cpu":
            return run.repeats
        # XLA:CPU does not keep the sums and norms between layers in float32 for their uses, but computes them
        # again from those of all layers of the block before (benchmarks/NOTES.md).
        return run.repeats if run.repeats * len(run.layers) <= _LONGEST_BLOCK else 1


def _in_order(each: list[jax.Array]) -> jax.Array:
    """Stacks one [repeats, ...] array per member of a run to [repeats * members, ...], in layer order."""
    if len(each) == 1:
        return each[0]
    stacked = jnp.stack(each, axis=1)
    return stacked.reshape(-1, *stacked.shape[2:])


def _joined(found: list[jax.Array]) -> jax.Array | None:
    if len(found) > 1:
        return jnp.concatenate(found)
    return found[0] if found else None


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
    them twice. `vectors` [B, S, H], one for each sequence, make it a decoder, whose layers have a
    `CrossAttention` between their halves.
    """

    def setup(self):
        """Creates the parts."""
        self.embeddings = Embeddings(self.config)
        self.layers = Layers(self.config)
        self.final_norm = self.norm() if self.config.final_norm else identity
        self.scheme = positions.scheme(self.config)

    def __call__(
        self,
        input_ids,
        token_type_ids,
        position_ids,
        sequence_ids,
        deterministic=True,
        word=None,
        vectors=None,
    ):
        """Returns the hidden states [B, L, H] of the last layer. Raises ValueError for wrong inputs."""
        check_inputs(input_ids, token_type_ids, position_ids, sequence_ids)
        x = self.embeddings(input_ids, token_type_ids, position_ids, deterministic, word)
        collected.give(self, collected.EMBEDDINGS, x)
        angles = self.scheme.angles(position_ids)
        x = self.layers(x, sequence_ids, angles, deterministic, vectors=vectors)[0]
        x = self.final_norm(x)
        collected.give(self, collected.LAST, x)
        return x

    def every_layer(self, input_ids, token_type_ids, position_ids, sequence_ids, collect):
        """Applies `collect` to the embeddings and to the output of each layer.

        Whatever `collect` drops, such as the tokens when it takes a mean, is never kept for more than one
        layer. The last layer's output is taken after the final norm, if there is one.

        Args:
            input_ids: int32 [B, L]; see the class for this and the other inputs.
            token_type_ids: int32 [B, L].
            position_ids: int32 [B, L].
            sequence_ids: int32 [B, L].
            collect: function of hidden states [B, L, H] that returns an array.

        Returns:
            The stacked results [layers + 1, ...].

        Raises:
            ValueError: an input is not an array of integers [B, L].
        """
        check_inputs(input_ids, token_type_ids, position_ids, sequence_ids)
        x = self.embeddings(input_ids, token_type_ids, position_ids, True)
        last, layers = self.layers(x, sequence_ids, self.scheme.angles(position_ids), True, collect)
        if self.config.final_norm:
            layers = jnp.concatenate([layers[:-1], collect(self.final_norm(last))[None]])
        return jnp.concatenate([collect(x)[None], layers])
