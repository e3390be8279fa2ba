"""Encoders of all families: compared with NumPy, with gradients, scanned and unrolled, and lowered."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import encoder_oracle

from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.models import Encoder, config, parameters
from bert_jax.parallel.sharding import unbox

TINY = dict(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
    layer_norm_eps=1e-5,
    initializer_range=0.5,
)
BERT = {}
ALBERT = dict(embedding_size=8, layer_groups=3, num_hidden_layers=7, hidden_act="gelu_tanh")
MODERN = dict(
    num_hidden_layers=6,
    position="rotary",
    rotary_theta=160_000.0,
    local_rotary_theta=100.0,
    local_window=2,
    global_every=3,
    norm_placement="pre",
    final_norm=True,
    first_attention_norm=False,
    norm_bias=False,
    attention_bias=False,
    inner_bias=False,
    output_bias=False,
    feed_forward="glu",
    type_vocab_size=0,
    initializer="megatron",
)
FAMILY = {
    "bert": BERT,
    "roberta": dict(type_vocab_size=1, position_offset=2),
    "distilbert": dict(type_vocab_size=0),
    "albert": ALBERT,
    "modernbert": MODERN,
    "mosaic": dict(position="alibi", feed_forward="glu", inner_bias=False, num_attention_heads=4),
    "neobert": dict(
        position="rotary", norm="rmsnorm", norm_bias=False, norm_placement="pre", final_norm=True,
        embedding_norm=False, feed_forward="glu", hidden_act="silu", attention_bias=False, inner_bias=False,
        output_bias=False, type_vocab_size=0,
    ),
    "crammed": dict(
        position="scaled_sinusoid", norm_placement="pre", final_norm=True, feed_forward="glu",
        attention_bias=False, inner_bias=False, output_bias=False, type_vocab_size=0, initializer="normal",
    ),
    "gpt": dict(embedding_norm=False, causal=True, type_vocab_size=0, hidden_act="gelu_tanh"),
    "deberta": dict(
        position="disentangled", position_buckets=4, type_vocab_size=0, conv_kernel_size=3, embedding_size=8,
        projection_placement="before_norm",
    ),
    "deberta_own": dict(
        position="disentangled", max_relative_positions=7, position_attention="p2c", type_vocab_size=0,
        share_attention_key=False, relative_norm=False,
    ),
    "deberta_masks": dict(position="disentangled", type_vocab_size=0, mask_decoder=True),
    "sinusoid": dict(position="sinusoid", norm="rmsnorm", hidden_act="relu"),
}  # fmt: skip
family = pytest.mark.parametrize("name", FAMILY)


def make(name, **changes):
    return config.from_dict(TINY | FAMILY[name] | changes)


def inputs():
    """Returns two rows: one with two packed sequences, the second with types, and one with padding."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 30, (2, 12)).astype(np.int32)
    types = np.int32([[0] * 5 + [0] * 3 + [1] * 4, [0] * 6 + [1] * 4 + [0] * 2])
    positions = np.int32([[*range(5), *range(7)], range(12)])
    sequences = np.int32([[1] * 5 + [2] * 7, [1] * 10 + [0] * 2])
    return ids, types, positions, sequences


@functools.cache
def model(name):
    """Returns the configuration and parameters large enough that each one affects the hidden states."""
    made, rng = make(name), np.random.default_rng(1)
    shapes = parameters.parameter_shapes(parameters.abstract(Encoder(made)))
    means = {name: float(name.endswith("scale")) for name in shapes}
    return made, nest(
        {name: rng.normal(means[name], 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    )


@family
def test_states_are_those_of_the_formulas(name):
    """The rows are packed, and local layers compute them in blocks."""
    made, params = model(name)
    method = functools.partial(Encoder.every_layer, collect=lambda x: x)
    found = jax.jit(lambda params: Encoder(made).apply({"params": params}, *inputs(), method=method))(params)
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, arrays in enumerate(zip(*inputs(), strict=True)):
        expected, _ = encoder_oracle.states(made, wide, *arrays)
        assert len(expected) == len(found)
        real = arrays[3] > 0
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine[row][real], theirs[real], atol=2e-4 * np.abs(theirs).max())


def test_the_mask_decoder_applies_the_last_layer_to_absolute_positions():
    made, params = model("deberta_masks")
    found = Encoder(made).apply({"params": params}, *inputs(), for_masks=True)
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, arrays in enumerate(zip(*inputs(), strict=True)):
        expected, real = encoder_oracle.masked_states(made, wide, *arrays), arrays[3] > 0
        np.testing.assert_allclose(found[row][real], expected[real], atol=2e-4 * np.abs(expected).max())


@pytest.mark.long
@pytest.mark.parametrize(
    "initializer, cut, of_last", [("truncated_normal", 0.8796, 1), ("normal", 1, 1), ("megatron", 0.8796, 2)]
)
def test_the_spread_of_initial_weights(initializer, cut, of_last):
    """Megatron-LM divides the deviation of each output projection by the root of twice the layers."""
    made = make("distilbert", initializer=initializer, num_hidden_layers=2, hidden_size=64, vocab_size=99)
    ids = np.zeros((1, 4), np.int32)
    params = unbox(jax.jit(Encoder(made).init)(jax.random.key(0), *[ids] * 4)["params"])
    for name, x in flatten(params).items():
        if not name.endswith(("scale", "bias")):
            stddev = made.initializer_range / (of_last if "output/" in name else 1)
            assert np.std(x) == pytest.approx(stddev * cut, rel=0.08), name
            assert (np.abs(x).max() <= 2 * stddev) == (cut < 1), name


def loss(made, params, key):
    states = Encoder(made).apply({"params": params}, *inputs(), deterministic=False, rngs={"dropout": key})
    return jnp.sum(jnp.sin(states.astype(jnp.float32)) * (inputs()[3] > 0)[..., None])


# Compiling ALBERT's unrolled layers takes a minute.
@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("albert", marks=pytest.mark.slow), "modernbert"])
def test_gradients_reach_every_parameter_and_do_not_depend_on_the_execution(name):
    made, params = model(name)
    key = jax.random.key(2)
    gradients = jax.jit(jax.grad(functools.partial(loss, made)))(params, key)
    named = jax.tree_util.tree_leaves_with_path(gradients)
    for path, gradient in named:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert np.all(np.isfinite(gradient)), name
        # A bias of all keys shifts every logit of a query equally.
        assert np.any(np.abs(gradient) > 1e-6) or name.endswith("/key/bias"), name
    for other in (made.replace(scan_unroll=0, remat="full"), made.replace(remat="dots")):
        again = jax.jit(jax.grad(functools.partial(loss, other)))(params, key)
        for one, two in zip(jax.tree.leaves(gradients), jax.tree.leaves(again), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-4 * max(1, np.abs(one).max()))


@pytest.mark.long
def test_layers_are_read_from_the_names_of_axes():
    made = make("albert")
    boxed = parameters.abstract(Encoder(made))
    assert not parameters.layer_axes(boxed)  # not the heads of a [H, N, D] kernel
    slices = parameters.parameter_slices(boxed, made)
    one = slices["layers/shared_1/layer/query/kernel"]
    assert one.shared and one.names == tuple(f"layers/{i}/query/kernel" for i in (3, 4))

    made = make("modernbert")
    boxed = parameters.abstract(Encoder(made))
    slices = parameters.parameter_slices({"encoder": boxed}, made)
    assert slices["encoder/layers/stack_0/layer/query/kernel"].names == ("encoder/layers/0/query/kernel",)
    assert slices["encoder/layers/stack_1/layer_2/query/kernel"].numbers == (3,)
    assert slices["encoder/layers/stack_2/layer_1/output/kernel"].numbers == (5,)
    assert "encoder/final_norm/scale" not in slices

    boxed = parameters.abstract(Encoder(make("bert")))
    assert set(parameters.layer_axes(boxed).values()) == {0}
    assert parameters.parameter_slices(boxed, make("bert"))["layers/stack/layer/query/bias"].numbers == (
        0,
        1,
        2,
    )
