"""Logits and losses of tiny BERTs that transformers computed, as apple/axlearn's tests keep them.

The file has parameters under axlearn's names, inputs and transformers' outputs (tanh GELU, no dropout). The
bounds are those of axlearn's own comparison with transformers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.checkpoint.leaves import nest
from bert_jax.models import ClassificationModel, Encoder, PretrainingModel, assembled
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives import losses
from bert_jax.objectives.classification import Classification

CONFIG = EncoderConfig(
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    hidden_act="gelu_new",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=20,
)
close = functools.partial(np.testing.assert_allclose, atol=1e-6, rtol=1e-3)

# Modules of theirs by the names here; `{layer}` is layer0, layer1.
_LAYER = "encoder/transformer/{layer}"
MODULES = {
    "encoder/embeddings/layer_norm": "encoder/emb/norm",
    **{
        f"encoder/layers/stack/layer/{name}": f"{_LAYER}/self_attention/attention/i_proj/{name[0]}_proj"
        for name in ("query", "key", "value")
    },
    "encoder/layers/stack/layer/attention_output": f"{_LAYER}/self_attention/attention/o_proj",
    "encoder/layers/stack/layer/attention_norm": f"{_LAYER}/self_attention/norm",
    "encoder/layers/stack/layer/intermediate": f"{_LAYER}/feed_forward/linear1",
    "encoder/layers/stack/layer/output": f"{_LAYER}/feed_forward/linear2",
    "encoder/layers/stack/layer/output_norm": f"{_LAYER}/feed_forward/norm",
    "pooler/dense": "head/pooler/linear",
    "classifier": "head/output",
    "mlm/transform": "head/transform/linear",
    "mlm/transform_norm": "head/transform/norm",
}
PARAMETERS = {
    "encoder/embeddings/word_embeddings": "encoder/emb/token_emb/weight",
    "encoder/embeddings/token_type_embeddings": "encoder/emb/type_emb/weight",
    "encoder/embeddings/position_embeddings": "encoder/emb/pos_emb/weight",
    "mlm/bias": "head/output_bias",
}


@pytest.fixture(scope="module")
def golden(shared_data):
    path = shared_data / "golden" / "axlearn.common.bert_test.npz"
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}

    def case(name):
        mine = {key.split("/", 1)[1]: array for key, array in arrays.items() if key.startswith(f"{name}/")}
        return {
            part: {key.split("/", 1)[1]: array for key, array in mine.items() if key.startswith(part)}
            for part in ("params", "inputs", "outputs")
        }

    return case


def parameters(theirs, groups, classes=2):
    """Ours of axlearn's, every one of which is used."""
    theirs, found = dict(theirs), {}
    for name, shape in assembled.shapes(CONFIG, tuple(groups), classes).items():
        module, leaf = name.rsplit("/", 1)
        source = PARAMETERS.get(name) or f"{MODULES[module]}/{leaf.replace('kernel', 'weight')}"
        if "{layer}" in source:
            value = np.stack([theirs.pop(source.format(layer=f"layer{layer}")) for layer in range(2)])
        else:
            value = theirs.pop(source)
        if name.endswith("attention_output/kernel"):  # theirs is [outputs, heads, inputs]
            value = value.transpose(0, 2, 3, 1)
        found[name] = value.reshape(shape)
    assert not theirs
    return nest(found)


def inputs(case):
    ids = case["inputs"]["input_ids"].astype(np.int32)
    types = case["inputs"].get("token_type_ids", np.zeros_like(ids)).astype(np.int32)
    real = (ids != 0).astype(np.int32)
    if "padding_mask" in case["inputs"]:
        np.testing.assert_array_equal(real, case["inputs"]["padding_mask"])
    return ids, types, np.broadcast_to(np.arange(ids.shape[-1], dtype=np.int32), ids.shape), real


def apply(model, params, *arrays):
    return jax.jit(model.apply)({"params": params}, *arrays)


@pytest.mark.parametrize("name", ["test_for_mlm", "test_for_mlm_with_padding"])
def test_masked_language_model(golden, name):
    case = golden(name)
    params = parameters(case["params"], ["encoder", "mlm"])
    zeros = nest({k: np.zeros(v, np.float32) for k, v in assembled.shapes(CONFIG, ("pooler", "nsp")).items()})
    ids, types, positions, real = inputs(case)
    hidden = apply(Encoder(CONFIG), params["encoder"], ids, types, positions, real)
    model = PretrainingModel(CONFIG)
    logits, _ = apply(model, params | zeros, ids, types, positions, real, positions, positions[:, :1])
    seen = real.astype(bool)
    close(np.asarray(hidden)[seen], case["outputs"]["hidden_states_last"][seen])
    close(np.asarray(logits)[seen], case["outputs"]["logits"][seen])
    labels = case["inputs"]["target_labels"]
    pair = losses.cross_entropy(logits, jnp.asarray(labels, jnp.int32), np.float32(labels != -100))
    close(losses.mean(pair), case["outputs"]["loss"])


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_sequence_classification(golden, classes):
    case = golden(f"test_sequence_classification_{classes}")
    params = parameters(case["params"], ["encoder", "pooler", "classifier"], classes)
    task = Classification(CONFIG, classes, "regression" if classes == 1 else "classification")
    lengths = case["inputs"]["padding_mask"].sum(axis=1).astype(np.int32)
    batch = {
        "input_ids": case["inputs"]["input_ids"],
        "lengths": lengths,
        "first_lengths": lengths,
        "targets": case["inputs"]["target_labels"],
        "weights": np.ones(len(lengths), np.float32),
    }

    @jax.jit
    def logits_and_loss(params, batch):
        prepared = task.prepare(batch, None, False)
        return task.logits(params, prepared), losses.mean(task.loss(params, prepared, None)[0]["task"])

    logits, loss = logits_and_loss(params, batch)
    close(logits, case["outputs"]["logits"])
    close(loss, case["outputs"]["loss"])


def test_multiple_choice(golden):
    """A choice is a row with one logit; the softmax runs over the choices."""
    case = golden("test_multiple_choice_classification")
    params = parameters(case["params"], ["encoder", "pooler", "classifier"], 1)
    flat = [x.reshape(-1, x.shape[-1]) for x in inputs(case)]
    logits = apply(ClassificationModel(CONFIG, num_labels=1), params, *flat).reshape(12, 2)
    close(logits, case["outputs"]["logits"])
    pair = losses.cross_entropy(logits, case["inputs"]["target_labels"], np.ones(12, np.float32))
    close(losses.mean(pair), case["outputs"]["loss"])


def test_labels_that_do_not_exclude_each_other(golden):
    """Two yes-or-no questions per row, each with its own sigmoid cross-entropy."""
    case = golden("test_sequence_binary_classification")
    params = parameters(case["params"], ["encoder", "pooler", "classifier"], 2)
    logits = apply(ClassificationModel(CONFIG), params, *inputs(case))
    close(logits, case["outputs"]["logits"])
    targets = case["inputs"]["target_labels"].astype(np.float32)
    pair = losses.binary_cross_entropy(logits, targets, np.ones(len(targets), np.float32))
    close(losses.mean(pair), case["outputs"]["loss"])
