"""Token ids of ALBERT here, of google's steps, and of transformers' AlbertTokenizer, on random Unicode text.

Versions of transformers before 5 also have a tokenizer in Python, which is google's; `common` says how that
in Rust differs.
"""

import random
import re
import shutil
import unicodedata

import pytest
import sentencepiece
from support import albert_reference

from bert_jax import cli, tokenization
from bert_jax.convert.formats import huggingface_export

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

COUNT = 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shared_data):
    """A folder with a spiece.model, learned from MRPC and lines that give it pieces such as `1999,`."""
    folder = tmp_path_factory.mktemp("albert")
    rows = (shared_data / "glue" / "MRPC" / "train.tsv").read_text("utf-8").splitlines()[1:]
    numbers = ["in 1999, or 1,000, 42, 7, and 3,5 or 12, of 9, words"] * 3000
    (folder / "text.txt").write_text("\n".join([*(row.split("\t")[3] for row in rows), *numbers]), "utf-8")
    flags = ["--kind=sentencepiece", "--normalizer=albert", "--size=2000"]
    assert cli.main(["vocab", f"--input={folder}/text.txt", f"--output={folder}/vocab.model", *flags]) == 0
    (folder / "vocab.model").rename(folder / "spiece.model")
    return folder


@pytest.fixture(scope="module")
def encoded(folder):
    """The texts and their ids."""
    rng = random.Random(5)
    texts = [albert_reference.random_text(rng) for _ in range(COUNT)]
    return texts, tokenization.load(folder / "spiece.model", normalizer="albert").encode_batch(texts)


def test_ids_are_those_of_the_original(folder, encoded):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    texts, ours = encoded
    assert [albert_reference.encode(processor, text) for text in texts] == ours
    pieces = map(processor.IdToPiece, range(processor.GetPieceSize()))
    assert any(piece[-2:-1].isdigit() and piece[-1] == "," for piece in pieces)


def test_ids_are_those_of_the_tokenizer_in_python(folder, encoded):
    albert = transformers.models.albert.tokenization_albert.AlbertTokenizer
    if not hasattr(albert, "preprocess_text"):
        pytest.skip("transformers 5 has no AlbertTokenizer in Python")
    theirs = albert(str(folder / "spiece.model"))
    different = [
        text
        for text, ids in zip(*encoded, strict=True)
        if theirs.convert_tokens_to_ids(theirs._tokenize(text)) != ids
    ]
    assert different == []


def common(text, symbols=False):
    """The text without what the tokenizer in Rust treats differently; with the symbols if `symbols`.

    It has no rule for the comma after a digit, prefers other pieces than a symbol alone, drops marks by their
    category (in older tables, in which U+1CF2 and U+1CF3 are marks) and knows fewer kinds of whitespace.
    """
    text = unicodedata.normalize("NFKD", text).replace("``", '"').replace("''", '"')
    text = "".join(c for c in text if unicodedata.category(c)[0] != "M" and c not in "\u1cf2\u1cf3")
    text = "".join(" " if c.isspace() else c for c in text)
    return text if symbols else re.sub(r'[,()".\u2013\u00a3\u20ac-]', "x", text)


def test_how_the_tokenizer_in_rust_differs(folder, encoded):
    theirs = transformers.AlbertTokenizerFast.from_pretrained(folder)
    tokenizer = tokenization.load(folder / "spiece.model", normalizer="albert")
    texts = [common(text) for text in encoded[0]]
    assert theirs(texts, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(texts)
    comma = next(token for token in tokenizer.tokens if token.endswith(",") and token[-2:-1].isdigit())
    for text in (comma.strip("\u2581"), '"a"', "a\x1cb", "a\u0e37"):
        assert theirs(text, add_special_tokens=False)["input_ids"] != tokenizer.encode_batch([text])[0]


def test_with_our_tokenizer_json_symbols_and_commas_agree(folder, encoded, tmp_path):
    """What is left are marks, whitespace, and texts with two best divisions into pieces (2 in 10,000)."""
    tokenizer = tokenization.load(folder / "spiece.model", normalizer="albert")
    shutil.copy(folder / "spiece.model", tmp_path)
    huggingface_export.albert_rust(tokenizer).save(str(tmp_path / "tokenizer.json"))
    theirs = transformers.AlbertTokenizerFast.from_pretrained(tmp_path)
    texts = [common(text, symbols=True) for text in encoded[0]]
    found = theirs(texts, add_special_tokens=False)["input_ids"]
    different = [a != b for a, b in zip(found, tokenizer.encode_batch(texts), strict=True)]
    assert sum(different) < 1e-3 * COUNT
