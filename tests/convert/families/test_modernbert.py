"""ModernBERT: transformers' folders give transformers' outputs, and are written again bit for bit."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import cli, convert, tasks
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import conversion, parity
from bert_jax.convert.families import modernbert
from bert_jax.errors import UserError
from bert_jax.models import Encoder, assembled, parameters, sizes
from bert_jax.tasks import fields as task_fields

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "modernbert"
FAMILY = modernbert.FAMILY
LOCAL, GLOBAL = "sliding_attention", "full_attention"


@pytest.fixture(scope="module")
def expected():
    with np.load(FOLDER / "outputs.npz") as arrays:
        return dict(arrays)


def inputs(expected):
    ids, mask = expected["input_ids"], expected["mask"]
    return ids, np.zeros_like(ids), np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape), mask


def close(found, expected):
    return np.max(np.abs(found - expected)) < 2e-5 * max(1, np.max(np.abs(expected)))


@pytest.mark.parametrize("head", FAMILY.heads)
def test_outputs_and_every_hidden_state_are_those_of_transformers(expected, head):
    model = convert.load(FOLDER / head)
    assert (model.family, model.head) == (FAMILY, head)
    config = model.config.replace(dtype="float32")
    arrays = inputs(expected)
    real = arrays[-1] > 0
    outputs = model.module.clone(config=config).apply({"params": nest(model.params)}, *arrays)
    found = {name: np.asarray(x) for name, x in outputs.items()}
    theirs = {"hidden": expected[f"{head}/states"][-1]}
    if head == "masked_lm":
        theirs["mlm"] = expected["masked_lm/mlm"]
    elif head == "question_answering":
        theirs["qa"] = np.stack([expected[f"{head}/start"], expected[f"{head}/end"]], axis=-1)
    elif head != "none":
        logits = expected[f"{head}/classifier"]
        theirs["classifier"] = logits.T if head == "multiple_choice" else logits
    assert found.keys() == theirs.keys()
    for name, array in theirs.items():
        of_tokens = array.ndim == 3
        assert close(*((x[real] if of_tokens else x) for x in (found[name], array))), name
    encoder = nest(model.params)["encoder"]
    states = Encoder(config).apply({"params": encoder}, *arrays, lambda x: x, method="every_layer")
    assert len(states) == config.num_hidden_layers + 1
    assert close(np.asarray(states)[:, real], expected[f"{head}/states"][:, real])


@pytest.mark.parametrize("head", FAMILY.heads)
def test_a_folder_is_written_again_with_the_same_tensors(tmp_path, head):
    quiet = {"log": lambda line: None}
    conversion.convert(str(FOLDER / head), str(tmp_path / "run"), "bert_jax", **quiet)
    conversion.convert(str(tmp_path / "run"), str(tmp_path / "out"), "huggingface", **quiet)
    before, after = (load_file(folder / "model.safetensors") for folder in (FOLDER / head, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    theirs, ours = (
        json.loads((folder / "config.json").read_text()) for folder in (FOLDER / head, tmp_path / "out")
    )
    # A model without local layers has no values for them, and leaves the defaults.
    names = set(ours) - {"dtype", "pad_token_id", "problem_type", "label2id"}
    if convert.load(FOLDER / head).config.local_window == 0:
        names -= {"rope_parameters", "local_rope_theta"}
    different = {name for name in names if ours[name] != theirs.get(name, ours[name])}
    assert not different
    assert FAMILY.read_config(ours) == FAMILY.read_config(theirs)
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]


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
        ({"num_hidden_layers": 2, "layer_types": [GLOBAL]}, "layer_types has 1 entries for 2 layers"),
        ({"layer_types": "global"}, "layer_types is"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max' is unknown"),
        ({"local_attention": 1}, "local_window=0 and global_every=3"),
    ],
)
def test_what_cannot_be_computed_is_refused(fields, problem):
    with pytest.raises(UserError, match=problem):
        FAMILY.read_config(fields)


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


def test_a_tensor_of_another_shape_is_named_once(tmp_path):
    model = convert.load(FOLDER / "none")
    tensors = FAMILY.to_files(model.params, model.config, "huggingface")
    name = "model.layers.2.attn.Wqkv.weight"
    tensors[name] = tensors[name][:-1]
    found = FAMILY.from_files(tensors, model.config, "huggingface", "none")
    assert found.misshapen == [f"{name} is [35, 12], expected [36, 12]"]
    del tensors[name]
    assert FAMILY.from_files(tensors, model.config, "huggingface", "none").missing == [name]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("classification", "sequence_classification"),
        ("tagging", "token_classification"),
        ("squad", "question_answering"),
        ("multiple_choice", "multiple_choice"),
    ],
)
def test_a_fine_tuned_model_has_the_heads_of_transformers(expected, name, head):
    """It has every tensor that transformers' class has, no other, and computes what the exported one does."""
    golden = convert.load(FOLDER / head)
    spec = tasks.get(name)
    config = task_fields.default_config(task=name)
    config.max_seq_length, config.max_query_length, config.task = 24, 4, name
    task = spec.task(
        task_fields.of_task(config), spec, "abc"[: golden.classes or 2], golden.tokenizer, golden.config
    )
    objective = task.objective()
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    assert parameters.parameter_shapes(boxed) == {name: x.shape for name, x in golden.params.items()}
    assert set(objective.new_groups) == set(golden.groups) - {"encoder"}
    arrays = inputs(expected)
    ids, mask = arrays[0], arrays[-1]
    batch = {"input_ids": ids, "lengths": mask.sum(-1), "first_lengths": mask.sum(-1)}
    batch |= {"weights": np.ones(len(ids), np.float32)}
    if head == "multiple_choice":
        batch = {name: x[None] for name, x in batch.items()}
    logits = np.asarray(objective.logits(nest(golden.params), objective.prepare(batch, None, False)))
    ours = parity.without_padding({"it": logits}, mask)["it"]
    module = golden.module.clone(config=golden.config.replace(dtype="float32"))
    exported = module.apply({"params": nest(golden.params)}, *arrays)
    theirs = parity.without_padding({"it": np.asarray(exported[objective.classifier.name])}, mask)["it"]
    assert np.allclose(ours.reshape(theirs.shape), theirs, atol=1e-5)


def test_it_is_a_checkpoint_like_any_other(capsys):
    assert cli.main(["inspect", str(FOLDER / "masked_lm")]) == 0
    assert "parts: encoder, mlm" in capsys.readouterr().out
    assert cli.main(["fill-mask", f"--checkpoint={FOLDER / 'masked_lm'}", "the [MASK] of france"]) == 0
    assert cli.main(["convert", f"--input={FOLDER / 'none'}", "--output=unused", "--to=tensorflow"]) == 2
    assert "there are no TF1 checkpoints of ModernBERT" in capsys.readouterr().err


def test_published_parameter_counts():
    counts = {
        "ettin-17m": (16_797_440, 16_913_600, None),
        "modernbert-base": (149_014_272, 149_655_232, 149_606_402),
        "modernbert-large": (394_781_696, 395_881_664, 395_833_346),
    }
    for name, published in counts.items():
        for head, number in zip(("none", "masked_lm", "sequence_classification"), published, strict=True):
            module = FAMILY.module(sizes.named(name), FAMILY.heads[head], head)
            shapes = [one.shape for one in assembled.parameters(module).values()]
            assert number is None or sum(int(np.prod(shape)) for shape in shapes) == number, (name, head)
