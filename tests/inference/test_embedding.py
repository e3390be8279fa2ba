import itertools

import jax
import numpy as np
import pytest
from support.embeddings import TEXTS, by_hand, tiny_model

from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError
from bert_jax.inference import embedding, engine
from bert_jax.inference.embedding import Embedder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_states_of_every_layer(model):
    found = Embedder(model, layers=[0, 1, -2, -1], pooling="none").embed(TEXTS[:6])
    for text, states in zip(TEXTS[:6], found, strict=True):
        np.testing.assert_allclose(states, by_hand(model, text)[0].swapaxes(0, 1), atol=2e-5)


def test_the_second_text_of_a_pair_is_the_second_segment(model):
    pairs = [("the cat", "a dog is big"), ("one", ""), ("", "two two")]
    found = Embedder(model, pooling="none").embed(pairs)
    for pair, states in zip(pairs, found, strict=True):
        np.testing.assert_allclose(states[:, 0], by_hand(model, *pair)[0][-1], atol=2e-5)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last", "pooler"])
def test_vectors(model, pooling, normalize):
    vectors = Embedder(model, pooling=pooling, normalize=normalize).embed(TEXTS[:6])
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS[:6], vectors, strict=True):
        states = by_hand(model, text)[0][-1]
        expected = {"mean": states.mean(0), "max": states.max(0), "last": states[-1]}.get(pooling, states[0])
        if pooling == "pooler":
            expected = np.tanh(
                expected @ model.params["pooler/dense/kernel"] + model.params["pooler/dense/bias"]
            )
        expected = expected / np.linalg.norm(expected) if normalize else expected
        np.testing.assert_allclose(vector, expected, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_batches_and_windows_change_nothing(model, pooling, monkeypatch):
    embedder = Embedder(model, pooling=pooling)
    alone = [embedder.embed([text])[0] for text in TEXTS[:6]]
    embedder = Embedder(model, pooling=pooling, batch_tokens=1)
    monkeypatch.setattr(embedding, "_WINDOW_TEXTS", 12)
    monkeypatch.setattr(engine, "_ENCODE_CHUNK", 3)
    computed = []
    together = [features.values for features in embedder.stream(TEXTS, computed.append)]
    assert len(together) == len(TEXTS) == computed[-1]
    assert computed == [8, 12, 19]  # on 8 devices, in windows of 12 and 7
    for i, value in enumerate(together[:18]):
        np.testing.assert_allclose(value, alone[i % 6], atol=1e-5)


def test_a_stream_is_read_no_further_than_a_window(model, monkeypatch):
    monkeypatch.setattr(embedding, "_WINDOW_BYTES", 4 * 16 * 10)
    monkeypatch.setattr(engine, "_ENCODE_CHUNK", 4)
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield "cat"

    stream = Embedder(model).stream(endless())
    for number, _ in zip(range(25), stream, strict=False):
        assert len(read) <= number + 10 + 4


def test_long_texts_lose_their_ends_and_say_so(model):
    embedder = Embedder(model, max_seq_length=8, pooling="none")
    pairs = [("one two three", "a dog"), ("one " * 3, "a big big cat")]
    texts = ["one two three", "the " * 6, "the " * 7, *pairs]
    found = list(embedder.stream(texts))
    assert [features.cut for features in found] == [False, False, True, False, True]
    assert [len(features.token_ids) for features in found] == [5, 8, 8, 8, 8]
    names = [[model.tokenizer.tokens[i] for i in features.token_ids] for features in found]
    assert names[2] == ["[CLS]", *["the"] * 6, "[SEP]"]
    assert names[4] == ["[CLS]", *["one"] * 3, "[SEP]", "a", "big", "[SEP]"]
    np.testing.assert_allclose(found[2].values[:, 0], by_hand(model, "the " * 6)[0][-1], atol=2e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "pooler"])
def test_short_texts_share_rows(model, pooling, monkeypatch):
    words = ["a", "big", "one", "the"]
    texts = [" ".join(words[: 1 + i % 4] * (1 + i % 5)) for i in range(200)]
    texts[::7] = [(text, "the one") for text in texts[::7]]
    layers = (-1,) if pooling == "pooler" else (0, -1)
    embedder = Embedder(model, pooling=pooling, layers=layers, batch_tokens=128)
    computed, compute = [], embedder.engine._compute
    embedder.engine._compute = lambda params, batch: (
        computed.append(batch["input_ids"].shape) or compute(params, batch)
    )
    embedder.engine._hidden_size = 768  # of a model whose attention costs little
    packed = embedder.embed(texts)
    assert len(computed) == 2 and set(computed) == {(jax.device_count(), 128)}
    monkeypatch.setattr(embedder.engine, "_packing", lambda *rest: None)
    np.testing.assert_allclose(packed, embedder.embed(texts), atol=1e-5)


def test_bfloat16_is_close(model):
    mine, exact = (Embedder(model, dtype=dtype).embed(TEXTS[:5]) for dtype in ("bfloat16", "float32"))
    assert mine.dtype == np.float32 and 0 < np.abs(mine - exact).max() < 0.05


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(layers=[4]), "expected different layers from -4 to 3"),
        (dict(layers=[-1, 3]), "expected different layers"),
        (dict(pooling="sum"), "--pooling=sum: expected one of mean, cls, max, last, pooler, none"),
        (dict(pooling="pooler", layers=[1]), "pooler needs the last layer"),
        (dict(pooling="none", normalize=True), "--normalize=true"),
        (dict(max_seq_length=41), "expected 4 to 40 for a tiny model"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_mistakes(model, options, message):
    with pytest.raises(UserError, match=message):
        Embedder(model, **options)


def test_a_model_of_sentences_has_its_own_pooling_length_and_prompts(model):
    prompts = {"query": "the cat "}
    own = model.replace(sentence=SentenceVectors("max", True, 6, prompts))
    texts = ["a dog is big and small", "one"]
    found = Embedder(own).embed(texts, prompts["query"])
    options = dict(pooling="max", normalize=True, max_seq_length=6)
    expected = Embedder(model, **options).embed(["the cat " + text for text in texts])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    other = model.replace(sentence=SentenceVectors(unsupported="the module Dense"))
    with pytest.raises(UserError, match="the module Dense"):
        Embedder(other)
    Embedder(other, pooling="mean")
