"""ModernBERT's record: fields of config.json, old and new; see also test_goldens.py."""

import json
import pathlib
import shutil

import pytest

from bert_jax import cli, convert
from bert_jax.convert.families import modernbert
from bert_jax.errors import UserError
from bert_jax.models import sizes

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "modernbert"
FAMILY = modernbert.FAMILY
LOCAL, GLOBAL = "sliding_attention", "full_attention"


LAYERS = {"num_hidden_layers": 7}


@pytest.mark.parametrize(
    "fields, every, pattern",
    [
        (LAYERS, 3, ""),
        (LAYERS | {"global_attn_every_n_layers": 2}, 2, ""),
        (LAYERS | {"global_attn_every_n_layers": 1}, 1, ""),
        (LAYERS | {"layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL, GLOBAL, LOCAL, LOCAL]}, 4, ""),
        (LAYERS | {"layer_types": [GLOBAL] * 7}, 1, ""),
        (LAYERS | {"layer_types": [LOCAL] * 7}, 1, "lllllll"),
        (LAYERS | {"layer_types": [GLOBAL, GLOBAL, LOCAL, LOCAL, GLOBAL, LOCAL, GLOBAL]}, 1, "ggllglg"),
        ({"num_hidden_layers": 1}, 3, ""),
    ],
)
def test_which_layers_are_local(fields, every, pattern):
    config = FAMILY.read_config(fields)
    assert (config.global_every, config.attention_pattern) == (every, pattern)
    has_local = bool(pattern) or every > 1
    assert (config.local_window, config.rotary_theta) == (64 if has_local else 0, 160_000.0)
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


@pytest.mark.parametrize(
    "fields, problem",
    [
        ({"classifier_bias": True}, "classifier_bias is True; only False can be read"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling is"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "yarn"}}}, "rope_type is 'yarn'; only 'default'"),
        ({"num_hidden_layers": 2, "layer_types": [GLOBAL, "chunked"]}, "layer_types has 'chunked'"),
        ({"num_hidden_layers": 2, "layer_types": [GLOBAL]}, "layer_types has 1 entry for 2 layers"),
        ({"layer_types": "global"}, "layer_types is"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max' is unknown"),
        ({"local_attention": 1}, "local_window=0 and global_every=3"),
    ],
)
def test_what_cannot_be_computed_is_refused(fields, problem):
    with pytest.raises(UserError, match=problem):
        FAMILY.read_config(fields)


def test_the_last_token_is_not_read_in_transformers():
    config = sizes.named("modernbert-base").replace(classifier_pooling="last")
    with pytest.raises(UserError, match="has no classifier_pooling='last', only 'cls' or 'mean'"):
        FAMILY.write_config(config, "sequence_classification")
    assert "classifier_pooling" not in FAMILY.write_config(config, "none")  # where nothing reads it


def test_a_modernbert_alone_has_its_fields():
    config = sizes.named("ettin-17m")
    with pytest.raises(UserError, match="ModernBERT has no type_vocab_size=2, only 0"):
        FAMILY.write_config(config.replace(type_vocab_size=2), "none")
    with pytest.raises(UserError, match="has no output_bias=True, only False"):
        FAMILY.write_config(config.replace(output_bias=True), "none")


@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification"])
def test_without_the_name_of_a_class_the_tensors_decide_on_the_head(tmp_path, head):
    folder = shutil.copytree(FOLDER / head, tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    del fields["architectures"]
    (folder / "config.json").write_text(json.dumps(fields))
    found, model = convert.load(folder), convert.load(FOLDER / head)
    assert found.head == head and found.params.keys() == model.params.keys()


def test_a_tensor_of_another_shape_is_named_once():
    model = convert.load(FOLDER / "none")
    tensors = FAMILY.to_files(model.params, model.config, "huggingface")
    name = "model.layers.2.attn.Wqkv.weight"
    tensors[name] = tensors[name][:-1]
    found = FAMILY.from_files(tensors, model.config, "huggingface", "none")
    assert found.misshapen == [f"{name} is [35, 12], expected [36, 12]"]
    del tensors[name]
    assert FAMILY.from_files(tensors, model.config, "huggingface", "none").missing == [name]


@pytest.mark.long
def test_it_is_a_checkpoint_like_any_other(capsys):
    assert cli.main(["inspect", str(FOLDER / "masked_lm")]) == 0
    assert "parts: encoder, mlm" in capsys.readouterr().out
    assert cli.main(["fill-mask", f"--model={FOLDER / 'masked_lm'}", "the [MASK] of france"]) == 0
    assert cli.main(["convert", f"--input={FOLDER / 'none'}", "--output=unused", "--to=tensorflow"]) == 2
    assert "there are no TF1 checkpoints of ModernBERT" in capsys.readouterr().err
