"""Bottleneck adapters: their place in a layer, their formula, and their start as the identity."""

import functools

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from support.models import tiny_config

from bert_jax.models.encoder import Encoder
from bert_jax.models.layers import Bottleneck
from bert_jax.parallel.sharding import unbox

IDS = np.arange(5, 17, dtype=np.int32).reshape(1, 12)
INPUTS = (IDS, np.zeros_like(IDS), np.arange(12, dtype=np.int32)[None], np.ones_like(IDS))
OFFSET = np.linspace(-1, 1, 32, dtype=np.float32)


@functools.partial(jax.jit, static_argnums=0)
def states(config, params):
    return Encoder(config).apply({"params": params}, *INPUTS)


def outputs(config, params):
    return np.asarray(states(config, unflatten_dict(params, sep="/")))


@pytest.mark.long
@pytest.mark.parametrize("half", ["attention", "output"])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_an_adapter_is_before_the_sum_with_the_input_of_its_half(half, placement):
    """With zero weights, the adapter's bias acts like the bias of the sublayer's output projection."""
    plain = tiny_config(norm_placement=placement)
    config = plain.replace(**{f"{half}_adapter": 3})
    boxed = jax.jit(Encoder(config).init)(jax.random.key(0), *INPUTS)["params"]
    adapted = {name: np.array(x) for name, x in flatten_dict(unbox(boxed), sep="/").items()}
    own = {name for name in adapted if "_adapter/" in name}
    assert {name.removeprefix(f"layers/stack/layer/{half}_adapter/") for name in own} == {
        f"{part}/{what}" for part in ("down", "up") for what in ("kernel", "bias")
    }
    without = {name: x for name, x in adapted.items() if name not in own}
    np.testing.assert_allclose(outputs(config, adapted), outputs(plain, without), atol=1e-4)
    for name in own:
        assert np.max(np.abs(adapted[name])) <= 2e-3
        adapted[name] = np.zeros_like(adapted[name])
    adapted[f"layers/stack/layer/{half}_adapter/up/bias"] += OFFSET
    last = {"attention": "attention_output", "output": "output"}[half]
    bias = f"layers/stack/layer/{last}/bias"
    without[bias] = without[bias] + OFFSET
    np.testing.assert_allclose(outputs(config, adapted), outputs(plain, without), atol=2e-6)


def test_the_module_is_a_gelu_between_two_products():
    rng = np.random.default_rng(0)
    shapes = {"down/kernel": (32, 3), "down/bias": (3,), "up/kernel": (3, 32), "up/bias": (32,)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    h = rng.normal(size=(1, 2, 32)).astype(np.float32)
    found = Bottleneck(tiny_config(), 3).apply({"params": unflatten_dict(params, sep="/")}, h)
    x = h @ params["down/kernel"] + params["down/bias"]
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(found, h + x @ params["up/kernel"] + params["up/bias"], rtol=1e-5, atol=1e-5)
