"""Every family and head, compared with transformers on the output of tests/testdata/make_families.py.

BERT has more goldens, which tests/models/test_goldens.py checks.
"""

import functools
import json
import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import convert, tasks
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import conversion, parity
from bert_jax.convert.families import FAMILIES
from bert_jax.models import Encoder, parameters
from bert_jax.tasks import fields as task_fields

pytestmark = pytest.mark.usefixtures("quick_compilation")

TESTDATA = pathlib.Path(__file__).parents[2] / "testdata"
# The tokenizer class of each family, and whether it returns token types.
TOKENIZERS = {
    "albert": ("AlbertTokenizer", True),
    "deberta-v2": ("PreTrainedTokenizerFast", True),
    "distilbert": ("DistilBertTokenizer", False),
    "electra": ("ElectraTokenizer", True),
    "modernbert": ("BertTokenizer", False),  # for the vocabulary used here
    "roberta": ("RobertaTokenizer", False),
}
CASES = [
    (name, head)
    for name in TOKENIZERS
    for head in FAMILIES[name].heads
    if (name, head) != ("deberta-v2", "replaced_tokens")  # transformers has no class with this head
]
OWN = ("modernbert", "deberta-v2")
# Cases whose layers differ from the rest of their family in number, order, sharing or width.
OTHER_LAYERS = [
    *((name, head) for name, head in CASES if name in OWN or head in ("none", "masked_lm")),
    *(("albert", head) for head in ("pretraining", "token_classification")),
    ("electra", "replaced_tokens"),
]
FINE_TUNED = {
    "sequence_classification": "classification",
    "token_classification": "tagging",
    "question_answering": "squad",
    "multiple_choice": "multiple_choice",
}
OUTPUTS = ("hidden", "pooled", "mlm", "nsp", "discriminator", "classifier")


@functools.cache
def golden(name, head):
    """Returns the model, the inputs of its module, and the outputs of transformers."""
    with np.load(TESTDATA / name / "outputs.npz") as arrays:
        found = dict(arrays)
    ids, mask = found["input_ids"], found["mask"]
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    types = found.get("token_type_ids", np.zeros_like(ids))
    model = convert.load(TESTDATA / name / head)
    assert (model.family, model.head) == (FAMILIES[name], head)
    outputs = {key.removeprefix(f"{head}/"): x for key, x in found.items() if key.startswith(f"{head}/")}
    return model, (ids, types, positions, mask), outputs


# Models with equal modules share one program.
@functools.partial(jax.jit, static_argnums=0)
def apply(module, params, *arrays):
    return module.apply({"params": params}, *arrays)


@functools.partial(jax.jit, static_argnums=0)
def apply_every_layer(encoder, params, *arrays):
    method = functools.partial(Encoder.every_layer, collect=lambda x: x)
    return encoder.apply({"params": params}, *arrays, method=method)


def compute(model, arrays):
    module = model.module.clone(config=model.config.replace(dtype="float32"))
    return apply(module, nest(model.params), *arrays)


def close(found, expected):
    return np.max(np.abs(found - expected)) < 2e-5 * max(1, np.max(np.abs(expected)))


@pytest.mark.parametrize(("name", "head"), CASES)
def test_outputs_are_those_of_transformers(name, head):
    model, arrays, expected = golden(name, head)
    theirs = {"hidden": expected["states"][-1]} | {x: expected[x] for x in OUTPUTS if x in expected}
    if head == "question_answering":
        theirs["qa"] = np.stack([expected["start"], expected["end"]], axis=-1)
    elif head == "multiple_choice":
        theirs["classifier"] = expected["classifier"].T
    found = {name: np.asarray(x) for name, x in compute(model, arrays).items()}
    assert found.keys() - theirs.keys() <= {"pooled"} and theirs.keys() <= found.keys()
    real = arrays[-1] > 0
    for output, array in theirs.items():
        of_tokens = array.shape[:2] == real.shape
        assert close(*((x[real] if of_tokens else x) for x in (found[output], array))), output


@pytest.mark.parametrize(("name", "head"), OTHER_LAYERS)
def test_every_hidden_state_is_that_of_transformers(name, head):
    model, arrays, expected = golden(name, head)
    encoder = Encoder(model.config.replace(dtype="float32"))
    states = apply_every_layer(encoder, nest(model.params)["encoder"], *arrays)
    assert len(states) == len(expected["states"]) == model.config.num_hidden_layers + 1
    real = arrays[-1] > 0
    assert close(np.asarray(states)[:, real], expected["states"][:, real])


@pytest.mark.parametrize(("name", "head"), CASES)
def test_a_folder_is_written_again_with_the_same_tensors(tmp_path, name, head):
    folder, family = TESTDATA / name / head, FAMILIES[name]
    conversion.convert(str(folder), str(tmp_path / "run"), "bert_jax", log=lambda line: None)
    conversion.convert(str(tmp_path / "run"), str(tmp_path / "out"), "huggingface", log=lambda line: None)
    before, after = (load_file(x / "model.safetensors") for x in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    theirs, ours = (json.loads((x / "config.json").read_text()) for x in (folder, tmp_path / "out"))
    # A model without local layers has no values for these fields and keeps the defaults.
    free = {"rope_parameters", "local_rope_theta"} if not golden(name, head)[0].config.local_window else set()
    # The special ids in this model's config differ from its vocabulary.
    free |= {*family.special_ids} if name == "modernbert" else set()
    compared = ours.keys() & theirs.keys() - {"dtype", "pad_token_id", "problem_type", "label2id"} - free
    assert not {field: (ours[field], theirs[field]) for field in compared if ours[field] != theirs[field]}
    assert {*family.constants, family.activation, "architectures", "model_type"} <= ours.keys()
    assert family.read_config(ours) == family.read_config(theirs)
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    tokenizer_class, has_types = TOKENIZERS[name]
    assert settings["tokenizer_class"] == tokenizer_class
    types = ["token_type_ids"] if has_types else []
    expected = ["input_ids", *types, "attention_mask"]
    assert settings.get("model_input_names", ["input_ids", "token_type_ids", "attention_mask"]) == expected
    for file in ("spiece.model", "spm.model", "vocab.txt", "vocab.json", "merges.txt"):
        assert (
            not (folder / file).exists()
            or (folder / file).read_bytes() == (tmp_path / "out" / file).read_bytes()
        )


@pytest.mark.parametrize(("name", "head"), [case for case in CASES if case[1] in FINE_TUNED])
def test_a_fine_tuned_model_has_the_heads_of_transformers(name, head):
    """The model has exactly the tensors of transformers' class and computes what the exported model does."""
    model, (ids, types, *rest), _ = golden(name, head)
    task = FINE_TUNED[head]
    spec, config = tasks.get(task), task_fields.default_config(task=task)
    config.max_seq_length, config.max_query_length, config.task = ids.shape[1], 4, task
    if task == "multiple_choice":
        config.data.choices = "first,second"
    labels = "abc"[: model.classes or 2]
    made = spec.task(task_fields.of_task(config), spec, labels, model.tokenizer, model.config)
    objective = made.objective()
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    assert parameters.parameter_shapes(boxed) == {name: x.shape for name, x in model.params.items()}
    assert set(objective.new_groups) == set(model.groups) - {"encoder", "pooler"}
    mask = rest[-1]
    batch = {"input_ids": ids, "lengths": mask.sum(-1), "first_lengths": mask.sum(-1)}
    batch |= {"weights": np.ones(len(ids), np.float32)}
    if head == "multiple_choice":
        batch = {name: x[None] for name, x in batch.items()}
    logits = np.asarray(jax.jit(objective.logits)(nest(model.params), objective.prepare(batch, None, False)))
    exported = compute(model, (ids, np.zeros_like(types), *rest))[objective.classifier.name]
    ours, theirs = (parity.without_padding({"it": np.asarray(x)}, mask)["it"] for x in (logits, exported))
    assert np.allclose(ours.reshape(theirs.shape), theirs, atol=1e-5)
