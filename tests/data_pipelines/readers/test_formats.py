"""Paragraphs as lines, and text that is read as what it is not."""

import collections

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
        return readers.resolve_format(names, given, "text")

    if expected in readers.FORMATS:
        assert resolve("auto") == expected
    else:
        with pytest.raises(UserError, match=expected):
            resolve("auto")
    assert resolve("paragraphs") == "paragraphs"
