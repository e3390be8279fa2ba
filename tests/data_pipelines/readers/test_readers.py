"""Readers: documents are the same however a file is cut, compressed or damaged at its edges."""

import bz2
import collections
import contextlib
import gzip
import itertools
import lzma
import re
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.builds import read_documents, stream_documents

from bert_jax.errors import UserError
from bert_jax.io import compression
from data_pipelines import readers, sentences
from data_pipelines.readers import documents as document_parts

TEXT = b"One sentence.\nAnother one.\n\n\nA second document.\n \nThird.\n"
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
WIKI = b"""<doc id="12" url="http://en.wikipedia.org/wiki?curid=12" title="Anarchism">
Anarchism

Anarchism is a philosophy. It holds &quot;the state&quot; to be bad.
Etymology.
Anarchism<br> and Anarchism, 1 &lt; 2.

</doc>
<doc id="13" title="Tom &amp; Jerry">
Tom &amp; Jerry
Two animals.
</doc>
"""


def write(directory, data, name="corpus.txt"):
    path = directory / name
    path.write_bytes(data)
    return path


def reference_text_documents(data):
    """Documents of google-research/bert's create_training_instances, before tokenisation."""
    documents = [[]]
    for line in data.decode("utf-8-sig", "replace").split("\n"):
        if line.strip():
            documents[-1].append(line.strip())
        else:
            documents.append([])
    return [document for document in documents if document]


def test_wikiextractor(tmp_path):
    documents = read_documents(write(tmp_path, WIKI), "wikiextractor")
    assert [d.key for d in documents] == ["http://en.wikipedia.org/wiki?curid=12", "13"]
    assert documents[0].passages == (
        'Anarchism is a philosophy. It holds "the state" to be bad.',
        "Etymology.",
        "Anarchism and Anarchism, 1 < 2.",
    )
    assert documents[1].passages == ("Two animals.",)
    assert not documents[0].presplit


# Lines that could confuse a reader that starts mid-file, and line lengths near the look-back length.
ODD_LINES = [
    "",
    " ",
    "\t \r",
    "\u00a0\u2003\u3000",
    "\x00",
    "a",
    "</doc>",
    '<doc id="1">',
    '<doc id="2" title="b">',
]
ODD_LINES += ["{", "null", '{"text": "A\\nb."}', '{"id": 1}', '{"text": ""}']
ODD_LINES += ["b", "é中", " " * 255, " " * 600, "x" * 300, "\x0c", "\u0085", "<doc", "text</doc>"]
LINE = st.one_of(
    st.sampled_from([*(line.encode() for line in ODD_LINES), b"\xa0", b"\x80", b"\xff\xfe"]),
    st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
)
FILES = st.tuples(
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(LINE, max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
).map(lambda parts: parts[0] + parts[2].join(parts[1]) + (parts[2] if parts[3] else b""))


def usable(data):
    with contextlib.suppress(UserError):
        document_parts.check_head(data, "")
        return True
    return False


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(
    data=FILES.filter(usable),
    format=st.sampled_from(["text", "wikiextractor", "jsonl"]),
    edges=st.sets(st.integers(1, 9999)),
)
@example(data=b"\xef\xbb\xbf\nfoo\n\nbar", format="text", edges={1, 2, 3, 4, 5})
def test_any_cut_gives_the_same_documents(tmp_path_factory, data, format, edges):
    path = str(write(tmp_path_factory.mktemp("cut"), data))
    size = len(data)
    whole, cut = collections.Counter(), collections.Counter()
    documents = list(readers.read_documents(readers.Range(path, "c", 0, size, size), format, whole))
    edges = [0, *sorted({edge % size for edge in edges if size} - {0}), size]
    parts = []
    for start, end in itertools.pairwise(edges):
        parts += readers.read_documents(readers.Range(path, "c", start, end, end - start), format, cut)
    assert parts == documents
    del whole["bytes"], cut["bytes"]  # a document that crosses a cut is read from both sides
    assert cut.pop("outside", 0) <= whole.pop("outside", 0)
    assert +cut == +whole
    if format == "text":
        keys = [d.key for d in documents]
        assert len(set(keys)) == len(keys)


@settings(max_examples=200, deadline=None)
@given(data=FILES.filter(usable))
def test_text_documents_are_those_of_the_reference(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("reference"), data)

    def normal(documents):
        # The reference drops control characters when it tokenizes, so lines with only these have no tokens.
        cleaned = [
            [CONTROLS.sub("", s).replace("\t", " ").replace("\r", " ").strip() for s in d] for d in documents
        ]
        return [kept for kept in ([s for s in d if s] for d in cleaned) if kept]

    assert [list(d.passages) for d in read_documents(path)] == normal(reference_text_documents(data))


@pytest.mark.parametrize(
    "extension, compress",
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", compression.zstd.compress),
    ],
)
def test_compressed_files(tmp_path, extension, compress):
    # Two consecutive streams, as parallel compressors write them.
    data = compress(TEXT) + compress(b"\n" + TEXT)
    path = write(tmp_path, data, "corpus.txt" + extension)
    assert len(readers.split_ranges([str(path)], 1)) == 1
    plain = read_documents(write(tmp_path, TEXT + b"\n" + TEXT, "plain.txt"))
    assert [d.passages for d in read_documents(path)] == [d.passages for d in plain]
    damaged = [data[:-3], b"text that is not compressed\n" * 9]
    if extension != ".zst":  # it has no checksum and stores short texts uncompressed
        damaged.append(data[:20] + b"\x55" * 20 + data[40:])
    for broken in damaged:
        path.write_bytes(broken)
        with pytest.raises(UserError, match=f"corpus.txt{extension} is truncated or not a {extension} file"):
            read_documents(path)


def test_damage_is_repaired_and_counted(tmp_path):
    counts = collections.Counter()
    data = (
        "\ufeffA \u0000b\u0007c\td.\r\nFrench: ".encode()
        + "été".encode("latin-1")
        + b".\xed\xa0\x80\n\x00\nLast"
    )
    documents = read_documents(write(tmp_path, data), counts=counts)
    # The three bytes of an encoded surrogate count as three errors.
    assert [d.passages for d in documents] == [
        ("A bc d.", "French: \ufffdt\ufffd.\ufffd\ufffd\ufffd", "Last")
    ]
    assert counts["undecodable"] == 5 and counts["control_characters"] == 3 and counts["documents"] == 1


@pytest.mark.parametrize("format", ["text", "wikiextractor"])
@pytest.mark.parametrize(
    "unit", [b"x", "é".encode(), "中".encode(), "\U0001f642".encode(), b"word ", b" ", b"\x00", b"\xff"]
)
def test_a_long_line_is_cut(tmp_path, format, unit):
    line = b"x" * (len(unit) // 2) + unit * (10_000_000 // len(unit))  # the cuts are inside characters
    data = (
        b'<doc id="1">\n' + line + b"\n</doc>\n"
        if format == "wikiextractor"
        else b"Before.\n" + line + b"\nAfter."
    )
    path = write(tmp_path, data)
    counts = collections.Counter()
    tracemalloc.start()
    pieces, longest = [], 0
    for document in stream_documents(path, format, counts=counts):
        pieces += document.passages
        longest = max(longest, sum(len(text.encode()) for text in document.passages))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts["long_lines"] == 1 and max(map(len, pieces), default=0) <= document_parts.MAX_LINE_BYTES
    assert longest <= 3 * document_parts.MAX_DOCUMENT_BYTES + 100
    assert peak < 80e6
    if unit not in (b"\x00", b" ", b"\xff"):
        text = "".join(pieces).replace("Before.", "").replace("After.", "")
        assert text.replace(" ", "") == line.decode().replace(" ", "")
        assert "\ufffd" not in text


def test_list_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "folder/c.txt", ".hidden", "with,comma.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, b"Text.", name)
    assert readers.list_inputs("*.txt") == ["a.txt", "b.txt", "with,comma.txt"]
    assert readers.list_inputs("b.txt,a.txt,*.txt") == ["a.txt", "b.txt", "with,comma.txt"]
    assert readers.list_inputs("with,comma.txt") == ["with,comma.txt"]
    assert readers.list_inputs("with,*.txt") == ["with,comma.txt"]
    assert readers.list_inputs(["folder", "a.txt"]) == ["a.txt", "folder/c.txt"]
    assert readers.list_inputs("**/*.txt")[-2:] == ["folder/c.txt", "with,comma.txt"]
    write(tmp_path, b"", "empty.txt")
    assert "empty.txt" in readers.list_inputs("*.txt")
    write(tmp_path, b"", "pack.tar.gz")
    for pattern, message in [
        ("none*.txt", "--input=none"),
        ("a.txt,none", "--input=none"),
        ("", "expected a file with text"),
        ("empty.txt", "expected a file with text"),
        ("nope://bucket/a", "Protocol not known: nope"),
    ]:
        with pytest.raises(UserError, match=message):
            readers.list_inputs(pattern)


PARAGRAPHS = (
    "Ada wrote the first program. It was never run!\n"
    "The engine was not finished. Who paid for it?\n"
    "\n"
    "Another document begins. Mr. Smith is in it.\n"
)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("target", [1 << 20, 10])
def test_paragraphs_are_split_into_sentences(tmp_path, newline, target):
    path = tmp_path / "text.txt"
    path.write_bytes(PARAGRAPHS.replace("\n", newline).encode())
    documents = read_documents(path, "paragraphs", target)
    assert [sentences.split(document) for document in documents] == [
        [
            "Ada wrote the first program.",
            "It was never run!",
            "The engine was not finished.",
            "Who paid for it?",
        ],
        ["Another document begins.", "Mr. Smith is in it."],
    ]
    as_text = read_documents(path, "text", target)
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
