"""Rows of Parquet and Arrow files, in parts, with the names of classes."""

import json
import os
import tracemalloc

import numpy as np
import pyarrow
import pytest
from pyarrow import ipc, parquet

from bert_jax.errors import UserError
from bert_jax.io import atomic, columnar, files

COUNT = 25
FEATURES = {"label": {"_type": "ClassLabel", "names": ["bad", "good"]}, "text": {"_type": "Value"}}


def table(classes=False):
    rows = {
        "text": [f"text {i}" if i % 7 else None for i in range(COUNT)],
        "label": [i % 2 for i in range(COUNT)],
        "tags": [["a"] * (i % 3) for i in range(COUNT)],
        "score": [i / 4 for i in range(COUNT)],
    }
    found = pyarrow.table(rows)
    metadata = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()} if classes else None
    return found.replace_schema_metadata(metadata)


def write(path, kind, classes=False):
    found = table(classes)
    if kind == "parquet":
        parquet.write_table(found, path, row_group_size=6)
        return str(path)
    new = ipc.new_stream if kind == "stream" else ipc.new_file
    with pyarrow.OSFile(str(path), "wb") as file, new(file, found.schema) as writer:
        for batch in found.to_batches(max_chunksize=6):
            writer.write_batch(batch)
    return str(path)


@pytest.fixture(params=["parquet", "stream", "file"])
def path(request, tmp_path):
    suffix = "parquet" if request.param == "parquet" else "arrow"
    return write(tmp_path / f"data.{suffix}", request.param)


def test_all_rows_and_any_part_of_them(path):
    found = columnar.Table(path)
    expected = table().to_pylist()
    assert found.columns == ("text", "label", "tags", "score") and len(found) == COUNT
    assert list(found.rows()) == expected
    for start, end in ((0, 1), (5, 7), (6, 12), (13, 25), (24, None), (3, 3), (0, 99)):
        assert list(found.rows(["text", "score"], start, end)) == [
            {name: row[name] for name in ("text", "score")} for row in expected[start:end]
        ], (start, end)


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_a_remote_arrow_file_is_copied_once(tmp_path, monkeypatch, kind):
    url = f"memory://{tmp_path.name}/data.arrow"
    atomic.copy_file(write(tmp_path / "data.arrow", kind), url)
    copied, download = [], files.download
    monkeypatch.setattr(files, "download", lambda path, to: copied.append(to) or download(path, to))
    found = columnar.Table(url)
    assert len(found) == COUNT and found.group_starts == []
    expected = table().to_pylist()
    pairs = zip(found.rows(start=2), found.rows(), strict=False)  # two readers at a time
    assert list(pairs) == list(zip(expected[2:], expected, strict=False))
    assert len(copied) == 1 and not os.path.exists(copied[0])


def test_numbers_of_classes_become_names(tmp_path):
    for kind, suffix in (("parquet", "parquet"), ("stream", "arrow")):
        found = columnar.Table(write(tmp_path / f"x.{suffix}", kind, classes=True))
        assert [row["label"] for row in found.rows(["label"])] == [
            ("bad", "good")[i % 2] for i in range(COUNT)
        ]


def test_files_that_are_damaged_or_missing(tmp_path):
    for name, content in (("a.parquet", b"PAR1nothing"), ("b.arrow", b"nothing at all"), ("c.parquet", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}: cannot be read"):
            columnar.Table(tmp_path / name)
    with pytest.raises(UserError, match=r"none.parquet: .*"):
        columnar.Table(tmp_path / "none.parquet")


@pytest.mark.parametrize("different", [400, 3], ids=["each-its-own", "three-that-repeat"])
def test_few_long_texts_are_in_memory_at_a_time(tmp_path, different):
    long = 100_000
    texts = [f"{i % different} ".ljust(long, "x") for i in range(400)]
    written = pyarrow.table({"text": texts, "number": range(400)})
    parquet.write_table(written, tmp_path / "a.parquet", write_batch_size=8)  # pages of about 1 MB
    del written
    before, most = pyarrow.total_allocated_bytes(), 0
    tracemalloc.start()
    try:
        for number, row in enumerate(columnar.Table(tmp_path / "a.parquet").rows(["number", "text"])):
            assert row == {"number": number, "text": texts[number]}
            most = max(most, pyarrow.total_allocated_bytes() - before)
        python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 30 << 20, f"{most:,} bytes of 40 MB at a time"
    assert python < 20 * long, f"{python:,} bytes of Python objects"


@pytest.mark.parametrize("open_writer", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
def test_a_damaged_offset_of_an_arrow_file_is_an_error(tmp_path, open_writer):
    """Reading the text there would end the process, which pyarrow does not prevent."""
    path, table = tmp_path / "a.arrow", pyarrow.table({"text": ["four"] * 100})
    with open_writer(str(path), table.schema) as writer:
        writer.write_table(table)
    content, offsets = path.read_bytes(), np.arange(40, 48, 4, dtype="<i4").tobytes()
    for damaged in (-1, 2**30):
        path.write_bytes(content.replace(offsets, np.asarray([40, damaged], dtype="<i4").tobytes()))
        with pytest.raises(UserError, match=r"a.arrow: cannot be read"):
            list(columnar.Table(str(path)).rows(["text"]))
