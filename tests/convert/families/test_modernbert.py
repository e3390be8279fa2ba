"""ModernBERT's record: fields of config.json, old and new; see also test_goldens.py."""

import pytest

from bert_jax.convert.families import modernbert
from bert_jax.models import sizes

FAMILY = modernbert.FAMILY
LOCAL, GLOBAL = "sliding_attention", "full_attention"


LAYERS = {"num_hidden_layers": 7}


@pytest.mark.parametrize(
    "fields, every",
    [
        (LAYERS, 3),
        (LAYERS | {"global_attn_every_n_layers": 1}, 1),
        (LAYERS | {"layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL, GLOBAL, LOCAL, LOCAL]}, 4),
        (LAYERS | {"layer_types": [GLOBAL] * 7}, 1),
        ({"num_hidden_layers": 1}, 1),
    ],
)
def test_which_layers_are_local(fields, every):
    config = FAMILY.read_config(fields)
    assert config.global_every == every or config.num_hidden_layers == 1
    assert (config.local_window, config.rotary_theta) == (64 if config.global_every > 1 else 0, 160_000.0)
    assert FAMILY.read_config(FAMILY.write_config(config, "none")) == config


def test_old_and_new_fields_of_the_rotary_angles():
    new = {GLOBAL: {"rope_type": "default", "rope_theta": 5e4}, LOCAL: {"rope_theta": 2e4}}
    assert FAMILY.read_config({"rope_parameters": new}) == FAMILY.read_config(
        {"global_rope_theta": 5e4, "local_rope_theta": 2e4}
    )
    assert FAMILY.read_config({"rope_parameters": new}).local_rotary_theta == 2e4
    assert FAMILY.read_config({"global_rope_theta": 5e4, "local_rope_theta": None}).local_rotary_theta == 5e4


@pytest.mark.parametrize("size", sizes.MODERN)
def test_a_config_without_fields_is_the_base_model_and_sizes_are_written_whole(size):
    config = sizes.named(size)
    assert FAMILY.read_config(FAMILY.write_config(config, "masked_lm")) == config
    assert FAMILY.read_config({}) == sizes.named("modernbert-base")
