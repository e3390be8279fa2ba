"""`bert-jax data --nsp=none --full_rows`: rows without room, read back from the files."""

import collections
import itertools
import pathlib

import numpy as np
import pytest

from bert_jax import cli, tokenization
from bert_jax.data import manifests, records


@pytest.fixture
def build(corpus, vocabulary, tmp_path):
    def run(*flags):
        directory = str(tmp_path / "full")
        given = [f"--input={corpus}/*.txt", f"--vocab={vocabulary}", f"--output={directory}", "--seed=7"]
        assert cli.main(["data", *given, "--nsp=none", "--full_rows", *flags]) == 0
        return directory

    return run


@pytest.fixture
def texts(corpus, vocabulary):
    """The token ids of each document."""
    tokenizer = tokenization.load(vocabulary)
    documents = itertools.chain(*(path.read_text().split("\n\n") for path in pathlib.Path(corpus).iterdir()))
    return [list(itertools.chain(*tokenizer.encode_batch(text.splitlines()))) for text in documents]


def as_text(ids):
    return "".join(f" {token} " for token in ids)


@pytest.mark.parametrize("length", [48, 128])
def test_rows_have_no_room_and_hold_the_documents_one_after_the_other(build, texts, length):
    directory = build(f"--max_seq_length={length}", "--eval_fraction=0.2")
    manifest = manifests.read(directory)
    assert manifest["full_rows"] and not manifest["full_sentences"] and not manifest["short_seq_prob"]
    assert manifest["max_sequences_per_row"] == 1
    found, documents = collections.Counter(), list(map(as_text, texts))
    for split in ("train", "eval"):
        dataset = records.open_dataset(directory, split)
        batch = dataset.batch(np.arange(len(dataset)))
        lengths = batch["lengths"]
        assert sorted(lengths)[1:] == [length] * (len(lengths) - 1)  # one bucket, and thus one short row
        for ids, size in zip(batch["input_ids"].tolist(), lengths, strict=True):
            assert (ids[0], ids[size - 1]) == (2, 3)
            found.update(ids[1 : size - 1])
            first, *others = as_text(ids[1 : size - 1]).split(" 3 ")  # at the [SEP] between documents
            if not others:
                assert any(first in text for text in documents)
                continue
            *whole, last = others
            assert any(text.endswith(first) for text in documents)
            assert set(whole) <= set(documents)
            assert any(text.startswith(last) for text in documents)
    separators = sum(split["documents"] - 1 for split in manifest["splits"].values())
    assert found.pop(3) == separators
    assert found == collections.Counter(itertools.chain(*texts))


def test_every_pass_over_the_documents_is_in_the_rows(build, texts):
    directory = build("--max_seq_length=48", "--eval_fraction=0", "--dupe_factor=3")
    split = manifests.read(directory)["splits"]["train"]
    tokens = 3 * sum(map(len, texts)) + 3 * len(texts) - 1  # with a [SEP] between two documents
    assert split["tokens"] == tokens + 2 * split["rows"]
    assert split["rows"] == -(-tokens // 46) and split["fill"] > 0.99
