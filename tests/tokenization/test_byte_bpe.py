"""Byte-level BPE: the ids that transformers gave to texts (tests/testdata/make_bpe.py), and decoding."""

import functools
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.tokenization import byte_bpe_files, templates

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
    return json.loads(Path(byte_bpe_files.joined(FOLDER)).read_text("utf-8"))


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
    assert [tokenizer.after_space(text) for text in ("a", " a", "\u3000a", "\x1ca", "")] == [
        " a",
        " a",
        "\u3000a",
        " \x1ca",
        " ",
    ]
    assert tokenizer.template == templates.ROBERTA
    assert tokenizer.layout.row(*tokenizer.encode_batch(["The cat", "the mat"])).tolist() == GOLDEN["pair"]
    assert tokenizer.layout.types == (0, 0)


def test_special_tokens_and_words(tokenizer):
    last = tokenizer.vocab_size - 1
    assert tokenizer.special_ids == {"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": last}
    assert tokenizer.special_tokens["mask"] == "<mask>"
    (ids,) = tokenizer.encode_batch([" The capital. didn't"])
    starts = [tokenizer.spelling(i) for i in ids if not tokenizer.is_continuation[i]]
    assert starts and all(token.startswith(" ") for token in starts) and len(starts) == 3
    assert not tokenizer.is_continuation[list(tokenizer.special_ids.values())].any()
    assert tokenizer.decode([0, *ids, 2]) == "<s> The capital. didn't</s>"
    assert tokenizer.decode([0, *ids, 2], skip_special=True) == " The capital. didn't"


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


def test_a_lone_surrogate_is_the_replacement_character(tokenizer):
    assert tokenizer.encode_batch(["a\ud800b"]) == tokenizer.encode_batch(["a\ufffdb"])


def test_one_file_has_everything(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    shutil.copy(tokenizer.path, path)
    other = pickle.loads(pickle.dumps(tokenization.load(path)))
    assert other.settings() == tokenizer.settings() and other.tokens == tokenizer.tokens
    restored = tokenization.restore(path, tokenizer.settings())
    assert restored.template == templates.ROBERTA
    assert tokenization.load(path, template=templates.BERT).layout.types == (0, 1)
    found = byte_bpe_files.separate(other.content)
    assert json.loads(found["vocab.json"]) == json.loads((FOLDER / "vocab.json").read_text("utf-8"))
    assert found["merges.txt"] == (FOLDER / "merges.txt").read_bytes()


def test_a_file_as_of_modernbert(content, tmp_path):
    """Other special tokens and rows, text normalized by NFC, and tokens for runs of spaces."""
    rename = {
        token: byte_bpe_files.BERT_TOKENS[role] for role, token in byte_bpe_files.ROBERTA_TOKENS.items()
    }
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
    assert tokenizer.special_tokens == byte_bpe_files.BERT_TOKENS
    assert tokenizer.template == templates.Template("cls:0 A:0 sep:0", "cls:0 A:0 sep:0 B:0 sep:0")
    (ids,) = tokenizer.encode_batch(["cafe\u0301    [CLS]"])
    assert tokenizer.decode(ids) == "café    [CLS]" and len(vocab) in ids
    assert tokenizer.cls_id not in ids and not tokenizer.is_continuation[len(vocab)]


def test_a_byte_without_a_token_is_unknown(content, tmp_path):
    missing = byte_bpe_files.characters_of_bytes()[0xF0]
    vocab = [token for token in content["model"]["vocab"] if token != missing]
    content["model"]["vocab"] = {token: i for i, token in enumerate(vocab)}
    content["added_tokens"] = []
    tokenizer = loaded(content, tmp_path / "tokenizer.json")
    assert tokenizer.encode_batch(["😀"])[0].count(tokenizer.unk_id) == 1


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda c: c["model"].update(type="WordPiece"), "holds a tokenizer of the type WordPiece"),
        (lambda c: c.update(pre_tokenizer={"type": "Whitespace"}), "not byte-level BPE"),
        (lambda c: c.pop("model"), "give that file, or the directory with vocab.json and merges.txt"),
        (lambda c: c["model"]["vocab"].update(new=9999), "its ids are not 0 to"),
        (lambda c: c["model"]["merges"].append("x nothing"), "damaged, or of another version"),
        (
            lambda c: c["model"]["vocab"].pop("<mask>") and c.update(added_tokens=[]),
            "neither <mask> nor [MASK]",
        ),
        (lambda c: c.update(post_processor={"type": "TemplateProcessing"}), "template of rows"),
        (
            lambda c: c.update(post_processor={"type": "TemplateProcessing", "single": [1], "pair": []}),
            "template of rows",
        ),
        (
            lambda c: c["pre_tokenizer"].update(pretokenizers=["ByteLevel"]),
            "pre_tokenizer.pretokenizers[0] is",
        ),
        (
            lambda c: c["post_processor"].update(processors=5),
            "post_processor.processors is 5, expected a list",
        ),
        (lambda c: c["post_processor"].update(sep=5), "post_processor.sep is 5, expected a list"),
        (lambda c: c["model"].update(continuing_subword_prefix="##"), "tokenizer.json: it is damaged"),
        (lambda c: c.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "damaged"),
    ],
    ids="kind split no-model ids merges special template pieces splitters processors sep panic map".split(),
)
def test_files_that_cannot_be_used(content, tmp_path, change, expected):
    change(content)
    with pytest.raises(UserError) as caught:
        loaded(content, tmp_path / "tokenizer.json")
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_text_is_not_changed(tokenizer):
    for option in ("lower_case", "strip_accents"):
        with pytest.raises(UserError, match="keeps the case and the accents"):
            tokenization.load(tokenizer.path, **{option: True})
    assert not tokenization.load(tokenizer.path, lower_case=False).lower_case


def test_a_merge_of_unknown_tokens(tmp_path):
    shutil.copy(FOLDER / "vocab.json", tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\nx nothing\n", "utf-8")
    with pytest.raises(UserError, match="'x nothing' is no merge of two tokens"):
        tokenization.load(tmp_path)
