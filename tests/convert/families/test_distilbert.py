"""DistilBERT: transformers' folders give transformers' outputs, and are written again bit for bit."""

import json
import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import cli, convert, tasks
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import conversion, parity
from bert_jax.convert.families import distilbert
from bert_jax.errors import UserError
from bert_jax.models import Encoder, assembled, parameters
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks import fields as task_fields

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "distilbert"
FAMILY = distilbert.FAMILY
QUIET = {"log": lambda line: None}


@pytest.fixture(scope="module")
def expected():
    with np.load(FOLDER / "outputs.npz") as arrays:
        return dict(arrays)


def inputs(expected):
    ids, mask = expected["input_ids"], expected["mask"]
    return ids, np.zeros_like(ids), np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape), mask


@pytest.mark.parametrize("head", FAMILY.heads)
def test_outputs_are_those_of_transformers(expected, head):
    model = convert.load(FOLDER / head)
    assert (model.family, model.head) == (FAMILY, head)
    module = model.module.clone(config=model.config.replace(dtype="float32"))
    arrays = inputs(expected)
    outputs = module.apply({"params": nest(model.params)}, *arrays)
    real = arrays[-1] > 0
    found = {name: np.asarray(x) for name, x in outputs.items()}
    theirs = {name: expected[f"{head}/{name}"] for name in ("hidden", "mlm") if f"{head}/{name}" in expected}
    if head == "question_answering":
        theirs["qa"] = np.stack([expected[f"{head}/start"], expected[f"{head}/end"]], axis=-1)
    elif head == "multiple_choice":
        theirs["classifier"] = expected[f"{head}/classifier"].T
    elif f"{head}/classifier" in expected:
        theirs["classifier"] = expected[f"{head}/classifier"]
    assert theirs and found.keys() == theirs.keys() | {"hidden"}
    for name, array in theirs.items():
        of_tokens = array.ndim == 3
        mine, other = (found[name][real], array[real]) if of_tokens else (found[name], array)
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
    for name in (*FAMILY.fields, "activation", "architectures", "model_type", "id2label"):
        assert ours.get(name, theirs.get(name)) == theirs.get(name, ours.get(name)), name
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "DistilBertTokenizer"
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]


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


def test_the_dropout_of_the_heads_is_that_of_the_file():
    model = convert.load(FOLDER / "question_answering")
    assert (model.config.classifier_dropout, model.config.qa_dropout) == (0.2, 0.1)
    fields = FAMILY.write_config(model.config.replace(classifier_dropout=0.5, qa_dropout=0.4), "none")
    assert (fields["seq_classif_dropout"], fields["qa_dropout"]) == (0.5, 0.4)
    config = FAMILY.read_config(fields)
    rates = {head: one.drop_out.of(config) for head, one in FAMILY.classifiers.items()}
    assert rates == {
        "sequence_classification": 0.5,
        "token_classification": config.hidden_dropout_prob,
        "multiple_choice": 0.5,
        "question_answering": 0.4,
    }
    plain = FAMILY.read_config({name: x for name, x in fields.items() if not name.endswith("_dropout")})
    assert FAMILY.classifiers["question_answering"].drop_out.of(plain) == 0.1
    assert FAMILY.classifiers["sequence_classification"].drop_out.of(plain) == 0.2


def test_it_is_a_checkpoint_like_any_other(capsys):
    assert cli.main(["inspect", str(FOLDER / "masked_lm")]) == 0
    assert "parts: encoder, mlm" in capsys.readouterr().out
    assert cli.main(["fill-mask", f"--checkpoint={FOLDER / 'masked_lm'}", "the [MASK] of france"]) == 0
    assert cli.main(["convert", f"--input={FOLDER / 'none'}", "--output=unused", "--to=tensorflow"]) == 2
    assert "there are no TF1 checkpoints of DistilBERT" in capsys.readouterr().err


def test_what_is_no_distilbert_is_not_written_as_one():
    model = convert.load(FOLDER / "none")
    with pytest.raises(UserError, match=r"DistilBERT has no layer_norm_eps=0\.1, only 1e-12"):
        FAMILY.write_config(model.config.replace(layer_norm_eps=0.1), "none")
    with pytest.raises(UserError, match="a DistilBERT with head pretraining does not exist"):
        model.replace(head="pretraining")


def test_published_parameter_counts():
    counts = {
        "distilbert-base-uncased": (66_362_880, 66_985_530, 66_955_010),
        "distilbert-base-cased": (65_190_912, 65_812_036, 65_783_042),
        "distilbert-base-multilingual-cased": (134_734_080, 135_445_755, 135_326_210),
    }
    assert counts.keys() == FAMILY.sizes.keys()
    for name, published in counts.items():
        config = EncoderConfig(**FAMILY.fixed, **FAMILY.sizes[name])
        for head, number in zip(("none", "masked_lm", "sequence_classification"), published, strict=True):
            module = FAMILY.module(config, FAMILY.heads[head], head)
            shapes = [one.shape for one in assembled.parameters(module).values()]
            assert sum(int(np.prod(shape)) for shape in shapes) == number, (name, head)
