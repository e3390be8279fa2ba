"""DeBERTa's record: config.json, the two forms of masked LM, surgery; see also test_goldens.py."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.conversions import random_model
from support.models import small_of

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import surgery
from bert_jax.convert.families import deberta
from bert_jax.convert.formats import huggingface
from bert_jax.errors import UserError
from bert_jax.models import assembled

TESTDATA = pathlib.Path(__file__).parents[2] / "testdata" / "deberta-v2"
FAMILY = deberta.FAMILY
SUPPORTED = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
OMITTED = object()
QUIET = {"log": lambda line: None}
NAMES = {
    "cls.predictions.transform.dense": "lm_predictions.lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_predictions.lm_head.LayerNorm",
    "cls.predictions.bias": "lm_predictions.lm_head.bias",
}


def microsofts(folder):
    """Writes a masked LM into a folder with the names of Microsoft's files, with what else these hold."""
    shutil.copytree(TESTDATA / "masked_lm", folder)
    tensors = load_file(folder / "model.safetensors")
    for ours, theirs in NAMES.items():
        for name in [name for name in tensors if name.startswith(ours)]:
            tensors[name.replace(ours, theirs)] = tensors.pop(name)
    assert sum(name.startswith("lm_predictions") for name in tensors) == 5
    tensors["mask_predictions.dense.weight"] = np.ones((12, 12), np.float32)
    tensors["deberta.embeddings.position_embeddings.weight"] = np.ones((16, 8), np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"legacy": False}))
    return folder


def test_both_forms_of_masked_lm_are_the_same_model(tmp_path):
    one, other = (convert.load(x, **QUIET) for x in (TESTDATA / "masked_lm", microsofts(tmp_path / "it")))
    assert other.head == "masked_lm" and one.params.keys() == other.params.keys()
    assert all(np.array_equal(one.params[name], other.params[name]) for name in one.params)


def test_a_file_of_a_discriminator_that_names_no_class(tmp_path):
    folder, rng = microsofts(tmp_path / "it"), np.random.default_rng(0)
    tensors = load_file(folder / "model.safetensors")
    size = len(tensors["mask_predictions.dense.weight"])
    for name, shape in (("dense", (size, size)), ("LayerNorm", (size,)), ("classifer", (1, size))):
        tensors[f"mask_predictions.{name}.weight"] = rng.normal(size=shape).astype(np.float32)
        tensors[f"mask_predictions.{name}.bias"] = rng.normal(size=shape[:1]).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    del fields["architectures"]
    (folder / "config.json").write_text(json.dumps(fields))
    model = convert.load(folder, **QUIET)
    assert (model.head, model.groups) == ("replaced_tokens", ("encoder", "discriminator"))
    out = tensors["mask_predictions.classifer.weight"]
    assert np.array_equal(model.params["discriminator/out/kernel"], out.T)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("c2p|p2c", 0, 0, False, False, 0)),
        (
            {"pos_att_type": ["p2c"], "position_buckets": 8, "max_relative_positions": 40},
            ("p2c", 8, 40, False, False, 0),
        ),
        (
            {"share_att_key": True, "norm_rel_ebd": "none | layer_norm", "conv_kernel_size": 3},
            ("c2p|p2c", 0, 0, True, True, 3),
        ),
    ],
)
def test_fields_that_are_left_out_have_the_defaults_of_transformers(fields, expected):
    config = FAMILY.read_config(SUPPORTED | fields)
    names = ("position_attention", "position_buckets", "max_relative_positions", "share_attention_key")
    assert tuple(getattr(config, x) for x in (*names, "relative_norm", "conv_kernel_size")) == expected
    assert (config.hidden_size, config.num_hidden_layers, config.layer_norm_eps) == (1536, 24, 1e-7)
    written = FAMILY.write_config(config, "none")
    assert FAMILY.read_config(written) == config


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"relative_attention": False}, "relative_attention"),
        ({"relative_attention": None}, "relative_attention"),
        ({"relative_attention": OMITTED}, "relative_attention"),  # the default of transformers
        ({"position_biased_input": OMITTED}, "position_biased_input"),
        ({"position_biased_input": True}, "position_biased_input"),
        ({"pos_att_type": None}, "position_attention"),
        ({"pos_att_type": "c2p|p2p"}, "position_attention"),
        ({"pooler_hidden_act": "tanh"}, "pooler_hidden_act"),
        ({"conv_groups": 2}, "conv_groups"),
        ({"position_buckets": "8"}, "position_buckets"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"type_vocab_size": 2, "position_buckets": 7}, "position_buckets"),
    ],
)
def test_what_is_not_supported_is_an_error(fields, name):
    stated = SUPPORTED | fields
    with pytest.raises(UserError, match=name):
        FAMILY.read_config({field: value for field, value in stated.items() if value is not OMITTED})


def test_a_convolution_belongs_to_layer_0():
    model = random_model(small_of(FAMILY), "none")
    assert model.config.conv_kernel_size == 3
    assert surgery.select_layers(model, [0, 2]).config.num_hidden_layers == 2
    for layers in ([1, 2], [0, 0]):
        with pytest.raises(UserError, match="layer 0"):
            surgery.select_layers(model, layers)


def test_transformers_gets_a_fine_tuned_model_without_its_mask_decoder(tmp_path):
    config = small_of(FAMILY).replace(mask_decoder=True)
    model = random_model(config, "sequence_classification")
    plain = surgery.without_mask_decoder(model)
    huggingface.FORMAT.write(plain, tmp_path)
    ids = np.arange(5, 25, dtype=np.int32).reshape(2, 10)
    inputs = ids, 0 * ids, np.arange(10, dtype=np.int32) + 0 * ids, 1 + 0 * ids
    expected, *found = (
        one.module.apply({"params": nest(one.params)}, *inputs)["classifier"]
        for one in (model, plain, convert.load(tmp_path, **QUIET))
    )
    assert all(np.allclose(each, expected, atol=1e-5) for each in found)
    masked_lm = random_model(config, "masked_lm")
    assert surgery.without_mask_decoder(masked_lm) is masked_lm
    with pytest.raises(UserError, match="mask_decoder"):
        huggingface.FORMAT.write(masked_lm, tmp_path)


@pytest.mark.parametrize("buckets", [0, 8])
def test_more_positions_leave_every_distance_its_row(buckets):
    model = random_model(small_of(FAMILY).replace(position_buckets=buckets), "none")
    longer = surgery.resize_positions(model, 40)
    assert (longer.config.max_seq_length, longer.config.longest_distance) == (40, 16)
    shapes = assembled.shapes(longer.config, ("encoder",))
    assert shapes == {name: x.shape for name, x in longer.params.items()}
