"""Outputs, losses and gradients of small random BERTs, as transformers computed them.

tests/testdata/make_goldens.py wrote the models and what they compute, in float32 and without dropout.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import convert
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert.families import bert
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.models import Encoder, Pooler, PretrainingModel
from bert_jax.models.encoder import Embeddings
from bert_jax.objectives import losses
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.objectives.spans import Spans
from bert_jax.objectives.tagging import Tagging

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "goldens"
CHOICES = 2
close = functools.partial(np.testing.assert_allclose, atol=2e-5, rtol=2e-5)


class Golden:
    """A model, what it was given and what transformers computed."""

    def __init__(self, name):
        model = convert.load(str(FOLDER / name))
        self.head, self.params = model.head, nest(model.params)
        self.config = model.config.replace(dtype="float32")
        with np.load(FOLDER / name / "golden.npz") as file:
            self.arrays = {key: file[key] for key in file.files}
        self.real = self.arrays["in/attention_mask"] > 0
        self.lengths = np.int32(self.real.sum(axis=1))
        self.batch = {
            "input_ids": self.arrays["in/input_ids"],
            "lengths": self.lengths,
            "first_lengths": self.lengths - np.int32(self.arrays["in/token_type_ids"].sum(axis=1)),
            "weights": np.ones(len(self.lengths), np.float32),
        }

    @property
    def inputs(self):
        ids, types = self.arrays["in/input_ids"], self.arrays["in/token_type_ids"]
        return ids, types, np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape), self.real + 0

    def expect(self, name, found, where=None):
        expected = self.arrays[f"out/{name}"]
        if where is not None:
            expected, found = expected[where], np.asarray(found)[where]
        close(found, expected, err_msg=name)

    def check_gradient(self, gradient):
        """Compares every parameter's. The biases of keys change nothing: theirs is rounding."""
        ours = bert.FAMILY.to_files(flatten(gradient), self.config, HUGGINGFACE)
        names = [name.removeprefix("grad/") for name in self.arrays if name.startswith("grad/")]
        assert sorted(names) == sorted(ours)
        for name in names:
            expected = self.arrays[f"grad/{name}"]
            scale = 1e-5 if name.endswith("key.bias") else 2e-5 * max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=scale, err_msg=name)


def apply(model, params, *arrays, **options):
    return jax.jit(functools.partial(model.apply, **options))({"params": params}, *arrays)


@pytest.mark.long
@pytest.mark.parametrize("name", ["encoder", "pretraining-tanh", "masked-lm-relu"])
def test_hidden_states(name):
    golden = Golden(name)
    encoder, layers = golden.params["encoder"], golden.config.num_hidden_layers
    found = [apply(Embeddings(golden.config), encoder["embeddings"], *golden.inputs[:3], deterministic=True)]
    for count in range(1, layers + 1):
        first = encoder | {"layers": jax.tree.map(lambda leaf, n=count: leaf[:n], encoder["layers"])}
        found.append(apply(Encoder(golden.config.replace(num_hidden_layers=count)), first, *golden.inputs))
    for layer in range(layers + 1):
        close(
            np.asarray(found[layer])[golden.real],
            golden.arrays["out/hidden_states"][layer][golden.real],
            err_msg=f"layer {layer}",
        )


def test_pooled_states():
    golden = Golden("encoder")
    hidden = apply(Encoder(golden.config), golden.params["encoder"], *golden.inputs)
    golden.expect("last_hidden_state", hidden, golden.real)
    golden.expect("pooler_output", apply(Pooler(golden.config), golden.params["pooler"], hidden[:, 0]))


@pytest.mark.long
@pytest.mark.parametrize("name", ["pretraining", "pretraining-tanh"])
def test_pretraining(name):
    golden = Golden(name)
    positions = golden.inputs[2]
    mlm, nsp = apply(
        PretrainingModel(golden.config), golden.params, *golden.inputs, positions, positions[:, :1]
    )
    golden.expect("prediction_logits", mlm, golden.real)
    golden.expect("seq_relationship_logits", nsp[:, 0])

    labels = golden.arrays["label/labels"]
    vocabulary = Vocabulary(golden.config.vocab_size, 5, (0, 3, 4))
    objective = MaskedLM(golden.config, vocabulary, MaskingOptions())
    batch = golden.batch | {
        "starts": np.zeros((len(labels), 1), np.int32),
        "first_lengths": golden.batch["first_lengths"][:, None],
        "next_sentence_labels": golden.arrays["label/next_sentence_label"][:, None],
        "masked_positions": positions,
        "masked_labels": np.maximum(labels, 0),
        "masked_weights": np.float32(labels >= 0),
    }

    @jax.jit
    def loss(params):
        pairs, _ = objective.loss(params, objective.prepare(batch, jax.random.key(0), True), None)
        return sum(losses.mean(pair) for pair in pairs.values())

    value, gradient = jax.value_and_grad(loss)(golden.params)
    golden.expect("loss", value)
    golden.check_gradient(gradient)


def test_masked_language_model():
    golden = Golden("masked-lm-relu")
    positions = golden.inputs[2]
    zeros = {
        "pooler": {"dense": {"kernel": jnp.zeros((16, 16)), "bias": jnp.zeros(16)}},
        "nsp": {"kernel": jnp.zeros((16, 2)), "bias": jnp.zeros(2)},
    }
    mlm, _ = apply(
        PretrainingModel(golden.config), golden.params | zeros, *golden.inputs, positions, positions[:, :1]
    )
    golden.expect("logits", mlm, golden.real)
    labels = golden.arrays["label/labels"]
    pair = losses.cross_entropy(mlm, jnp.maximum(labels, 0), np.float32(labels >= 0))
    golden.expect("loss", losses.mean(pair))


def make_objective(name, golden):
    """(objective, the targets of a batch)."""
    labels = golden.arrays.get("label/labels")
    config = golden.config
    return {
        "classification": lambda: (Classification(config, 3), {"targets": labels}),
        "regression": lambda: (Classification(config, 1, "regression"), {"targets": labels}),
        "multilabel": lambda: (Classification(config, 3, "multilabel"), {"targets": labels}),
        "tagging": lambda: (Tagging(config, 5), {"tags": labels}),
        "questions": lambda: (
            Spans(config),
            {
                "starts": golden.arrays["label/start_positions"],
                "ends": golden.arrays["label/end_positions"],
            },
        ),
        "multiple-choice": lambda: (
            MultipleChoice(config, CHOICES),
            {"targets": np.repeat(labels[:, None], CHOICES, axis=1)},
        ),
    }[name]()


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["classification", "regression", "multilabel", "tagging", "questions", "multiple-choice"]
)
def test_task(name):
    golden = Golden(name)
    objective, targets = make_objective(name, golden)
    batch = golden.batch | targets
    if name == "multiple-choice":
        for key, value in golden.batch.items():
            batch[key] = value.reshape(-1, CHOICES, *value.shape[1:])

    def logits_and_loss(params):
        prepared = objective.prepare(batch, None, False)
        pairs, _ = objective.loss(params, prepared, None)
        return losses.mean(pairs["task"]), objective.logits(params, prepared)

    (loss, logits), gradient = jax.jit(jax.value_and_grad(logits_and_loss, has_aux=True))(golden.params)
    if name == "questions":
        golden.expect("start_logits", logits[..., 0], golden.real)
        golden.expect("end_logits", logits[..., 1], golden.real)
    else:
        golden.expect("logits", logits, golden.real if name == "tagging" else None)
    if name != "questions":  # transformers' softmax of answers is over the padding too
        golden.expect("loss", loss)
        golden.check_gradient(gradient)
