"""Byte-level BPE: the ids that transformers gave to texts (tests/testdata/make_bpe.py), and decoding."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import tokenization
from bert_jax.tokenization import byte_bpe, templates

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "bpe"
GOLDEN = json.loads((FOLDER / "tokens.json").read_text())


@functools.cache
def _golden_tokenizer():
    return tokenization.load(FOLDER)


@pytest.fixture(scope="module")
def tokenizer():
    return _golden_tokenizer()


@pytest.fixture
def content():
    """The content of a tokenizer.json with the golden vocabulary."""
    return json.loads(Path(byte_bpe.joined(FOLDER)).read_text("utf-8"))


def loaded(content, path):
    path.write_text(json.dumps(content), "utf-8")
    return tokenization.load(path)


def test_ids_and_offsets(tokenizer):
    assert tokenizer.encode_batch(GOLDEN["texts"]) == GOLDEN["ids"]
    found = tokenizer.encode_with_offsets(GOLDEN["texts"])
    assert [ids.tolist() for ids, _ in found] == GOLDEN["ids"]
    assert [offsets.tolist() for _, offsets in found] == GOLDEN["offsets"]
    assert all(ids.dtype == offsets.dtype == np.int32 for ids, offsets in found)


def test_a_mask_includes_the_space_before_it(tokenizer):
    found = tokenizer.encode_batch(GOLDEN["masked"], allow_special=["<mask>"])
    assert found == GOLDEN["masked_ids"]


def test_words_and_pairs(tokenizer):
    words = tokenizer.encode_batch([tokenizer.after_space(word) for word in GOLDEN["words"]])
    assert [i for word in words for i in word] == GOLDEN["word_ids"]
    for text, spaced in {"a": " a", " a": " a", "\u3000a": "\u3000a", "\x1ca": " \x1ca", "": " "}.items():
        assert tokenizer.after_space(text) == spaced
    assert tokenizer.template == templates.ROBERTA
    assert tokenizer.layout.row(*tokenizer.encode_batch(["The cat", "the mat"])).tolist() == GOLDEN["pair"]
    assert tokenizer.layout.types == (0, 0)


@settings(max_examples=300)
@given(st.text(st.characters(codec="utf-8")))
def test_decoding_restores_any_text(text):
    tokenizer = _golden_tokenizer()
    ((ids, offsets),) = tokenizer.encode_with_offsets([text])
    assert tokenizer.encode_batch([text]) == [ids.tolist()]
    assert tokenizer.decode(ids) == text
    assert np.all(offsets[:, 0] <= offsets[:, 1]) and np.all(offsets >= 0) and np.all(offsets <= len(text))
    assert np.all(np.diff(offsets[:, 0]) >= 0)
    assert not any(text[begin:end].startswith(" ") for begin, end in offsets)


def test_a_file_as_of_modernbert(content, tmp_path):
    """Other special tokens and rows, text normalized by NFC, and tokens for runs of spaces."""
    rename = {token: byte_bpe.BERT_TOKENS[role] for role, token in byte_bpe.ROBERTA_TOKENS.items()}
    vocab = {rename.get(token, token): i for token, i in content["model"]["vocab"].items()}
    ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]")]
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    rows = {"single": [ends[0], texts[0], ends[1]], "pair": [ends[0], texts[0], ends[1], texts[1], ends[1]]}
    special = {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    content["model"]["vocab"] = vocab
    content["post_processor"] = {"type": "TemplateProcessing", **rows, "special_tokens": special}
    content["normalizer"] = {"type": "NFC"}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    content["added_tokens"] = [{"id": len(vocab), "content": "    ", "normalized": True, **flags}]
    tokenizer = loaded(content, tmp_path / "tokenizer.json")
    assert tokenizer.special_tokens == byte_bpe.BERT_TOKENS
    assert tokenizer.template == templates.Template("cls:0 A:0 sep:0", "cls:0 A:0 sep:0 B:0 sep:0")
    (ids,) = tokenizer.encode_batch(["cafe\u0301    [CLS]"])
    assert tokenizer.decode(ids) == "café    [CLS]" and len(vocab) in ids
    assert tokenizer.cls_id not in ids and not tokenizer.is_continuation[len(vocab)]
