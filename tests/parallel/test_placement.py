"""Programs on placed parameters return the same results, and copy and cast no layer."""

import jax
import numpy as np
import pytest

from bert_jax.checkpoint.leaves import nest
from bert_jax.models import Encoder, assembled
from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import EncoderConfig
from bert_jax.parallel import placement, sharding

CONFIG = EncoderConfig(
    vocab_size=40, hidden_size=64, num_hidden_layers=6, num_attention_heads=4, intermediate_size=256,
    max_position_embeddings=64,
)  # fmt: skip
FAMILIES = {
    "bert": {},
    "albert": {"layer_groups": 1},
    "gated, local layers": {
        "position": "rotary", "feed_forward": "glu", "norm_placement": "pre", "final_norm": True,
        "local_window": 8, "global_every": 3,
    },
}  # fmt: skip


def drawn(config):
    """Returns parameters by name, and the names of the stacked ones."""
    rng = np.random.default_rng(0)
    found = assembled.parameters(AssembledModel(config))
    params = {name: 0.1 * rng.standard_normal(x.shape, np.float32) for name, x in found.items()}
    return params, {name for name, x in found.items() if x.layered}


def inputs(rows=2, length=16):
    ids = np.arange(rows * length, dtype=np.int32).reshape(rows, length) % 40
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    return ids, np.zeros_like(ids), positions, np.ones_like(ids)


def apply(config):
    return jax.jit(
        lambda params, *arrays: Encoder(config).apply(
            {"params": placement.restack(params)["encoder"]}, *arrays
        )
    )


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_what_it_does_with_stacked_parameters(family):
    config = CONFIG.replace(**FAMILIES[family])
    params, stacked = drawn(config)
    apart = placement.place(params, stacked, sharding.make_mesh(), "float32")
    assert all(isinstance(apart[name], placement.UnstackedLayers) == (name in stacked) for name in params)
    assert bool(stacked) == (family != "albert")
    expected = apply(config)(nest(params), *inputs())
    found = apply(placement.config_for(config, sharding.make_mesh()))(nest(apart), *inputs())
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.long
def test_no_layer_is_copied_out_of_a_stack():
    params, stacked = drawn(CONFIG)
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    config = placement.config_for(CONFIG, mesh)
    size = sum(params[name].nbytes for name in stacked)

    def temporaries(params):
        return apply(config).lower(nest(params), *inputs()).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(params) > size * 0.9
    assert temporaries(placement.place(params, stacked, mesh, "float32")) < size / 8
