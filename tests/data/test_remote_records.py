"""Batches of records that are read from an object store on demand equal the batches of local records."""

import itertools
import json
import shutil
import socket
import threading
from fractions import Fraction
from pathlib import Path

import fsspec
import numpy as np
import pytest
from support import google_records, remote
from support.batches import assert_same, take
from support.processes import write_vocabulary

from bert_jax.data import cache, google, loader, records, tfrecord
from bert_jax.errors import StorageError, UserError
from bert_jax.io import files
from bert_jax.io import remote as remote_files


@pytest.fixture(scope="module")
def bucket():
    with remote.bucket() as url:
        yield url


@pytest.fixture(autouse=True)
def no_record_is_copied(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_JAX_RECORD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERT_JAX_RECORD_CACHE_GB", "0")
    monkeypatch.setattr(tfrecord, "INDEX_BLOCK", 8)  # several blocks per file
    yield
    assert not list((tmp_path / "cache").rglob("*.tfrecord"))
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def store(make_records):
    """Writes records and copies them to a URL; returns the local directory and the URL."""

    def make(name="records", root="memory://bucket", **options):
        directory = Path(make_records(name, **options)[0])
        (directory / "vocab.txt").write_text("[PAD]\n[UNK]\n")
        for path in directory.iterdir():
            files.upload(str(path), f"{root}/{name}/{path.name}")
        return str(directory), f"{root}/{name}"

    return make


@pytest.fixture
def requests(monkeypatch):
    """The (path, start, end) ranges that are read from memory:// URLs, as one list per call."""
    calls, system = [], type(fsspec.filesystem("memory"))
    cat_ranges = system.cat_ranges

    def record(self, paths, starts, ends, **options):
        calls.append(list(zip(paths, starts, ends, strict=True)))
        return cat_ranges(self, paths, starts, ends, **options)

    monkeypatch.setattr(system, "cat_ranges", record)
    return calls


def open_at(url, split="train"):
    return records.open_dataset(cache.localize(url, lambda line: None), split)


@pytest.mark.parametrize(
    "seed, start, own", [(0, 0, range(8)), (3, 5, range(2, 4)), (3, 1000, range(0, 8, 4))]
)
@pytest.mark.parametrize("where", ["memory", "gs"])
def test_batches_are_those_of_local_records(store, bucket, where, seed, start, own):
    root, own = {"memory": "memory://bucket", "gs": f"{bucket}/{seed}-{start}"}[where], np.array(own)

    def train(dataset, other, replay=None):
        replay = loader.Replay(other, replay) if replay else None
        return loader.train_batches(dataset, 8, seed, start, own, replay=replay)

    pairs = [store(name, root, seed=seed + number) for number, name in enumerate(("first", "second"))]
    (local, url), (other_local, other_url) = pairs
    both = [records.open_dataset(each, "train") for each in (f"{local},{other_local}", other_local)]
    both_remote = [open_at(each) for each in (f"{url},{other_local}", other_url)]  # except one directory
    for options in ({}, {"replay": Fraction(1, 3)}):
        assert_same(*(take(train(*each, **options), 6) for each in (both_remote, both)))
    evaluations = open_at(url, "eval"), records.open_dataset(local, "eval")
    assert_same(*(list(loader.eval_batches(each, 8, own)) for each in evaluations))


def test_google_records_are_read_too(tmp_path):
    folder = tmp_path / "records"
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", 95)
    google_records.write(folder / "a.tfrecord", [google_records.example(label=i % 2) for i in range(9)])
    manifest = google.describe(str(folder), ["a.tfrecord"], vocabulary) | {"version": 1}
    manifest["vocabulary"]["file"] = Path(shutil.copy(vocabulary, folder)).name
    (folder / "manifest.json").write_text(json.dumps(manifest))
    datasets = records.open_dataset(str(folder), "train"), open_at(f"file://{folder}")
    assert_same(*(take(loader.train_batches(each, 4, 0, 0), 6) for each in datasets))


def test_a_host_reads_its_rows_and_their_indices_once(store, requests):
    (local, url), own = store(), np.arange(2, 4)
    sizes = [file.size for file in records.open_dataset(local, "train").files]
    take(loader.train_batches(open_at(url), 8, 0, 0, own, prefetch=0), 40)
    read = {True: 0, False: 0}
    for path, start, end in itertools.chain(*requests):
        read[path.endswith(".index")] += end - start
    assert read[False] == pytest.approx(80 * sum(sizes) / 63, rel=0.2) and read[True] <= 8 * (63 + 8)
    requests.clear()
    take(loader.train_batches(open_at(url), 8, 0, 40, own, prefetch=0), 1)  # after a restart
    assert [len(call) for call in requests if call] == [2]
    requests.clear()
    open_at(url, "eval").batch(np.arange(8))
    assert [len(call) for call in requests] == [1, 1]  # the index, and consecutive rows


def change(path, where):
    """Truncates or removes an object, or changes the byte at `where`; -1 is the last byte."""
    content = bytearray(files.read(path))
    files.remove(path)
    if where == "truncated":
        content = content[:-1]
    elif where != "removed":
        content[where] ^= 1
    if where != "removed":
        with fsspec.open(path, "wb") as file:
            file.write(content)


@pytest.mark.parametrize("damage", ["truncated", "removed", -1])
@pytest.mark.parametrize("suffix", ["", ".index"])
def test_a_file_that_changes_during_a_run_is_named(store, damage, suffix):
    _, url = store(splits=(("train", (9,)),))
    name = f"train-00000-of-00001.tfrecord{suffix}"
    dataset = open_at(url)
    change(f"{url}/{name}", damage)
    with pytest.raises(UserError, match=name):
        next(loader.train_batches(dataset, 8, 0, 0))


@pytest.mark.parametrize("root, damage", [("memory", "truncated"), ("memory", "removed"), ("gs", -1)])
def test_a_file_that_is_not_the_one_in_the_manifest_is_named_before_a_run(store, bucket, root, damage):
    _, url = store(root={"memory": "memory://bucket", "gs": f"{bucket}/changed"}[root])
    change(f"{url}/train-00001-of-00002.tfrecord", damage)
    with pytest.raises(UserError, match="train-00001-of-00002"):
        open_at(url)


def test_a_store_that_fails_is_no_mistake_of_the_user(store, monkeypatch):
    dataset = open_at(store()[1])

    def fail(*args, **options):
        raise ConnectionResetError("gone")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", fail)
    with pytest.raises(StorageError, match=r"train-0000.*gone"):
        next(loader.train_batches(dataset, 8, 0, 0))


@pytest.mark.long
def test_a_request_without_an_answer_is_repeated(bucket, monkeypatch):
    def serve():
        silent = listener.accept()
        second = listener.accept()[0]
        second.recv(4096)
        second.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")
        silent[0].close()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.setitem(fsspec.config.conf, "gs", {})
    monkeypatch.setattr(remote_files, "_SILENCE", 0.2)
    system = fsspec.get_filesystem_class("gs")
    system.clear_instance_cache()
    assert remote_files.read_ranges([("gs://bucket/a", 0, 4)]) == [b"late"]
    system.clear_instance_cache()


def test_records_of_other_programs_have_to_be_copied(tmp_path):
    google_records.write(tmp_path / "records" / "a.tfrecord", [google_records.example()])
    with pytest.raises(UserError, match="BERT_JAX_RECORD_CACHE_GB"):
        cache.localize(f"file://{tmp_path}/records")
