"""(Pseudo-)log-likelihoods of sentences, beside NumPy's of one masked token at a time."""

from pathlib import Path

import numpy as np
import pytest
from scipy import special
from support.embeddings import of_row, tiny_model

from bert_jax import convert, tokenization
from bert_jax.errors import UserError
from bert_jax.inference import sentence_scores
from bert_jax.inference.sentence_scores import SentenceScorer

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
def test_the_sum_over_tokens_masked_one_at_a_time(score, tmp_path):
    model = make_model(tmp_path)
    found = score(model, SENTENCES)
    wanted = [pseudo_log_likelihood(model, sentence) for sentence in SENTENCES]
    np.testing.assert_allclose(found.log_likelihoods, wanted, rtol=1e-5)
    assert found.tokens.tolist() == [5, 2, 7, 20, 6]
    assert found.unknown.tolist() == [False, False, True, False, False]  # and


def test_a_causal_model_gives_the_log_likelihood(score, tmp_path):
    model = make_model(tmp_path, causal=True)
    wanted = []
    for sentence in SENTENCES:
        row = row_of(model, sentence)
        found = log_probabilities(model, row)
        wanted.append(sum(found[place - 1, row[place]] for place in range(1, len(row) - 1)))
    found = score(model, SENTENCES)
    np.testing.assert_allclose(found.log_likelihoods, wanted, rtol=1e-5)
    assert found.tokens.tolist() == [5, 2, 7, 20, 6]


def test_a_single_sentence_is_no_list_of_characters(score, tmp_path):
    with pytest.raises(UserError, match="sentences is str: expected a list of them"):
        score(make_model(tmp_path), SENTENCES[0])


@pytest.mark.long
def test_sentences_beyond_a_chunk(score, tmp_path, monkeypatch):
    model, done = make_model(tmp_path), []
    together = score(model, SENTENCES * 2)
    monkeypatch.setattr(sentence_scores, "_CHUNK", 3)
    apart = score(model, iter(SENTENCES * 2), on_done=done.append)
    np.testing.assert_allclose(apart.log_likelihoods, together.log_likelihoods, rtol=1e-5)
    assert done == [3, 6, 9, 10] and apart.tokens.tolist() == together.tokens.tolist()


def test_words_of_several_tokens():
    tokenizer = tokenization.load(Path(__file__).resolve().parents[1] / "testdata" / "bpe")
    (ids,) = tokenizer.encode_batch(["Unbelievable, (really) strange."])
    pieces = [tokenizer.spelling(token).strip() for token in ids]
    ends = sentence_scores.word_ends(tokenizer, np.array(ids))
    words = ["".join(pieces[i:end]) for i, end in enumerate(ends) if not i or ends[i - 1] == i]
    assert words == ["Unbelievable", ",", "(", "really", ")", "strange", "."]
    assert len(pieces) > len(words)


def test_mistakes(score, tmp_path):
    model = make_model(tmp_path)
    for sentences, message in (
        (["a dog", "cat " * 50], "more tokens than the 40 positions"),
        (["a dog", " "], "' ' has no words"),
    ):
        with pytest.raises(UserError, match=message):
            score(model, sentences)
    with pytest.raises(UserError, match="a tiny model has no masked LM head"):
        score(tiny_model(tmp_path), ["a dog"])
