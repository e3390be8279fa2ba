import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import tiny_config
from support.numpy_lstm import drawn

from bert_jax.models import FeatureTagger
from bert_jax.models.baselines.feature_tagger import FeatureHead

CONFIG = tiny_config(hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16)


@pytest.mark.long
def test_the_layers_that_are_named_are_concatenated():
    ids = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)
    inputs = (ids, ids * 0, jnp.broadcast_to(jnp.arange(6), (2, 6)), jnp.ones_like(ids))
    every = FeatureTagger(CONFIG, layers=(0, 1, 2, 3))
    variables = drawn(every, *inputs)
    whole = every.apply(variables, *inputs, method="features")
    assert whole.shape == (2, 6, 32) and whole.dtype == jnp.float16
    some = FeatureTagger(CONFIG, layers=(-1, -4)).apply(variables, *inputs, method="features")
    np.testing.assert_array_equal(some, jnp.concatenate([whole[..., 24:], whole[..., :8]], axis=-1))
    last = every.apply(variables, *inputs, method=lambda module, *rows: module.encoder(*rows))
    np.testing.assert_allclose(whole[..., 24:], last, rtol=2e-3, atol=1e-3)


@pytest.mark.long
def test_a_weighted_sum_is_that_of_elmo():
    """The softmax of the weights, times one factor; at the start the mean of the layers."""
    features = np.random.default_rng(2).normal(size=(2, 5, 12)).astype(np.float32)
    head = FeatureHead(CONFIG, 4, mixed_layers=3)
    inputs = (features, np.ones((2, 5), bool), True)
    start = nn.unbox(head.init(jax.random.key(0), *inputs))["params"]
    assert not start["mix"]["weights"].any() and start["mix"]["scale"].tolist() == [1]
    assert start["output"]["kernel"].shape == (4, 4)
    params = jax.tree.map(np.asarray, drawn(head, *inputs)["params"])
    exponents = np.exp(params["mix"]["weights"])
    mixed = np.einsum("k,blkh->blh", exponents / exponents.sum(), features.reshape(2, 5, 3, 4))
    expected = params["mix"]["scale"] * mixed @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(head.apply({"params": params}, *inputs), expected, atol=1e-5)
