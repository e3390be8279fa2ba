"""Copies of remote records on the local disk."""

import os
from pathlib import Path

import pytest

from bert_jax.data import cache
from bert_jax.errors import UserError


def with_vocabulary(make_records):
    directory, _ = make_records()
    (Path(directory) / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    return directory


@pytest.fixture(autouse=True)
def cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_JAX_RECORD_CACHE", str(tmp_path / "cache"))


def test_files_are_fetched_to_the_cache_alone(make_records, no_temporary_directory):
    directory = with_vocabulary(make_records)
    copy = Path(cache.local_copy(f"file://{directory}", lambda line: None))
    fetched = {path.name for path in copy.iterdir()} - {"lock"}
    assert "manifest.json" in fetched and any(name.endswith(".tfrecord") for name in fetched)
    for name in fetched:
        assert (copy / name).read_bytes() == (Path(directory) / name).read_bytes()


def test_a_file_that_is_not_whole_is_refused_and_not_kept(make_records, tmp_path):
    directory = with_vocabulary(make_records)
    path = min(Path(directory).glob("train*.tfrecord"))
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(UserError, match=f"{path.name} is incomplete .{size - 1:,} of {size:,} bytes"):
        cache.local_copy(f"file://{directory}", lambda line: None)
    assert not list((tmp_path / "cache").rglob(f"{path.name}*"))
