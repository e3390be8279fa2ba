import functools

import jax
import numpy as np
import pytest
from support.embeddings import tiny_model
from support.models import tiny_config

from bert_jax import convert
from bert_jax.inference import fill_mask
from bert_jax.inference.embedding import Embedder
from bert_jax.models import PretrainingModel, assembled
from bert_jax.models.row_inputs import INPUTS, row_inputs
from bert_jax.parallel import sharding


@pytest.fixture
def filler(tmp_path, monkeypatch):
    model = tiny_model(tmp_path)
    shapes = assembled.shapes(model.config, ("mlm",))
    rng = np.random.default_rng(1)
    head = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    model = model.replace(params={**model.params, **head}, head="masked_lm")
    monkeypatch.setattr(convert, "load", lambda path, log: model)
    return fill_mask.MaskFiller("a checkpoint")


@pytest.mark.long
def test_a_loaded_model_is_filled_as_its_checkpoint_is_and_is_on_the_devices_once(filler):
    model, (text,) = convert.load("a checkpoint", log=print), ["the [MASK] is [MASK]"]
    embedder = Embedder(model, dtype="float32")
    given = fill_mask.MaskFiller(model, dtype="float32", shared_with=embedder.engine)
    assert given([text]) == filler([text])
    placed, shared = given._engine._params, embedder.engine._params
    assert [name for name in placed if name not in shared] == [x for x in placed if x.startswith("mlm/")]
    assert all(placed[name] is shared[name] for name in shared)


def test_each_mask_has_the_most_likely_tokens(filler):
    texts = ["the [MASK] is [MASK]", "[MASK]", "a [MASK] cat"]
    found = filler(texts, top=3)
    assert [len(masks) for masks in found] == [2, 1, 1]
    alone = filler(texts[:1], top=25)[0]
    for mask, best in zip(alone, found[0], strict=True):
        assert [candidate.token for candidate in mask[:3]] == [candidate.token for candidate in best]
        probabilities = [candidate.probability for candidate in mask]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)


def test_a_model_with_a_mask_decoder_is_filled_as_it_was_trained():
    config = tiny_config(position="disentangled", mask_decoder=True)
    model = PretrainingModel(config, next_sentence=False)
    ids = np.random.default_rng(0).integers(5, 100, (2, 16), np.int32)
    lengths, positions = np.array([[16], [9]], np.int32), np.array([[3, 5], [2, 8]], np.int32)
    inputs = row_inputs(ids, lengths)
    given = [*(inputs[name] for name in INPUTS), positions, positions[:, :1]]
    params = sharding.unbox(jax.jit(model.init)(jax.random.key(0), *given)["params"])
    expected = jax.jit(model.apply)({"params": params}, *given)[0]
    logits = jax.jit(functools.partial(fill_mask.logits_at, config=config))(params, ids, lengths, positions)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
