"""Other vocabularies: rows that move, rows that are made, and the flags that ask for it."""

from pathlib import Path

import jax
import numpy as np
import pytest
from support.conversions import random_model
from support.models import tiny_config

from bert_jax import tokenization
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import surgery, vocabulary
from bert_jax.models import PretrainingModel

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OLD = [
    *SPECIAL,
    *["[unused0]", "[unused1]", "the", "run", "##ning", "##n", "##ing", "vir", "##us", "us", "ing", "!"],
]


def write(path, tokens):
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return str(path)


def load(path, tokens, **settings):
    return tokenization.load(write(path, tokens), **settings)


def model_of(tokenizer, rows=None):
    config = tiny_config(vocab_size=rows or tokenizer.vocab_size, num_hidden_layers=1)
    return random_model(config, tokenizer=tokenizer)


def inputs(ids):
    return dict(
        input_ids=ids,
        token_type_ids=np.zeros_like(ids),
        position_ids=np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape),
        sequence_ids=np.ones_like(ids),
        masked_positions=np.broadcast_to(np.arange(4, dtype=np.int32), (len(ids), 4)),
        cls_positions=np.zeros((len(ids), 1), np.int32),
    )


@pytest.fixture
def model(tmp_path):
    return model_of(load(tmp_path / "old.txt", OLD))


def rows(model, *tokens):
    ids = [model.tokenizer.tokens.index(token) for token in tokens]
    return np.column_stack([model.params[surgery.WORDS][ids], model.params[surgery.BIASES[0]][ids]])


def test_a_permuted_vocabulary_gives_the_same_logits_for_permuted_ids(model, tmp_path):
    order = np.random.default_rng(0).permutation(len(OLD))
    tokenizer = load(tmp_path / "new.txt", [OLD[i] for i in order])
    permuted, report = vocabulary.replace_vocabulary(model, tokenizer)
    assert report.startswith(f"vocabulary: {len(OLD)} -> {len(OLD)} tokens; {len(OLD)} kept, 0 new")
    ids = np.random.default_rng(1).integers(0, len(OLD), (2, 8)).astype(np.int32)
    new_ids = np.argsort(order)[ids].astype(np.int32)
    apply = jax.jit(PretrainingModel(model.config).apply)
    before, nsp_before = apply({"params": nest(model.params)}, **inputs(ids))
    after, nsp_after = apply({"params": nest(permuted.params)}, **inputs(new_ids))
    np.testing.assert_allclose(after, before[..., order], atol=1e-6)
    np.testing.assert_allclose(nsp_after, nsp_before, atol=1e-6)


@pytest.mark.parametrize(
    "token, pieces",
    [
        ("running", ["run", "##ning"]),
        ("virus", ["vir", "##us"]),
        ("##ningus", ["##ning", "##us"]),  # not of "us", which begins words
        ("##nus", ["##n", "##us"]),
        ("run!", ["run", "!"]),  # punctuation is split off
        ("Running", ["run", "##ning"]),  # the old vocabulary is of lower-cased text
        ("[unused9]", None),
        ("☃", None),
    ],
)
def test_a_new_token_is_the_mean_of_its_pieces(model, tmp_path, token, pieces):
    kept = [t for t in OLD if t != "the"] + ["the"]
    tokenizer = load(tmp_path / "new.txt", [*kept, token], lower_case=False)
    new, report = vocabulary.replace_vocabulary(model, tokenizer)
    expected = rows(model, *(pieces or OLD)).mean(axis=0)
    np.testing.assert_allclose(rows(new, token)[0], expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(rows(new, *OLD), rows(model, *OLD))
    assert f"{len(OLD)} kept, 1 new ({int(pieces is None)} of them" in report
    assert new.config.vocab_size == new.tokenizer.vocab_size == len(OLD) + 1


def test_rows_of_padding_are_no_part_of_the_mean_and_are_left_out(model, tmp_path):
    tokenizer = load(tmp_path / "new.txt", [*OLD, "☃"])
    plain, _ = vocabulary.replace_vocabulary(model, tokenizer)
    padded, _ = vocabulary.replace_vocabulary(surgery.pad_vocabulary(model, 64), tokenizer)
    for name, x in plain.params.items():
        np.testing.assert_array_equal(padded.params[name], x)


def test_added_tokens_take_the_unused_places_and_then_the_end(model):
    added = vocabulary.add_tokens(model.tokenizer, ["covid", "the", "##emia", "covid", "lung"])
    assert added == [*SPECIAL, "covid", "##emia", *OLD[7:], "lung"]
    assert vocabulary.add_tokens(model.tokenizer, ["covid"]) == [*SPECIAL, "covid", *OLD[6:]]


def test_byte_level_bpe_replaces_and_is_replaced(model):
    bpe = tokenization.load(Path(__file__).resolve().parents[1] / "testdata" / "bpe")
    new, report = vocabulary.replace_vocabulary(model, bpe)
    assert f"-> {bpe.vocab_size} tokens" in report
    for role, token in bpe.special_tokens.items():
        assert np.array_equal(rows(new, token), rows(model, model.tokenizer.special_tokens[role]))
    assert np.array_equal(rows(new, "\u0120the"), rows(model, "the"))
    # "!" is a word here, and continues one there.
    assert not np.array_equal(rows(new, "!"), rows(model, "!"))
    # A part of a character has no text, and gets the mean of all rows, as [unused] tokens do.
    everything = rows(model, *model.tokenizer.tokens).mean(axis=0)
    assert np.allclose(rows(new, "\u00c3")[0], everything, atol=1e-6)

    again, _ = vocabulary.replace_vocabulary(new, model.tokenizer)
    for token in ("the", *SPECIAL):
        assert np.array_equal(rows(again, token), rows(model, token))
    # Pieces of a word at its start, and inside another: "virus" has pieces after a space, "##us" has not.
    start, inside = (bpe.encode_batch([text])[0] for text in (" vir", "us"))
    table = new.params[surgery.WORDS]
    ids = [again.tokenizer.tokens.index(token) for token in ("vir", "##us")]
    for i, pieces in zip(ids, (start, inside), strict=True):
        assert np.allclose(again.params[surgery.WORDS][i], table[pieces].mean(axis=0), atol=1e-6)
