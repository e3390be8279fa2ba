"""Paragraphs as lines, and text that is read as what it is not."""

import collections

import pytest

from data_pipelines import readers, sentences

TEXT = (
    "Ada wrote the first program. It was never run!\n"
    "The engine was not finished. Who paid for it?\n"
    "\n"
    "Another document begins. Mr. Smith is in it.\n"
)


def read(path, format, target=1 << 20):
    counts = collections.Counter()
    ranges = readers.split_ranges([str(path)], target, format)
    return [d for range_ in ranges for d in readers.read_documents(range_, format, counts)], counts


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("target", [1 << 20, 10])
def test_paragraphs_are_split_into_sentences(tmp_path, newline, target):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.replace("\n", newline).encode())
    documents, _ = read(path, "paragraphs", target)
    assert [sentences.split(document) for document in documents] == [
        [
            "Ada wrote the first program.",
            "It was never run!",
            "The engine was not finished.",
            "Who paid for it?",
        ],
        ["Another document begins.", "Mr. Smith is in it."],
    ]
    as_text, _ = read(path, "text", target)
    assert [document.passages for document in as_text] == [document.passages for document in documents]
    assert all(document.presplit for document in as_text)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("One sentence and no more.", ""),
        ("A sentence by Mr. Smith alone.", ""),
        ("A sentence. And another one! Is this a third?", "9 words and 3.0 sentences on average"),
        ("word " * 70, "70 words and 1.0 sentences on average"),
        ("第一句。第二句。第三句。", "1 words and 3.0 sentences on average"),
    ],
)
def test_lines_that_are_paragraphs_are_noticed(tmp_path, line, expected):
    path = tmp_path / "text.txt"
    # Among sentences, as in any text.
    others = "A short sentence.\n" * 2 if not expected else ""
    path.write_text(f"{line}\n{others}" * 30, encoding="utf-8")
    found = readers.suspicions(read(path, "text")[1])
    assert len(found) == bool(expected)
    if expected:
        assert expected in found[0] and "give --input_format=paragraphs" in found[0]
    assert not readers.suspicions(read(path, "paragraphs")[1])


def test_rows_that_are_read_as_text_are_noticed(tmp_path):
    for name, expected in (("a.csv", "csv"), ("a.jsonl.gz", "jsonl"), ("a.TSV", "csv"), ("a.txt", "")):
        found = readers.another_format(str(tmp_path / name), "text")
        assert (f"give --input_format={expected} --text_field=COLUMN" in found) == bool(expected)
    (tmp_path / "rows.csv").write_text("text,label\na text,b\n")
    (message,) = readers.early_suspicions([str(tmp_path / "rows.csv")], "text")
    assert message.startswith(f"{tmp_path / 'rows.csv'} is read as lines of text")
    assert readers.early_suspicions([str(tmp_path / "rows.csv")], "csv") == []


def test_a_few_lines_are_not_judged(tmp_path):
    (tmp_path / "text.txt").write_text("A sentence. And another one! And a third.\n" * 19)
    assert not readers.suspicions(read(tmp_path / "text.txt", "text")[1])


def test_counts_of_an_older_version_are_not_judged():
    assert readers.suspicions({"doc_lines": 0}) == []


def test_the_place_of_a_document_counts_lines_from_one(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    documents, _ = read(path, "text")
    (range_,) = readers.split_ranges([str(path)], 1 << 20)
    assert [readers.place(document.key, range_) for document in documents] == [
        "text.txt, line 1",
        "text.txt, line 4",
    ]
    assert readers.place(f"{documents[1].key}#2", range_) == "text.txt, line 4"  # a part of a long document
    assert readers.place("https://a.b/c:80", range_) == "https://a.b/c:80"
    assert readers.place("text.txt:99999999999", range_) == "text.txt, byte 99,999,999,999"
    range_ = readers.Range("tfds:imdb/plain/1.0.0", "imdb/plain/1.0.0", 0, 9, 900)
    assert readers.place("imdb/plain/1.0.0:3", range_) == "imdb/plain/1.0.0, record 4"
