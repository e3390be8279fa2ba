"""Each objective is trained on eight devices by the same step, with dropout and with its batch in parts."""

import functools

import jax
import numpy as np
import optax
import pytest
from support import states
from support.models import SPECIAL, packed_batch, tiny_config, tiny_task

from bert_jax.models.heads.structures import ReplacedTokensHead
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.distillation import Distillation
from bert_jax.objectives.embedding.denoising import DenoisingAutoEncoder
from bert_jax.objectives.embedding.late_interaction import LateInteraction
from bert_jax.objectives.embedding.sentence import SentenceEmbedding
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.replaced_tokens import ReplacedTokens, generator_config
from bert_jax.parallel import sharding
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import make_eval_step, make_train_step

ROWS = 16
SPLIT = (2, 2, 2)  # a mesh on which every axis splits something


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


def replaced_tokens(fields=(), layers=0, **options):
    """ELECTRA's networks, which share embeddings and have projections of their own."""
    sizes = dict(num_hidden_layers=1, hidden_dropout_prob=0.2, embedding_size=24, num_attention_heads=2)
    config, plain = tiny_config(**sizes | dict(fields)), tiny_task()
    generator = generator_config(config, 16, layers)
    masked = MaskedLM(generator, plain.vocabulary, plain.masking, next_sentence_head=False)
    return ReplacedTokens(config, masked, **options)


def deberta():
    """DeBERTa v3's, whose generator has other layers and the mask decoder."""
    fields = dict(position="disentangled", projection_placement="before_norm", type_vocab_size=0)
    return replaced_tokens(fields, layers=2, sharing="gdes", head=ReplacedTokensHead(adds_first=True))


MAKE = {
    "replaced tokens": (replaced_tokens, lambda seed: packed_batch(rows=ROWS, seed=seed)),
    "replaced tokens of DeBERTa": (deberta, lambda seed: packed_batch(rows=ROWS, seed=seed)),
    "distillation": (distillation, lambda seed: packed_batch(rows=ROWS, seed=seed)),
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


@pytest.mark.parametrize("name", ["distillation"])
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
