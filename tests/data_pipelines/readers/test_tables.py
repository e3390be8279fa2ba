"""Corpora of rows: Parquet, Arrow, CSV, TSV and JSON lines, whole or in ranges."""

import collections
import csv
import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet
from support.builds import read_documents

from bert_jax.errors import UserError
from data_pipelines import readers

TEXTS = [f"First line of {i}.\nSecond line, with a comma." for i in range(30)]


def read(pattern, target=1 << 20, format="text", text_field="text"):
    counts = collections.Counter()
    paths = readers.list_inputs(str(pattern))
    return read_documents(paths, format, target, counts, text_field), counts


@pytest.fixture
def folder(tmp_path):
    for part in range(2):
        rows = TEXTS[15 * part : 15 * part + 15]
        table = pyarrow.table({"text": rows, "name": [f"d{15 * part + i}" for i in range(15)]})
        parquet.write_table(table, tmp_path / f"part-{part}.parquet", row_group_size=4)
    (tmp_path / "dataset_info.json").write_text('{"a": 1}')
    return tmp_path


@pytest.mark.parametrize("target", [1 << 20, 200])
@pytest.mark.parametrize("pattern", ["", "*.parquet"])
def test_documents_do_not_depend_on_the_ranges(folder, target, pattern):
    documents, counts = read(folder / pattern, target)
    assert [document.passages for document in documents] == [tuple(text.split("\n")) for text in TEXTS]
    assert documents[0].key == "part-0.parquet:0" and documents[29].key == "part-1.parquet:14"
    assert counts["documents"] == 30 and counts["bytes"] == sum(map(len, TEXTS))


def test_tables_of_text(tmp_path):
    rows = [f'd{i},"{text}"' for i, text in enumerate(TEXTS)]
    (tmp_path / "x.csv").write_text("\n".join(["name,text", *rows, "alone", ""]))
    documents, counts = read(tmp_path / "x.csv", 100, "csv")
    assert [document.passages for document in documents] == [tuple(text.split("\n")) for text in TEXTS]
    assert documents[1].key == "x.csv#2" and counts["bad_lines"] == 1
    with pytest.raises(UserError, match=r"--text_field=body: .* has name, text"):
        read(tmp_path / "x.csv", 100, "csv", "body")
    (tmp_path / "y.csv").write_text('name,text\na,"never closed\n')
    with pytest.raises(UserError, match=r"row 1: .*is a quote left open"):
        read(tmp_path / "y.csv", 100, "csv")


@pytest.mark.parametrize("suffix", ["tsv", "tsv.gz"])
def test_tabs_follow_the_rules_of_csv(tmp_path, suffix):
    texts = ['An inch is 1".', '"Both," he said.', "A tab\there.", "Two, three."]
    opened = gzip.open if suffix.endswith("gz") else open
    with opened(tmp_path / f"x.{suffix}", "wt", newline="") as file:
        rows = csv.writer(file, delimiter="\t")
        rows.writerows([("name", "text"), *((f"d{i}", text) for i, text in enumerate(texts)), (), ("alone",)])
    documents, counts = read(tmp_path / f"x.{suffix}", format="csv")
    expected = [text.replace("\t", " ") for text in texts]
    assert [passage for one in documents for passage in one.passages] == expected
    assert counts["bad_lines"] == 1


def test_fields_and_damage_of_json_lines(tmp_path):
    lines = [{"body": "One.\n\nTwo.\nThree\x07."}, {"body": "\ud800 Four."}, {"id": "x"}, {"body": 3}, [1]]
    deep = b"[" * 200_000
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\n".join([*(json.dumps(line).encode() for line in lines), b"{", b"", deep, b"\xff"]))
    counts = collections.Counter()
    documents = read_documents(path, "jsonl", counts=counts, text_field="body")
    offset = path.read_bytes().index(b'{"body": "\\ud800')
    assert [(d.key, d.passages) for d in documents] == [
        ("corpus.jsonl:0", ("One.", "Two.", "Three.")),
        (f"corpus.jsonl:{offset}", ("\ufffd Four.",)),
    ]
    assert counts["bad_lines"] == 4 and counts["without_text"] == 2 and counts["undecodable"] == 1
