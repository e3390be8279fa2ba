"""The protocol carries objectives that are not masked LM or a head: each is small and complete, and is
trained on eight devices by the same step, with dropout and with its batch in parts.
"""

import functools
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import states
from support.models import SPECIAL, packed_batch, tiny_config, tiny_task

from bert_jax.kernels.dropout import dropout
from bert_jax.objectives import losses
from bert_jax.objectives.base import Objective
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.distillation import Distillation
from bert_jax.objectives.embedding.denoising import DenoisingAutoEncoder
from bert_jax.objectives.embedding.late_interaction import LateInteraction
from bert_jax.objectives.embedding.sentence import SentenceEmbedding
from bert_jax.parallel import sharding
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import make_eval_step, make_train_step

WIDTH, CLASSES, RATE = 16, 8, 0.1
ROWS = 16
SPLIT = (2, 2, 2)  # a mesh on which every axis splits something


def boxed(key, shape, names):
    return nn.Partitioned(0.3 * jax.random.normal(key, shape), names=names)


class Linear(Objective):
    """Classes of vectors by a matrix, with dropout on the vectors."""

    def init(self, key):
        return {"kernel": boxed(key, (WIDTH, CLASSES), ("embed", "mlp"))}

    def prepare(self, batch, key, train):
        return batch

    def weights(self, batch):
        return {"task": jnp.float32(batch["x"].shape[0])}

    def logits(self, params, x, rngs):
        x = dropout(x, rngs and rngs["dropout"], RATE if rngs else 0.0)
        return x @ params["kernel"]

    def loss(self, params, batch, rngs):
        ones = jnp.ones(batch["x"].shape[0])
        pair = losses.cross_entropy(self.logits(params, batch["x"], rngs), batch["y"], ones)
        return {"task": pair}, {}

    def predict(self, params, batch):
        return jax.nn.softmax(self.logits(params, batch["x"], None))


class FrozenEncoder(Linear):
    """A head that is trained on a layer that is not."""

    def frozen(self):
        return {"encoder": boxed(jax.random.key(1), (WIDTH, WIDTH), ("embed", "mlp"))}

    def join(self, params, frozen):
        return params | frozen

    def logits(self, params, x, rngs):
        return super().logits(params, jnp.tanh(x @ params["encoder"]), rngs)


class LowRank(Linear):
    """LoRA: a product of two small matrices is added to a frozen one. Only `join` knows."""

    rank, alpha = 2, 4

    def init(self, key):
        return {
            "a": boxed(key, (WIDTH, self.rank), ("embed", None)),
            "b": nn.Partitioned(jnp.zeros((self.rank, CLASSES)), names=(None, "mlp")),
        }

    def frozen(self):
        return super().init(jax.random.key(2))

    def join(self, params, frozen):
        return {"kernel": frozen["kernel"] + self.alpha / self.rank * params["a"] @ params["b"]}


class Sampled(Linear):
    """A network proposes a class at random, another one tells whether it is right: two losses, the second
    with a scale of 50, and samples in training and in evaluation."""

    scales: ClassVar = {"detection": 50.0}
    initial_loss = float(np.log(CLASSES) + 50 * np.log(2))

    def init(self, key):
        first, second = jax.random.split(key)
        detector = {"kernel": boxed(second, (WIDTH + CLASSES, 1), ("embed", None))}
        return {"generator": super().init(first), "detector": detector}

    def prepare(self, batch, key, train):
        def noise(row):
            return jax.random.gumbel(jax.random.fold_in(key, row), (CLASSES,))

        return batch | {"noise": jax.vmap(noise)(batch["row_ids"])}

    def weights(self, batch):
        return dict.fromkeys(("task", "detection"), jnp.float32(batch["x"].shape[0]))

    def loss(self, params, batch, rngs):
        logits = self.logits(params["generator"], batch["x"], rngs)
        proposed = jnp.argmax(jax.lax.stop_gradient(logits) + batch["noise"], axis=-1)
        seen = jnp.concatenate([batch["x"], jax.nn.one_hot(proposed, CLASSES)], axis=-1)
        detected = self.logits(params["detector"], seen, rngs)
        right, ones = (proposed == batch["y"])[:, None].astype(jnp.float32), jnp.ones(len(seen))
        return {
            "task": losses.cross_entropy(logits, batch["y"], ones),
            "detection": losses.binary_cross_entropy(detected, right, ones),
        }, {"proposed": (jnp.sum(proposed).astype(jnp.float32), ones.sum())}


def vectors(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    y = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    return {"x": x, "y": y, "row_ids": np.arange(ROWS, dtype=np.int32)}


def texts(seed):
    batch = packed_batch(rows=ROWS, seed=seed, vocab=101)
    names = ("input_ids", "lengths", "row_ids")
    targets = np.random.default_rng(seed).integers(0, 3, ROWS).astype(np.int32)
    weights = (np.arange(ROWS) < ROWS - 3).astype(np.float32)
    rows = {name: batch[name] for name in names} | {"first_lengths": batch["first_lengths"][:, 0]}
    return rows | {"targets": targets, "weights": weights}


def triples(seed):
    """Groups of an anchor, a positive and a negative, of which two groups have the same anchor."""
    rng = np.random.default_rng(seed)
    batch = packed_batch(rows=3 * ROWS, seed=seed, vocab=101)
    names = ("input_ids", "lengths", "row_ids")
    rows = {name: batch[name] for name in names} | {"first_lengths": batch["lengths"]}
    rows["weights"] = np.repeat(np.arange(ROWS) < ROWS - 3, 3).astype(np.float32)
    rows = {name: x.reshape(ROWS, 3, *x.shape[1:]) for name, x in rows.items()}
    rows["texts"] = np.arange(3 * ROWS, dtype=np.int32).reshape(ROWS, 3)
    rows["texts"][5, 0] = rows["texts"][2, 0]
    rows["targets"] = np.repeat(rng.integers(0, 3, (ROWS, 1)).astype(np.int32), 3, axis=1)
    return rows


def sentences(kind, **more):
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.2)
    return SentenceEmbedding(config, kind, group=3, **more)


def late_interaction():
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.2)
    return LateInteraction(config, size=8, query_length=16, group=3, skipped=(7, 8, 9))


def denoising():
    return DenoisingAutoEncoder(tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.2), SPECIAL)


def several_texts(seed):
    """Packed rows, as the loader of a fine-tuning makes them."""
    batch = packed_batch(rows=ROWS, seed=seed)
    names = ("input_ids", "lengths", "starts", "first_lengths")
    return {name: batch[name] for name in names} | {"weights": np.float32(batch["first_lengths"] > 0)}


def distillation():
    """A student learns the masks, and a frozen teacher's logits and states."""
    student, teacher = tiny_task(num_hidden_layers=1, hidden_dropout_prob=0.2), tiny_task(num_hidden_layers=1)
    params = jax.device_get(sharding.unbox(jax.jit(teacher.init)(jax.random.key(7))))
    return Distillation(student, teacher, {"logits": 5.0, "task": 2.0, "cosine": 1.0}, teacher_params=params)


MAKE = {
    "distillation": (distillation, lambda seed: packed_batch(rows=ROWS, seed=seed)),
    "frozen encoder": (FrozenEncoder, vectors),
    "LoRA": (LowRank, vectors),
    "sampled": (Sampled, vectors),
    "classification": (lambda: Classification(tiny_config(num_hidden_layers=1), 3), texts),
    "contrastive": (lambda: sentences("contrastive", symmetric=True, sizes=(8,)), triples),
    "late interaction": (late_interaction, triples),
    "classes of pairs": (lambda: sentences("classes", num_labels=3), triples),
    "denoising": (denoising, texts),
    "denoising, packed": (denoising, several_texts),
}


@functools.cache
def objective_and_batches(name):
    make, batches = MAKE[name]
    return make(), batches


OPTIMIZER = optax.scale_by_adam()


@functools.cache
def begin(name):
    """A state on the host."""
    objective, _ = objective_and_batches(name)
    return jax.device_get(init_state(objective, OPTIMIZER, sharding.make_mesh(*SPLIT), 0))


@functools.cache
def place(name, sizes):
    """The mesh, and the shardings of a state on it."""
    objective, _ = objective_and_batches(name)
    mesh = sharding.make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    abstract = abstract_state(objective, OPTIMIZER, mesh)
    return mesh, jax.tree.map(lambda leaf: leaf.sharding, abstract)


@functools.cache
def train(name, parts=1, sizes=SPLIT):
    """Two steps: the metrics of each, and the state after them."""
    objective, batches = objective_and_batches(name)
    mesh, shardings = place(name, sizes)
    state = jax.device_put(begin(name), shardings)
    step = make_train_step(objective, OPTIMIZER, lambda step: 1e-3, parts)
    step, lines = sharding.jit_train_step(step, mesh, shardings), []
    for number in range(2):
        state, metrics = step(state, sharding.global_batch(batches(number), mesh), np.uint32(3))
        lines.append({name: float(value) for name, value in metrics.items()})
    return lines, state


@functools.cache
def evaluate(name, sizes=SPLIT):
    """The sums of an evaluation of a whole batch after the two steps."""
    objective, batches = objective_and_batches(name)
    mesh, shardings = place(name, sizes)
    _, state = train(name, sizes=sizes)
    step = sharding.jit_eval_step(make_eval_step(objective), mesh, shardings)
    frozen = () if state.frozen is None else (state.frozen,)
    found = step(state.params, sharding.global_batch(batches(9), mesh), np.int32(0), np.uint32(3), *frozen)
    return {name: float(total) for name, (total, _) in found.items()}


@pytest.mark.long
@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("name", [name for name in MAKE if name != "distillation"])
def test_parts_are_the_whole_batch(name, parts):
    whole, whole_state = train(name)
    lines, state = train(name, parts)
    states.assert_close_runs((lines, state.params), (whole, whole_state.params))


@pytest.mark.long
@pytest.mark.parametrize("name", MAKE)
def test_devices_that_add_up_their_own_rows_are_one_device(name):
    alone, state_of_one = train(name, sizes=(1, 1, 1))
    lines, state = train(name, sizes=(8, 1, 1))
    states.assert_close_runs((lines, state.params), (alone, state_of_one.params))


@pytest.mark.long
@pytest.mark.parametrize("name", MAKE)
def test_the_loss_is_the_scaled_sum(name):
    objective, _ = objective_and_batches(name)
    evaluation = evaluate(name)
    for line in train(name)[0]:
        assert not line["skipped"]
        names = [key.removesuffix("_loss") for key in line if key.endswith("_loss")]
        assert {f"{key}_loss" for key in names} <= evaluation.keys()
        total = sum(objective.scales.get(key, 1) * line[f"{key}_loss"] for key in names)
        assert set(objective.scales) <= set(names) and line["loss"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("name", ["distillation", "frozen encoder", "LoRA"])
def test_what_is_frozen_is_sharded_and_never_changes(name):
    objective, _ = objective_and_batches(name)
    begun, (_, state) = begin(name), train(name)
    given = sharding.unbox(objective.frozen())
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.frozen), jax.device_get(given))
    assert any("tensor" in str(leaf.sharding.spec) for leaf in jax.tree.leaves(state.frozen))
    changed = jax.tree.map(lambda new, old: bool(np.any(np.asarray(new) != old)), state.params, begun.params)
    assert any(jax.tree.leaves(changed))
    sizes = [leaf.size for leaf in jax.tree.leaves(state.opt_state)]
    assert sum(sizes) == 1 + 2 * sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert "frozen" not in str(jax.tree_util.tree_structure((state.params, state.opt_state)))


def test_low_rank_matrices_start_as_the_frozen_one():
    objective, mesh = LowRank(), sharding.make_mesh(2, 2, 2)
    state = init_state(objective, optax.identity(), mesh, 0)
    joined = jax.device_get(objective.join(state.params, state.frozen))
    np.testing.assert_array_equal(joined["kernel"], np.asarray(objective.frozen()["kernel"].value))
    _, trained = train("LoRA")
    assert np.any(np.asarray(trained.params["b"])) and trained.params["b"].shape == (2, CLASSES)


@pytest.mark.long
@pytest.mark.parametrize("name", ["denoising", "denoising, packed"])
def test_deletions_depend_on_the_row_and_not_on_the_mesh(name):
    assert evaluate(name) == pytest.approx(evaluate(name, (1, 1, 1)), rel=1e-5)
    for mine, reference in zip(train(name, sizes=(1, 1, 1))[0], train(name)[0], strict=True):
        assert mine["task_loss"] == pytest.approx(reference["task_loss"], rel=1e-5)


def test_samples_depend_on_the_row_and_not_on_the_mesh():
    assert evaluate("sampled")["proposed"] == evaluate("sampled", (1, 1, 1))["proposed"]
    for mine, reference in zip(train("sampled", sizes=(1, 1, 1))[0], train("sampled")[0], strict=True):
        assert mine["proposed"] == reference["proposed"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["contrastive", "late interaction"])
def test_texts_are_compared_with_those_of_all_devices(name):
    alone = train(name, sizes=(1, 1, 1))[0]
    for mine, reference in zip(train(name)[0], alone, strict=True):
        for key in ("loss", "accuracy", "grad_norm"):
            assert mine[key] == pytest.approx(reference[key], rel=3e-5), key


def test_a_scale_of_a_loss_that_there_is_not():
    class Misspelled(Linear):
        scales: ClassVar = {"tsak": 2.0}

    objective, mesh = Misspelled(), sharding.make_mesh(2, 2, 2)
    state = init_state(objective, optax.identity(), mesh, 0)
    step = make_train_step(objective, optax.identity(), lambda step: 1.0)
    with pytest.raises(ValueError, match="tsak"):
        jax.eval_shape(step, state, vectors(0), np.uint32(0))
