"""Each change, by what the Flax model makes of it before and after."""

import functools

import jax
import numpy as np
import pytest
from support.conversions import random_model
from support.models import VOCAB, tiny_config

from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import surgery
from bert_jax.models import PretrainingModel
from bert_jax.objectives import losses

LENGTH = 24


def inputs(vocab=VOCAB, length=LENGTH):
    rng = np.random.default_rng(1)
    ids = rng.integers(5, vocab, (3, length), np.int32)
    ids[:, 0] = 2
    segments = np.repeat([[0, 1]], length // 2, axis=1).reshape(1, -1).astype(np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape)
    return dict(
        input_ids=ids,
        token_type_ids=np.broadcast_to(segments, ids.shape),
        position_ids=positions,
        sequence_ids=np.ones_like(ids),
        masked_positions=np.tile(np.array([3, 7, 11, 20], np.int32), (3, 1)),
        cls_positions=np.zeros((3, 1), np.int32),
    )


@functools.cache
def shared_model():
    return random_model(tiny_config())


@pytest.fixture
def model():
    return shared_model()


@functools.cache
def forward(config):
    return jax.jit(PretrainingModel(config).apply)


def logits(model, batch=None, **config):
    forward_pass = forward(model.config.replace(**config))
    return forward_pass({"params": nest(model.params)}, **(batch or inputs()))


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_padding_changes_no_loss_and_no_gradient_and_its_own_gradients_are_zero(model, dtype):
    labels = np.arange(12, dtype=np.int32).reshape(3, 4) * 8

    def loss(params, config):
        out, _ = PretrainingModel(config).apply({"params": nest(params)}, **inputs())
        return losses.mean(losses.cross_entropy(out, labels, np.ones((3, 4), np.float32)))

    padded = surgery.pad_vocabulary(model, 128)
    both = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    value, gradient = both(dict(model.params), model.config.replace(dtype=dtype))
    padded_value, padded_gradient = both(dict(padded.params), padded.config.replace(dtype=dtype))
    np.testing.assert_allclose(padded_value, value, rtol=1e-6)
    for name in (surgery.WORDS, surgery.BIASES[0]):
        assert not np.any(padded_gradient[name][VOCAB:]), name
        padded_gradient[name] = padded_gradient[name][:VOCAB]
    for name, x in gradient.items():
        tolerance = 1e-6 if dtype == "float32" else 1e-3
        np.testing.assert_allclose(padded_gradient[name], x, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("positions", [65, 150])
def test_tiled_positions_repeat_and_leave_short_text_as_it_was(model, positions):
    longer = surgery.resize_positions(model, positions)
    table, old = longer.params[surgery.POSITIONS], model.params[surgery.POSITIONS]
    assert longer.config.max_position_embeddings == len(table) == positions
    for i in range(positions):
        np.testing.assert_array_equal(table[i], old[i % 64])
    for before, after in zip(logits(model), logits(longer), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("layers", [[0], [3, 1], [0, 2, 2, 1, 3]], ids=str)
def test_chosen_layers_are_applied_in_their_order(layers):
    model = random_model(tiny_config(num_hidden_layers=4))
    chosen = surgery.select_layers(model, layers)
    assert chosen.config.num_hidden_layers == len(layers)
    for name, x in model.params.items():
        expected = x[layers] if name.startswith("encoder/layers/") else x
        np.testing.assert_array_equal(chosen.params[name], expected, err_msg=name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_cast_there_and_back_rounds_once(model, dtype):
    low = surgery.cast(model, dtype)
    assert {str(x.dtype) for x in low.params.values()} == {dtype}
    back = surgery.cast(low, "float32")
    relative = 2.0 ** -(8 if dtype == "bfloat16" else 11)
    for name, x in model.params.items():
        assert back.params[name].dtype == np.float32
        np.testing.assert_allclose(back.params[name], x, rtol=relative, atol=1e-7, err_msg=name)
        np.testing.assert_array_equal(surgery.cast(back, dtype).params[name], low.params[name])
    assert surgery.cast(model, "float32").params.keys() == model.params.keys()


def test_dropping_a_head_drops_its_groups_and_nothing_else(model):
    def groups(m):
        return {name.split("/")[0] for name in m.params}

    masked_lm = surgery.change_head(model, "masked_lm")
    assert groups(masked_lm) == {"encoder", "pooler", "mlm"} and masked_lm.head == "masked_lm"
    encoder = surgery.change_head(masked_lm, "none")
    assert groups(encoder) == {"encoder", "pooler"} and encoder.head == "none"
    assert all(encoder.params[name] is model.params[name] for name in encoder.params)
    assert surgery.change_head(model, "pretraining") is model
