"""RoBERTa and XLM-R: transformers' folders give transformers' outputs, and are written again bit for bit."""

import json
import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import convert, tasks
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import conversion, families, parity
from bert_jax.convert.families import roberta
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.errors import UserError
from bert_jax.models import Encoder, assembled, parameters
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks import fields as task_fields

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "roberta"
FAMILY = roberta.ROBERTA
QUIET = {"log": lambda line: None}


@pytest.fixture(scope="module")
def expected():
    with np.load(FOLDER / "outputs.npz") as arrays:
        return dict(arrays)


def inputs(expected):
    ids, mask = expected["input_ids"], expected["mask"]
    return (
        ids,
        np.zeros_like(ids),
        np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape),
        mask,
    )


@pytest.mark.parametrize("head", FAMILY.heads)
def test_outputs_are_those_of_transformers(expected, head):
    model = convert.load(FOLDER / head)
    assert (model.family, model.head) == (FAMILY, head)
    module = model.module.clone(config=model.config.replace(dtype="float32"))
    arrays = inputs(expected)
    outputs = module.apply({"params": nest(model.params)}, *arrays)
    real = arrays[-1] > 0
    found = {name: np.asarray(x) for name, x in outputs.items()}
    theirs = {
        name: expected[f"{head}/{name}"]
        for name in ("hidden", "pooled", "mlm")
        if f"{head}/{name}" in expected
    }
    if head == "question_answering":
        theirs["qa"] = np.stack([expected[f"{head}/start"], expected[f"{head}/end"]], axis=-1)
    elif head == "multiple_choice":
        theirs["classifier"] = expected[f"{head}/classifier"].T
    elif f"{head}/classifier" in expected:
        theirs["classifier"] = expected[f"{head}/classifier"]
    assert theirs and found.keys() - {"hidden", "pooled"} == theirs.keys() - {"hidden", "pooled"}
    for name, array in theirs.items():
        mine, other = (found[name][real], array[real]) if array.ndim == 3 else (found[name], array)
        assert np.max(np.abs(mine - other)) < 1e-5 * max(1, np.max(np.abs(other))), name


@pytest.mark.parametrize("head", ["none", "masked_lm"])
def test_every_hidden_state_is_that_of_transformers(expected, head):
    model = convert.load(FOLDER / head)
    arrays = inputs(expected)
    states = Encoder(model.config.replace(dtype="float32")).apply(
        {"params": nest(model.params)["encoder"]}, *arrays, lambda x: x, method="every_layer"
    )
    real = arrays[-1] > 0
    assert np.max(np.abs(np.asarray(states)[:, real] - expected[f"{head}/states"][:, real])) < 1e-5


@pytest.mark.parametrize("head", FAMILY.heads)
def test_a_folder_is_written_again_with_the_same_tensors(tmp_path, head):
    conversion.convert(str(FOLDER / head), str(tmp_path / "run"), "bert_jax", **QUIET)
    conversion.convert(str(tmp_path / "run"), str(tmp_path / "out"), "huggingface", **QUIET)
    before, after = (load_file(folder / "model.safetensors") for folder in (FOLDER / head, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    theirs, ours = (
        json.loads((folder / "config.json").read_text()) for folder in (FOLDER / head, tmp_path / "out")
    )
    for name in (*FAMILY.fields, *FAMILY.constants, "hidden_act", "architectures", "model_type", "id2label"):
        assert ours.get(name, theirs.get(name)) == theirs.get(name, ours.get(name)), name
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "RobertaTokenizer"


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
    config.max_seq_length, config.max_query_length, config.task = 16, 4, name
    task = spec.task(
        task_fields.of_task(config), spec, "abc"[: golden.classes or 2], golden.tokenizer, golden.config
    )
    objective = task.objective()
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    assert parameters.parameter_shapes(boxed) == {name: x.shape for name, x in golden.params.items()}
    assert set(objective.new_groups) == set(golden.groups) - {"encoder", "pooler"}
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


def test_rows_have_the_template_and_positions_of_the_family(expected):
    model = convert.load(FOLDER / "none")
    assert model.tokenizer.layout.row([10], [11]).tolist() == [0, 10, 2, 2, 11, 2]
    assert model.tokenizer.layout.types == (0, 0)
    assert model.config.max_position_embeddings == 16 and model.config.max_seq_length == 14
    assert expected["mask"][0].sum() == model.config.max_seq_length  # the last position is used


def test_the_masked_lm_head_has_the_exact_gelu_whatever_the_layers_have():
    assert convert.load(FOLDER / "masked_lm").config.hidden_act == "relu"
    assert FAMILY.masked_lm.activation == "gelu"


def test_other_positions_are_refused():
    with pytest.raises(UserError, match="pad_token_id is 0; only 1 can be read"):
        FAMILY.read_config({"pad_token_id": 0})
    config = convert.load(FOLDER / "none").config
    with pytest.raises(UserError, match="RoBERTa has no position_offset=0, only 2"):
        FAMILY.write_config(config.replace(position_offset=0), "none")


def test_xlm_r_has_the_tensors_of_roberta_and_its_own_classes():
    model, family = convert.load(FOLDER / "masked_lm"), roberta.XLM_ROBERTA
    assert family.class_name("masked_lm") == "XLMRobertaForMaskedLM"
    config = model.config.replace(model_type="xlm-roberta")
    fields = family.write_config(config, "masked_lm")
    assert (fields["model_type"], family.read_config(fields)) == ("xlm-roberta", config)
    assert families.of(config) is family
    tensors = family.to_files(model.params, config, HUGGINGFACE, "masked_lm")
    theirs = load_file(FOLDER / "masked_lm" / "model.safetensors")
    assert tensors.keys() == theirs.keys()
    assert all(np.array_equal(tensors[name], x) for name, x in theirs.items())


def test_published_parameter_counts():
    """Of encoders, masked language models and classifiers of two classes, without poolers."""
    counts = {
        "roberta-base": (124_055_040, 124_697_433, 124_647_170),
        "roberta-large": (354_310_144, 355_412_057, 355_361_794),
        "distilroberta-base": (81_527_808, 82_170_201, 82_119_938),
        "xlm-roberta-base": (277_453_056, 278_295_186, 278_045_186),
        "xlm-roberta-large": (558_840_832, 560_142_482, 559_892_482),
    }
    for family in (roberta.ROBERTA, roberta.XLM_ROBERTA):
        for name, size in family.sizes.items():
            config = EncoderConfig(**family.fixed, **size)
            heads = (("encoder",), *(family.heads[x] for x in ("masked_lm", "sequence_classification")))
            found = [
                sum(
                    int(np.prod(one.shape))
                    for one in assembled.parameters(family.module(config, groups, head)).values()
                )
                for groups, head in zip(heads, ("none", "masked_lm", "sequence_classification"), strict=True)
            ]
            assert tuple(found) == counts.pop(name), name
    assert not counts
