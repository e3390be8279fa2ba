"""Tokens with the characters that they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import tokenization

WORDS = "cafe ##s x1 istanbul ##x ο ##δ ##ος . , ' ' - a b ab 漢 2 ##2 = é ό e o s ( ) 1 3".split()


@pytest.fixture(scope="module")
def uncased(tmp_path_factory):
    path = tmp_path_factory.mktemp("offsets") / "vocab.txt"
    words = [word for word in dict.fromkeys(WORDS) if word not in ("é", "ό")]
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    return tokenization.load(path)


def pieces(tokenizer, text):
    ((ids, offsets),) = tokenizer.encode_with_offsets([text])
    assert ids.tolist() == tokenizer.encode_batch([text])[0]
    assert ids.dtype == offsets.dtype == np.int32 and offsets.shape == (len(ids), 2)
    return [(tokenizer.tokens[i], text[begin:end]) for i, (begin, end) in zip(ids, offsets, strict=True)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("A (b).", [("a", "A"), ("(", "("), ("b", "b"), (")", ")"), (".", ".")]),
        ("Cafés", [("cafe", "Café"), ("##s", "s")]),
        ("Cafe\u0301s, e\u0301", [("cafe", "Cafe\u0301"), ("##s", "s"), (",", ","), ("e", "e\u0301")]),
        ("\u0130stanbul\u200bx", [("istanbul", "\u0130stanbul"), ("##x", "x")]),
        ("a\u00a0b\x00 a", [("a", "a"), ("b", "b"), ("a", "a")]),
        ("a\x00b", [("ab", "a\x00b")]),
        ("a漢字b", [("a", "a"), ("漢", "漢"), ("[UNK]", "字"), ("b", "b")]),
        ("≠ a", [("=", "≠"), ("a", "a")]),
        ("😀 a 😀b", [("[UNK]", "😀"), ("a", "a"), ("[UNK]", "😀b")]),
        ("", []),
        (" \n ", []),
    ],
    ids=("ascii accents marks dotted-i controls inside ideographs sign emoji empty blank".split()),
)
def test_characters_of_word_pieces(uncased, text, expected):
    assert pieces(uncased, text) == expected


@settings(max_examples=200)
@given(st.text(st.sampled_from("aAbsé\u0301Σοδ 漢(.\u200b\u00a02x😀\u0130"), max_size=20))
def test_the_characters_of_a_token_make_that_token(uncased, text):
    for token, characters in pieces(uncased, text):
        assert characters and characters == characters.strip()
        found = uncased.encode_batch([characters])[0]
        if token != "[UNK]" and not token.startswith("##") and len(found) == 1:
            assert uncased.tokens[found[0]] in (token, "[UNK]")
