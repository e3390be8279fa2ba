"""Corpora of rows: Parquet, Arrow, CSV and TSV, whole or in ranges."""

import collections
import csv
import gzip

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.errors import UserError
from bert_jax.io import columnar
from data_pipelines import readers
from data_pipelines.readers import Fields

TEXTS = [f"First line of {i}.\nSecond line, with a comma." for i in range(30)]


def read(pattern, target=1 << 20, format="text", fields=Fields()):  # noqa: B008 (frozen)
    counts = collections.Counter()
    documents = [
        document
        for part in readers.split_ranges(readers.list_inputs(str(pattern)), target, format)
        for document in readers.read_documents(part, format, counts, fields)
    ]
    return documents, counts


@pytest.fixture
def folder(tmp_path):
    for part in range(2):
        rows = TEXTS[15 * part : 15 * part + 15]
        table = pyarrow.table({"text": rows, "name": [f"d{15 * part + i}" for i in range(15)]})
        parquet.write_table(table, tmp_path / f"part-{part}.parquet", row_group_size=4)
    (tmp_path / "dataset_info.json").write_text('{"a": 1}')
    return tmp_path


@pytest.mark.parametrize(
    "values, found",
    [([["A", "B"]], r"list<.*: string>"), ([{"a": "A"}], r"struct<a: string>"), ([1], "int64")],
    ids=["lists", "objects", "numbers"],
)
def test_a_column_of_something_else_than_text_is_refused(tmp_path, values, found):
    parquet.write_table(pyarrow.table({"text": values, "title": ["t"]}), tmp_path / "x.parquet")
    message = rf"--text_field=text: in \S+x.parquet it holds values of type {found}; expected text"
    with pytest.raises(UserError, match=message):
        read(tmp_path / "x.parquet")
    assert len(read(tmp_path / "x.parquet", fields=Fields("title"))[0]) == 1


@pytest.mark.parametrize("target", [1 << 20, 200])
@pytest.mark.parametrize("pattern", ["", "*.parquet"])
def test_documents_do_not_depend_on_the_ranges(folder, target, pattern):
    documents, counts = read(folder / pattern, target)
    assert [document.passages for document in documents] == [tuple(text.split("\n")) for text in TEXTS]
    assert documents[0].key == "part-0.parquet:0" and documents[29].key == "part-1.parquet:14"
    assert counts["documents"] == 30 and counts["bytes"] == sum(map(len, TEXTS))


def test_ranges_of_a_parquet_file_begin_with_its_row_groups(folder, monkeypatch):
    """Else every range decodes the rows of its group before it as well."""
    decoded = []
    whole = columnar.parquet.ParquetFile.iter_batches

    def counted(*arguments, **options):
        for batch in whole(*arguments, **options):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(columnar.parquet.ParquetFile, "iter_batches", counted)
    ranges = readers.split_ranges(readers.list_inputs(str(folder)), 200)
    assert len(ranges) == 8 and {range_.start % 4 for range_ in ranges} == {0}
    for range_ in ranges:
        list(readers.read_documents(range_, "text"))
    assert sum(decoded) == 30


def test_other_columns(folder):
    documents, _ = read(folder, fields=Fields("text", "name"))
    assert [document.key for document in documents] == [f"d{i}" for i in range(30)]
    with pytest.raises(UserError, match=r"--text_field=body: .*it has text, name"):
        read(folder, fields=Fields("body"))


def test_tables_of_text(tmp_path):
    rows = [f'd{i},"{text}"' for i, text in enumerate(TEXTS)]
    (tmp_path / "x.csv").write_text("\n".join(["name,text", *rows, "alone", ""]))
    documents, counts = read(tmp_path / "x.csv", 100, "csv")
    assert [document.passages for document in documents] == [tuple(text.split("\n")) for text in TEXTS]
    assert documents[1].key == "x.csv#2" and counts["bad_lines"] == 1
    assert read(tmp_path / "x.csv", 100, "csv", Fields("text", "name"))[0][2].key == "d2"
    with pytest.raises(UserError, match=r"--text_field=body: .*it has name, text"):
        read(tmp_path / "x.csv", 100, "csv", Fields("body"))
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
    documents, counts = read(tmp_path / f"x.{suffix}", format="csv", fields=Fields("text", "name"))
    expected = [text.replace("\t", " ") for text in texts]
    assert [(one.key, *one.passages) for one in documents] == [
        (f"d{i}", one) for i, one in enumerate(expected)
    ]
    assert counts["bad_lines"] == 1


def test_rows_without_an_id_are_known_by_their_place(tmp_path):
    (tmp_path / "a.csv").write_text("text,id\nrow 0,\nrow 1,\nrow 2,x\nrow 3,\n")
    rows = {"text": [f"row {i}" for i in range(4)], "id": ["", None, "x", ""]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    for name, format in (("a.csv", "csv"), ("a.parquet", "text")):
        documents, _ = read(tmp_path / name, format=format, fields=Fields(id="id"))
        by_place, _ = read(tmp_path / name, format=format)
        same = [one.key == other.key for one, other in zip(documents, by_place, strict=True)]
        assert same == [True, True, False, True] and len({one.key for one in documents}) == 4
