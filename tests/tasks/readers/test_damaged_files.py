"""Damaged files, and small files that decompress to large ones, end in one line that names the file."""

import bz2
import gzip
import json
import lzma
import random
import tracemalloc

import pytest

from bert_jax.errors import UserError
from bert_jax.inference.embedding_files import Texts
from bert_jax.io import compression
from bert_jax.tasks.question_answering import question_files
from bert_jax.tasks.question_answering.question_files import read_questions
from bert_jax.tasks.readers import file_rows
from bert_jax.tasks.readers.labels import infer_labels
from bert_jax.tasks.readers.tables import Columns, read_examples
from bert_jax.tasks.tagging.word_files import read_sentences

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: compression.zstd.compress(
        data, options={compression.zstd.CompressionParameter.checksum_flag: 1}
    ),
}
_RNG = random.Random(0)
_WORDS = [f"word{_RNG.randrange(10**9)}" for _ in range(4000)]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": " ".join(_WORDS),
                    "qas": [{"id": "1", "question": "Which?", "answers": [{"text": "w", "answer_start": 0}]}],
                }
            ]
        }
    ]
}
FILES = {  # name: (content, what reads it)
    "rows.tsv": (
        "a\ty\n" + "".join(f"{word}\t{i % 2}\n" for i, word in enumerate(_WORDS)),
        lambda path: read_examples(path, Columns("a", label="y")),
    ),
    "rows.csv": (
        "a,y\n" + "".join(f"{word},{i % 2}\n" for i, word in enumerate(_WORDS)),
        lambda path: read_examples(path, Columns("a", label="y")),
    ),
    "rows.jsonl": (
        "".join(json.dumps({"a": word, "y": i % 2}) + "\n" for i, word in enumerate(_WORDS)),
        lambda path: read_examples(path, Columns("a", label="y")),
    ),
    "squad.json": (json.dumps(SQUAD), read_questions),
    "tags.conll": ("".join(f"{word} O\n\n" for word in _WORDS), read_sentences),
    "texts.txt": ("\n".join(_WORDS), lambda path: list(Texts(path))),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("suffix", COMPRESS)
def test_damaged_archives(tmp_path, name, suffix):
    content, read = FILES[name]
    path = tmp_path / (name + suffix)
    whole = COMPRESS[suffix](content.encode())
    path.write_bytes(whole)
    read(str(path))
    rng = random.Random(name + suffix)
    damaged = [whole[: len(whole) // 2], b"plain text\n" + whole, b""]
    for _ in range(20):
        at = rng.randrange(len(whole))
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            read(str(path))
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > len(damaged) / 2


@pytest.mark.parametrize("name", ["rows.tsv", "rows.csv", "rows.jsonl", "tags.conll", "texts.txt"])
def test_a_line_without_end_takes_bounded_memory(tmp_path, name):
    path = tmp_path / f"{name}.gz"
    head = FILES[name][0].partition("\n")[0].encode() + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(200):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"gz:2: the line is longer than 32 MiB; expected one row"):
        FILES[name][1](str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * file_rows.LONGEST_LINE


def test_a_json_file_of_any_size_takes_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(question_files, "_LARGEST", 1 << 20)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 21), 1))
    with pytest.raises(UserError, match="more than 1 MiB of JSON"):
        read_questions(str(path))


LONG = "1" * 5000


def test_numbers_of_thousands_of_digits(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"a": "x", "y": {LONG}}}\n{{"a": "x", "y": 1}}\n')
    with pytest.raises(UserError, match=r"x\.jsonl:1: not JSON"):
        read_examples(str(path), Columns("a", label="y"))
    path = tmp_path / "x.json"
    path.write_text(f'{{"data": {LONG}}}')
    with pytest.raises(UserError, match="thousands of digits"):
        read_questions(str(path))
    path = tmp_path / "x.tsv"
    path.write_text("a\ty\nx\t1\n")
    with pytest.raises(UserError, match="no column"):
        read_examples(str(path), Columns(LONG, label="y"))
    with pytest.raises(UserError, match="read without a header"):
        read_examples(str(path), Columns(LONG, label="y", header=False))
    with pytest.raises(UserError, match="CoNLL columns, which are numbers"):
        read_sentences(str(path), word=LONG, format="conll")
    path = tmp_path / "x.txt.jsonl"
    path.write_text(f'{{"text": {LONG}}}\n')
    with pytest.raises(UserError, match="not JSON"):
        list(Texts(str(path)))


def test_labels_of_thousands_of_digits_are_sorted_as_text():
    assert infer_labels([LONG, "10", "9", LONG], "x") == ("9", "10", LONG)
