"""Paragraphs as lines, and text that is read as what it is not."""

import collections
import json
import re

import pyarrow.parquet
import pytest

from bert_jax.errors import UserError
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


@pytest.mark.parametrize(
    "names, expected",
    [
        (["a.txt"], "text"),
        (["a.TXT.gz", "b.txt.zst"], "text"),
        (["a.csv", "b.TSV.xz"], "csv"),
        (["a.jsonl.gz", "b.json", "c.ndjson"], "jsonl"),
        (["simplewiki-pages-articles.xml.bz2"], "wikipedia_xml"),
        (["a.parquet", "b.arrow"], "text"),
        (["a.parquet", "b.jsonl"], "jsonl"),
        (["wiki_00"], "wiki_00.*--input_format"),
        (["a.txt", "README.md"], "README.md.*--input_format"),
        (["a.txt", "b.jsonl"], "a.txt.*b.jsonl.*--input_format"),
    ],
)
def test_the_suffixes_determine_the_format_unless_it_is_given(names, expected):
    def resolve(given):
        return readers.check_flags(names, given, readers.Fields(), "")

    if expected in readers.FORMATS:
        assert resolve("auto") == expected
    else:
        with pytest.raises(UserError, match=expected):
            resolve("auto")
    assert resolve("paragraphs") == "paragraphs"


PAGE = "<page>\n<ns>0</ns>\n<id>1</id>\n<text>One sentence. And another! And more?</text>\n</page>\n"
OBJECT = '{"text": "One sentence. And another! And more?", "url": "a"}\n'


@pytest.mark.parametrize("format", ["text", "paragraphs"])
@pytest.mark.parametrize(
    "text, expected",
    [
        (OBJECT * 30, '30 of the 30 lines of the text begin with {": .* give --input_format=jsonl'),
        (OBJECT * 2, "2 of the 2 lines .* give --input_format=jsonl"),
        (PAGE * 30, "30 lines of the text begin with <page>: .* give --input_format=wikipedia_xml"),
        ("A sentence.\n" * 30 + OBJECT * 29, ""),  # some text is about JSON
    ],
)
def test_lines_of_another_format_are_no_paragraphs(tmp_path, format, text, expected):
    path = tmp_path / "lines"
    path.write_text(text)
    _, counts = read(path, format)
    found = readers.suspicions(counts)
    if expected:
        assert len(found) == 1 and re.search(expected, found[0])
    assert expected or not any("jsonl" in message for message in found)
    stored = {name: counts[name] for name in readers.COUNTS}  # in a manifest
    assert readers.suspicions(stored) == readers.suspicions(counts)


def test_rows_of_json_are_what_their_own_format_expects(tmp_path):
    (tmp_path / "code.jsonl").write_text(json.dumps({"text": OBJECT * 30}) + "\n")
    assert not readers.suspicions(read(tmp_path / "code.jsonl", "jsonl")[1])
    pyarrow.parquet.write_table(pyarrow.table({"text": [OBJECT * 30]}), tmp_path / "code.parquet")
    assert not readers.suspicions(read(tmp_path / "code.parquet", "text")[1])


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
