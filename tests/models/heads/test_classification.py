import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import packed_batch, tiny_config, tiny_task

from bert_jax.models import ClassificationModel, PretrainingModel
from bert_jax.models.row_inputs import packed_inputs
from bert_jax.parallel.sharding import unbox


@functools.partial(jax.jit, static_argnames="config")
def outputs(params, batch, config, dropout=None):
    inputs = packed_inputs(batch)
    positions = np.zeros((batch["input_ids"].shape[0], 4), np.int32) + np.arange(4, dtype=np.int32)
    return PretrainingModel(config).apply(
        {"params": params},
        batch["input_ids"],
        inputs["token_type_ids"],
        inputs["position_ids"],
        inputs["sequence_ids"],
        positions,
        inputs["cls_positions"],
        deterministic=dropout is None,
        rngs=None if dropout is None else {"dropout": dropout},
    )


def apply(task, params, batch):
    return outputs(params, batch, task.config)


def make(**fields):
    task = tiny_task(**fields)
    return task, unbox(jax.jit(task.init)(jax.random.key(0)))


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.mark.long
def test_scan_unroll_and_remat_change_nothing(model):
    task, params = model
    batch = packed_batch(rows=2)

    @functools.partial(jax.jit, static_argnums=1)
    @jax.grad
    def gradient_of(params, config):
        mlm, nsp = outputs(params, batch, config, jax.random.key(1))
        return jnp.sum(jnp.sin(mlm)) + jnp.sum(jnp.sin(nsp))

    reference = gradient_of(params, task.config)
    for change in (dict(scan_unroll=0), dict(scan_unroll=2), dict(remat="full"), dict(remat="dots")):
        gradient = gradient_of(params, task.config.replace(**change))
        for a, b in zip(jax.tree.leaves(reference), jax.tree.leaves(gradient), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5, err_msg=str(change))


@pytest.mark.long
def test_a_head_of_a_causal_model_reads_the_last_token():
    """By default, where [CLS] is the same for all texts."""
    _, params = make(causal=True)
    ids, types = np.full((2, 8), 5, np.int32), np.zeros((2, 8), np.int32)
    ids[:, 0], ids[0, 3], ids[1, 4] = 2, 7, 7
    real = (np.arange(8) < np.array([[4], [5]])).astype(np.int32)
    places = np.arange(8, dtype=np.int32) * real

    def logits(**fields):
        model = ClassificationModel(tiny_config(causal=True, **fields))
        shapes = jax.jit(model.init)(jax.random.key(1), ids, types, places, real)
        own = unbox(shapes)["params"] | {"encoder": params["encoder"], "pooler": params["pooler"]}
        encode = functools.partial(model.apply, method=lambda each, *inputs: each.encoder(*inputs))
        both = jax.jit(lambda *given: (model.apply(*given), encode(*given)))
        return *map(np.asarray, both({"params": own}, ids, types, places, real)), own

    found, states, own = logits()
    pooled = np.tanh(
        states[[0, 1], [3, 4]] @ own["pooler"]["dense"]["kernel"] + own["pooler"]["dense"]["bias"]
    )
    by_hand = pooled @ own["classifier"]["kernel"] + own["classifier"]["bias"]
    np.testing.assert_allclose(found, by_hand, atol=1e-5)
    np.testing.assert_array_equal(logits(classifier_pooling="last")[0], found)
    first = logits(classifier_pooling="cls")[0]
    np.testing.assert_allclose(first[0], first[1], atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-3
