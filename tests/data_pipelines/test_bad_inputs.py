"""Inputs of which one is no text: a build finds it before it reads the others."""

import dataclasses
import gzip
import os

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.errors import UserError
from data_pipelines import build


@pytest.fixture
def unread(monkeypatch):
    """Fails a build that begins to read its inputs as text."""

    def fail(*_, **__):
        pytest.fail("the text is read")

    monkeypatch.setattr(build._Build, "_tokenize", fail)


@pytest.mark.parametrize("content", ["Text".encode("utf-16"), gzip.compress(b"Text"), b"%PDF-1.4"])
def test_a_file_that_is_no_text(options, tmp_path, unread, content):
    bad = tmp_path / "zzz.txt"  # the last one
    bad.write_bytes(content)
    with pytest.raises(UserError, match=r"zzz\.txt is .*; expected "):
        build.build(dataclasses.replace(options, input=(*options.input, str(bad))))
    assert not os.path.exists(options.output)


def test_a_table_without_the_column(options, tmp_path, unread):
    for name, column in (("a", "text"), ("b", "text"), ("c", "body")):
        parquet.write_table(pyarrow.table({column: ["One stone."] * 9}), tmp_path / f"{name}.parquet")
    with pytest.raises(UserError, match=r"--text_field=text: .*c.parquet has no such column; it has body"):
        build.build(dataclasses.replace(options, input=(f"{tmp_path}/*.parquet",)))


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_an_empty_file_is_no_mistake(options, tmp_path, suffix):
    (tmp_path / f"empty.txt{suffix}").touch()
    inputs = (*options.input, f"{tmp_path}/empty.txt{suffix}")
    assert build.build(dataclasses.replace(options, input=inputs)).manifest["text"]["documents"] > 1
