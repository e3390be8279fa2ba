import functools

import jax
import numpy as np
import pytest
from support.models import tiny_config, tiny_task

from bert_jax.models import ClassificationModel
from bert_jax.parallel.sharding import unbox


@pytest.mark.long
def test_a_head_of_a_causal_model_reads_the_last_token():
    """By default, where [CLS] is the same for all texts."""
    params = unbox(jax.jit(tiny_task(causal=True).init)(jax.random.key(0)))
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
