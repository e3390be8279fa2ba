"""Distillation: each loss equals its source's, and the teacher is used but never trained."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.distillation import (
    DISTILLATION,
    TEACHER,
    Distillation,
    divergence,
)
from bert_jax.objectives.masked_lm import MaskedLM, at_every_token
from bert_jax.objectives.spans import Spans
from bert_jax.parallel import sharding

pytestmark = pytest.mark.usefixtures("quick_compilation")

FOLDER = pathlib.Path(__file__).parents[1] / "testdata" / "distillation"
TRIPLE = {"logits": 5.0, "task": 2.0, "cosine": 1.0}


@functools.cache
def golden():
    with np.load(FOLDER / "losses.npz") as arrays:
        return dict(arrays)


@functools.cache
def model(name):
    return convert.load(FOLDER / name, log=lambda line: None)


def objective(name, dtype="float32"):
    found = model(name)
    config = found.config.replace(dtype=dtype)
    return MaskedLM(config, None, None, head=found.family.masked_lm, next_sentence_head=False)


def distilled(factors, student="student", dtype="float32", **options):
    return Distillation(objective(student, dtype), objective("teacher", dtype), factors, **options)


def batch(padding=True):
    """Returns the rows of the golden in the format of `MaskedLM.prepare`."""
    arrays = golden()
    ids, mask, labels = (arrays[name] for name in ("ids", "mask", "labels"))
    mask = mask if padding else np.ones_like(mask)
    positions = np.argsort(labels < 0, axis=1, kind="stable")[:, :6]  # masked positions first
    chosen = np.take_along_axis(labels, positions, axis=1)
    found = {
        "input_ids": ids * mask,
        "token_type_ids": 0 * ids,
        "position_ids": np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape),
        "sequence_ids": mask,
        "cls_positions": np.zeros((len(ids), 1), np.int32),
        "masked_positions": np.int32(positions),
        "masked_labels": np.maximum(chosen, 0),
        "masked_weights": np.float32(chosen >= 0),
    }
    return at_every_token(jax.tree.map(jnp.asarray, found))


def compute(found, rows, grad=True, teacher=None, **maps):
    params = nest(model("student" if found.student.config.hidden_size == 8 else "narrow").params)
    if not found.uses_heads:
        params = {"encoder": params["encoder"]}
    if maps:
        params[DISTILLATION] = {name: {"kernel": kernel} for name, kernel in maps.items()}
    joined = {"student": params, TEACHER: teacher or nest(model("teacher").params)}

    def total(params):
        pairs = found.loss(joined | {"student": params}, rows, None)[0]
        means = {name: total / weight for name, (total, weight) in pairs.items()}
        return sum(found.scales[name] * x for name, x in means.items()), means

    return jax.jit(jax.value_and_grad(total, has_aux=True) if grad else total)(params)


@pytest.mark.long
def test_the_triple_loss_and_its_gradient_are_those_of_the_source():
    arrays = golden()
    (total, means), gradient = compute(distilled(TRIPLE), batch())
    for mine, theirs in (("mlm", "mlm"), ("cosine", "cosine"), ("logits", "logits at tokens")):
        assert float(means[mine]) == pytest.approx(float(arrays[f"loss/{theirs}"]), rel=1e-5), mine
    assert float(total) == pytest.approx(float(arrays["loss/total"]), rel=1e-5)
    norm = float(optax.tree.norm(gradient))
    assert norm == pytest.approx(float(arrays["gradient_norm"]), rel=1e-4)
    words = arrays["gradient/embeddings.word_embeddings"]
    np.testing.assert_allclose(gradient["encoder"]["embeddings"]["word_embeddings"], words, atol=2e-5)
    query = gradient["encoder"]["layers"]["stack"]["layer"]["query"]["kernel"][0]
    of_query = arrays["gradient/transformer.layer.0.attention.q_lin"].T
    np.testing.assert_allclose(query.reshape(of_query.shape), of_query, atol=2e-5)


@pytest.mark.long
def test_states_are_compared_as_in_the_source():
    names = {"scores": "scores", "attention": "attention", "hidden": "hidden of equal widths"}
    (_, means), gradient = compute(distilled(dict.fromkeys(names, 1.0)), batch(padding=False))
    expected = {name: float(golden()[f"loss/{theirs}"]) for name, theirs in names.items()}
    assert {name: float(x) for name, x in means.items()} == pytest.approx(expected, rel=1e-5)
    assert set(gradient) == {"encoder"} and float(optax.tree.norm(gradient)) > 0.01
    # The golden uses the teacher's third layer, which is the last one here.
    found, full = distilled({"values": 1.0}), nest(model("teacher").params)
    teacher = found.teacher.config.replace(num_hidden_layers=3)
    found = dataclasses.replace(found, teacher=dataclasses.replace(found.teacher, config=teacher))
    layers = jax.tree.map(lambda x: x[:3], full["encoder"]["layers"])
    full["encoder"]["layers"] = layers
    values = compute(found, batch(padding=False), grad=False, teacher=full)[1]["values"]
    assert float(values) == pytest.approx(float(golden()["loss/values of layer 2"]), rel=1e-5)


@pytest.mark.long
def test_states_of_another_width_are_mapped():
    arrays = golden()
    maps = {name: arrays[f"map/{name}"] for name in ("hidden", "embeddings")}
    found = distilled({"hidden": 1.0, "embeddings": 1.0}, student="narrow")
    (_, means), gradient = compute(found, batch(padding=False), **maps)
    for name in maps:
        assert float(means[name]) == pytest.approx(float(arrays[f"loss/{name}"]), rel=1e-5)
        assert np.all(np.any(np.asarray(gradient[DISTILLATION][name]["kernel"]), axis=0))
    shapes, of_model = (jax.eval_shape(init, jax.random.key(0)) for init in (found.init, found.init_model))
    assert sharding.unbox(shapes)[DISTILLATION]["hidden"]["kernel"].shape == (4, 8)
    assert DISTILLATION not in of_model


@pytest.mark.long
def test_sequences_of_a_packed_row_are_compared_as_in_rows_of_their_own():
    factors = dict.fromkeys(("cosine", "hidden", "scores", "attention", "values", "embeddings"), 1.0)
    found, sizes = distilled(factors), (6, 4)
    alone = {name: x[:2, : sizes[0]] for name, x in batch(padding=False).items() if name in INPUTS}
    alone["sequence_ids"] = jnp.asarray(np.arange(sizes[0]) < np.array(sizes)[:, None], jnp.int32)
    packed = {name: jnp.concatenate([x[0], x[1, : sizes[1]]])[None] for name, x in alone.items()}
    packed["sequence_ids"] = jnp.asarray(np.repeat([1, 2], sizes))[None]
    rows, row = (compute(found, each, grad=False)[1] for each in (alone, packed))
    assert set(row) == set(factors)
    for name, mean in row.items():
        assert float(mean) == pytest.approx(float(rows[name]), rel=1e-5) and float(mean) > 0.01, name


def test_the_divergence_and_its_gradient():
    rng = np.random.default_rng(0)
    logits, targets = (4 * rng.normal(size=(3, 7)).astype(np.float32) for _ in range(2))
    targets[0, :3] = logits[0, :3] = -1e9  # as masked attention
    weights = np.float32([1, 0.5, 0])

    def plain(logits):
        p, q = (jax.nn.log_softmax(x / 3) for x in (targets, logits))
        return 9 * jnp.sum(jnp.sum(jnp.exp(p) * (p - q), -1) * weights)

    mine = jax.jit(jax.value_and_grad(lambda x: divergence(x, targets, weights, 3.0)))(logits)
    theirs = jax.jit(jax.value_and_grad(plain))(logits)
    assert float(mine[0]) == pytest.approx(float(theirs[0]), rel=1e-6)
    np.testing.assert_allclose(mine[1], theirs[1], atol=1e-6)


def test_windows_and_answers_are_compared_as_in_their_own_losses():
    """Windows are weighted as in the task's loss, by the number of texts; start and end count half each."""
    config = model("student").config
    rng = np.random.default_rng(0)
    mine, theirs = rng.normal(size=(2, 3, 5, 2)).astype(np.float32)
    batch = {"weights": np.float32([1, 1, 0]), "row_weights": np.float32([1.5, 0.75, 1])}
    batch["sequence_ids"] = np.ones((3, 5), np.int32)
    kinds = {
        "spans": (Spans(config), [(mine[..., i], theirs[..., i]) for i in range(2)], batch["weights"]),
        "windows": (
            Classification(config, 2, windows=True),
            [(mine[:, 0], theirs[:, 0])],
            batch["weights"] * batch["row_weights"],
        ),
    }
    for name, (task, pairs, weights) in kinds.items():
        found = Distillation(task, task, {"logits": 1.0}, temperature=1.0)
        given = (mine, theirs) if name == "spans" else pairs[0]
        expected = 0.0
        for one, other in pairs:
            p, q = (jax.nn.log_softmax(x) for x in (other, one))
            expected += float(jnp.sum(jnp.sum(jnp.exp(p) * (p - q), axis=-1) * weights)) / len(pairs)
        assert float(found._compare_logits(*given, batch)) == pytest.approx(expected, rel=1e-5), name
        assert float(found.weights(batch)["logits"]) == 2, name
