"""Scores of sentences, compared with NumPy's of one masked token at a time, and minimal pairs."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import special
from support.embeddings import of_row, tiny_model

from bert_jax import convert, tokenization
from bert_jax.errors import UserError
from bert_jax.inference import minimal_pairs
from bert_jax.inference.minimal_pairs import Pair, SentenceScorer

SENTENCES = ["the cat is big.", "a dog", "dogs and cats $ 5", "blue " * 20, "the dogs is small ."]


def make_model(directory, **fields):
    return tiny_model(directory, ("encoder", "mlm"), "masked_lm", **fields)


@pytest.fixture
def score(monkeypatch):
    def run(model, sentences, **options):
        monkeypatch.setattr(convert, "load", lambda path, log: model)
        return SentenceScorer("a checkpoint")(sentences, **options)

    return run


def log_probabilities(model, row):
    """Of each token of the vocabulary at each position: [L, V]."""
    params = {name: x.astype(np.float64) for name, x in model.params.items()}
    x = of_row(model, row, [0] * len(row))[0][-1]
    x = x @ params["mlm/transform/kernel"] + params["mlm/transform/bias"]
    x *= 0.5 * (1 + special.erf(x / np.sqrt(2)))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + model.config.layer_norm_eps)
    x = x * params["mlm/transform_norm/scale"] + params["mlm/transform_norm/bias"]
    logits = x @ params["encoder/embeddings/word_embeddings"].T + params["mlm/bias"]
    return logits - special.logsumexp(logits, axis=-1, keepdims=True)


def row_of(model, sentence):
    tokenizer = model.tokenizer
    (ids,) = tokenizer.encode_batch([sentence])
    return [tokenizer.cls_id, *ids, tokenizer.sep_id]


def pseudo_log_likelihood(model, sentence):
    row, total = row_of(model, sentence), 0.0
    for place in range(1, len(row) - 1):
        masked = list(row)
        masked[place] = model.tokenizer.mask_id
        later = place + 1
        while model.tokenizer.tokens[row[later]] == "##s":  # the only piece that continues a word
            masked[later] = model.tokenizer.mask_id
            later += 1
        total += log_probabilities(model, masked)[place, row[place]]
    return total


@pytest.mark.long
def test_the_sum_over_tokens_masked_one_at_a_time(score, tmp_path, monkeypatch):
    monkeypatch.setattr(minimal_pairs, "_CHUNK", 3)
    model = make_model(tmp_path)
    found = score(model, SENTENCES)
    wanted = [pseudo_log_likelihood(model, sentence) for sentence in SENTENCES]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_causal_model_gives_the_log_likelihood(score, tmp_path):
    model = make_model(tmp_path, causal=True)
    wanted = []
    for sentence in SENTENCES:
        row = row_of(model, sentence)
        found = log_probabilities(model, row)
        wanted.append(sum(found[place - 1, row[place]] for place in range(1, len(row) - 1)))
    found = score(model, SENTENCES)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_words_of_several_tokens():
    tokenizer = tokenization.load(Path(__file__).resolve().parents[1] / "testdata" / "bpe")
    (ids,) = tokenizer.encode_batch(["Unbelievable, (really) strange."])
    pieces = [tokenizer.spelling(token).strip() for token in ids]
    ends = minimal_pairs.word_ends(tokenizer, np.array(ids))
    words = ["".join(pieces[i:end]) for i, end in enumerate(ends) if not i or ends[i - 1] == i]
    assert words == ["Unbelievable", ",", "(", "really", ")", "strange", "."]
    assert len(pieces) > len(words)


PAIRS = [
    Pair("length", "a b", "a b c"),
    Pair("length", "a b c", "a b"),
    Pair("tie", "x", "y"),
    Pair("length", "a b c d ?", "a b"),
]


def shorter_is_better(sentences, on_done):
    return -np.array([len(sentence.split()) for sentence in sentences], np.float64)


def test_accuracies_and_files_of_pairs(tmp_path):
    scores, summary = minimal_pairs.evaluate(shorter_is_better, PAIRS)
    assert scores.tolist() == [[-2, -3], [-3, -2], [-1, -1], [-5, -2]]
    assert summary == {
        "length": {"accuracy": pytest.approx(1 / 3), "pairs": 3},
        "tie": {"accuracy": 0.5, "pairs": 1},
        "all": {"accuracy": 0.375, "pairs": 4},
    }
    path = tmp_path / "pairs.jsonl"
    rows = [{"UID": p.phenomenon, "sentence_good": p.good, "sentence_bad": p.bad, "x": 1} for p in PAIRS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert minimal_pairs.read(str(path)) == PAIRS
    for content in ("", "x\n", json.dumps(rows[0] | {"sentence_bad": " "}) + "\n"):
        path.write_text(content)
        with pytest.raises(UserError):
            minimal_pairs.read(str(path))


def test_the_generated_pairs_are_always_the_same():
    pairs = minimal_pairs.generate()
    assert len(set(pairs)) == len(pairs) == 606
    digest = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    assert digest == "8a3d3edf4021b1d2af2dd1e26514804a9a83f70e8fe71b56cccec094ce963207"
