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
        return readers.resolve_format(names, given, readers.Fields())

    if expected in readers.FORMATS:
        assert resolve("auto") == expected
    else:
        with pytest.raises(UserError, match=expected):
            resolve("auto")
    assert resolve("paragraphs") == "paragraphs"


PAGE = "<page>\n<ns>0</ns>\n<id>1</id>\n<text>One sentence. And another! And more?</text>\n</page>\n"
OBJECT = '{"text": "One sentence. And another! And more?", "url": "a"}\n'
