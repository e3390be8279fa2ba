"""ELECTRA: transformers' folders give transformers' outputs, and are written again bit for bit."""

import json
import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import convert, tasks
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import conversion, parity
from bert_jax.convert.families import electra
from bert_jax.convert.param_mapping import GENERATOR, TENSORFLOW
from bert_jax.errors import UserError
from bert_jax.models import Encoder, assembled, parameters
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks import fields as task_fields

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "electra"
FAMILY = electra.FAMILY
QUIET = {"log": lambda line: None}


@pytest.fixture(scope="module")
def expected():
    with np.load(FOLDER / "outputs.npz") as arrays:
        return dict(arrays)


def inputs(expected):
    ids, mask = expected["input_ids"], expected["mask"]
    return (
        ids,
        expected["token_type_ids"],
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
        for name in ("hidden", "mlm", "discriminator")
        if f"{head}/{name}" in expected
    }
    if head == "question_answering":
        theirs["qa"] = np.stack([expected[f"{head}/start"], expected[f"{head}/end"]], axis=-1)
    elif head == "multiple_choice":
        theirs["classifier"] = expected[f"{head}/classifier"].T
    elif f"{head}/classifier" in expected:
        theirs["classifier"] = expected[f"{head}/classifier"]
    assert theirs and found.keys() == theirs.keys() | {"hidden"}
    for name, array in theirs.items():
        of_tokens = array.ndim == 3 or name == "discriminator"
        mine, other = (found[name][real], array[real]) if of_tokens else (found[name], array)
        assert np.max(np.abs(mine - other)) < 1e-5 * max(1, np.max(np.abs(other))), name


@pytest.mark.parametrize("head", ["none", "masked_lm", "replaced_tokens"])
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
    assert settings["tokenizer_class"] == "ElectraTokenizer"


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
    arrays = (ids, np.zeros_like(ids), *arrays[2:])  # taggers have no pairs
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


def test_the_activations_of_the_heads():
    """The discriminator's is that of the layers; the others are always the exact gelu."""
    assert FAMILY.masked_lm.activation == "gelu"
    assert [FAMILY.classifiers[f"{x}_classification"].activation for x in ("sequence",)] == ["gelu"]
    assert convert.load(FOLDER / "masked_lm").config.hidden_act == "relu"
    assert convert.load(FOLDER / "sequence_classification").config.hidden_act == "relu"


def test_a_config_without_embedding_size_is_written_with_it():
    config = convert.load(FOLDER / "none").config.replace(embedding_size=0)
    assert FAMILY.write_config(config, "none")["embedding_size"] == 12
    with pytest.raises(UserError, match="ELECTRA has no embedding_projection=True"):
        FAMILY.write_config(config.replace(embedding_projection=True), "none")
    with pytest.raises(UserError, match="summary_type is 'mean'; only 'first' can be read"):
        FAMILY.read_config({"summary_type": "mean"})
    assert FAMILY.read_config({}).embedding_width == 128


@pytest.mark.parametrize("head", ["replaced_tokens", "masked_lm"])
def test_names_of_google_research(head):
    """The names of google-research/electra, whose checkpoints hold both networks."""
    model = convert.load(FOLDER / head)
    kind, scope = (GENERATOR, "generator") if head == "masked_lm" else (TENSORFLOW, "electra")
    tensors = FAMILY.to_files(model.params, model.config, kind, head)
    names = {name for name in tensors if "layer_1" not in name}
    layer = f"{scope}/encoder/layer_0"
    dense = [
        f"{scope}/embeddings_project",
        *(f"{layer}/{x}" for x in ("attention/output/dense", "intermediate/dense", "output/dense")),
        *(f"{layer}/attention/self/{x}" for x in ("query", "key", "value")),
    ]
    norms = [
        "electra/embeddings/LayerNorm",
        *(f"{layer}/{x}LayerNorm" for x in ("attention/output/", "output/")),
    ]
    if head == "masked_lm":
        dense, norms = [*dense, "generator_predictions/dense"], [*norms, "generator_predictions/LayerNorm"]
    else:
        dense += ["discriminator_predictions/dense", "discriminator_predictions/dense_1"]
    assert names == {
        *(f"{x}/{y}" for x in dense for y in ("kernel", "bias")),
        *(f"{x}/{y}" for x in norms for y in ("gamma", "beta")),
        *(f"electra/embeddings/{x}_embeddings" for x in ("word", "token_type", "position")),
        *(["generator_predictions/output_bias"] if head == "masked_lm" else []),
    }
    other = convert.load(FOLDER / ("masked_lm" if head == "replaced_tokens" else "replaced_tokens"))
    both = FAMILY.to_files(
        other.params, other.config, TENSORFLOW if kind == GENERATOR else GENERATOR, other.head
    )
    steps = {"global_step": np.zeros(()), f"{scope}/encoder/layer_0/output/dense/kernel/adam_m": np.zeros(1)}
    found = FAMILY.from_files({**both, **steps, **tensors}, model.config, kind)
    assert not any((found.missing, found.misshapen, found.unknown))
    assert found.params.keys() == model.params.keys()
    assert all(np.array_equal(found.params[name], x) for name, x in model.params.items())


def test_published_parameter_counts():
    """Of encoders, discriminators and classifiers of two classes; of generators."""
    counts = {
        "electra-small-discriminator": (13_483_008, 13_549_057, 13_549_314),
        "electra-base-discriminator": (108_891_648, 109_483_009, 109_483_778),
        "electra-large-discriminator": (334_092_288, 335_142_913, 335_143_938),
        "electra-small-generator": (13_483_008, 13_546_682),
        "electra-base-generator": (33_511_168, 33_740_602),
        "electra-large-generator": (50_999_552, 51_295_290),
    }
    assert counts.keys() == FAMILY.sizes.keys()
    for name, published in counts.items():
        config = EncoderConfig(**{**FAMILY.fixed, **FAMILY.sizes[name]})
        heads = ("none", "replaced_tokens", "sequence_classification")
        heads = ("none", "masked_lm") if "generator" in name else heads
        for head, number in zip(heads, published, strict=True):
            module = FAMILY.module(config, FAMILY.heads[head], head)
            shapes = [one.shape for one in assembled.parameters(module).values()]
            assert sum(int(np.prod(shape)) for shape in shapes) == number, (name, head)
