"""JSON lines: a document each, by a named field, the same however a file is cut."""

import collections
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines import readers


def read(path, target=1 << 30, counts=None, text_field="text"):
    ranges = readers.split_ranges([str(path)], target, "jsonl")
    return [d for r in ranges for d in readers.read_documents(r, "jsonl", counts, text_field)]


def write(folder, lines):
    path = folder / "corpus.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def test_fields_and_damage(tmp_path):
    lines = [{"body": "One.\n\nTwo.\nThree\x07."}, {"body": "\ud800 Four."}, {"id": "x"}, {"body": 3}, [1]]
    deep = b"[" * 200_000
    path = write(tmp_path, [*(json.dumps(line).encode() for line in lines), b"{", b"", deep, b"\xff"])
    counts = collections.Counter()
    documents = read(path, counts=counts, text_field="body")
    offset = path.read_bytes().index(b'{"body": "\\ud800')
    assert [(d.key, d.passages) for d in documents] == [
        ("corpus.jsonl:0", ("One.", "Two.", "Three.")),
        (f"corpus.jsonl:{offset}", ("\ufffd Four.",)),
    ]
    assert counts["bad_lines"] == 4 and counts["without_text"] == 2 and counts["undecodable"] == 1


LINE = st.one_of(
    st.sampled_from([b"", b" ", b"{", b"null", b'{"text": ""}', b'{"text": "A\\nb."}', b'{"id": 1}']),
    st.text(max_size=9).map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode()),
    st.binary(max_size=9).map(lambda data: data.replace(b"\n", b"")),
)


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(LINE, max_size=9), target=st.integers(1, 60))
def test_any_cut_gives_the_same_documents(tmp_path_factory, lines, target):
    path = write(tmp_path_factory.mktemp("cut"), [b'{"text": "First."}', *lines])
    whole, cut = collections.Counter(), collections.Counter()
    assert read(path, target, cut) == read(path, counts=whole)
    assert cut == whole
