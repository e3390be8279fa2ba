"""Local paths and URLs through one set of functions."""

import errno
import os
import socket
from pathlib import Path

import fsspec
import numpy as np
import pytest

from bert_jax.data import cache
from bert_jax.errors import StorageError, UserError
from bert_jax.io import atomic, columnar, files, remote
from bert_jax.tasks import table
from bert_jax.tasks.question_answering import question_files


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path, monkeypatch):
    """A directory that is there, local or remote; none may appear in the current one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    if request.param == "local":
        yield str(tmp_path / "root")
    else:
        yield f"memory://{tmp_path.name}/root"
        fsspec.filesystem("memory").store.clear()
    assert os.listdir(tmp_path / "here") == []


def test_files_are_written_read_moved_and_removed(root):
    files.make_directory(f"{root}/a")
    atomic.write_text(f"{root}/a/x.txt", "one")
    atomic.write_file(f"{root}/a/y.bin", b"two")
    assert files.read(f"{root}/a/x.txt") == b"one" and files.size(f"{root}/a/y.bin") == 3
    assert files.names(root) == ["a"] and files.names(f"{root}/a") == ["x.txt", "y.bin"]
    assert files.walk(root) == ["a/x.txt", "a/y.bin"]
    assert files.is_directory(f"{root}/a") and files.is_file(f"{root}/a/x.txt")
    files.move(f"{root}/a/x.txt", f"{root}/a/y.bin")
    assert files.read(f"{root}/a/y.bin") == b"one" and not files.exists(f"{root}/a/x.txt")
    files.move(f"{root}/a", f"{root}/b")
    assert files.walk(root) == ["b/y.bin"]
    atomic.copy_directory(f"{root}/b", f"{root}/c")
    with files.local_copy(f"{root}/c") as copy:
        assert Path(copy, "y.bin").read_bytes() == b"one"
    with files.open_read(f"{root}/c/y.bin") as file:
        file.seek(1)
        assert file.read() == b"ne"
    files.remove(f"{root}/c/y.bin")
    files.remove(f"{root}/c/y.bin", missing_ok=True)
    files.remove_tree(root)
    assert not files.exists(root) and files.names(root) == [] and files.walk(root) == []


def test_a_folder_that_cannot_be_read_is_not_left_out(tmp_path, unreadable):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert files.walk(tmp_path) == ["a/file", "b/file"]
    assert files.walk(tmp_path / "none") == files.walk(tmp_path / "a/file") == []
    unreadable(tmp_path / "b")
    with pytest.raises(PermissionError, match=f"{tmp_path}/b"):
        files.walk(tmp_path)


def test_arrays_are_mapped(root):
    files.make_directory(root)
    with atomic.replace_file(f"{root}/x.npy") as file:
        np.save(file, np.arange(5))
    assert files.load_array(f"{root}/x.npy").tolist() == [0, 1, 2, 3, 4]


def test_what_is_missing_has_its_path_in_the_error(root):
    with pytest.raises(FileNotFoundError) as caught:
        files.read(f"{root}/none")
    assert caught.value.filename == f"{root}/none" and caught.value.strerror == "No such file or directory"


@pytest.mark.parametrize("path", ["gs:/bucket/x", Path("gs://bucket/x"), "memory:/x", "s3:/x"])
def test_a_url_that_lost_a_slash_is_refused(path):
    """Else it is the name of a local folder."""
    with pytest.raises(UserError, match=r"expected two slashes after .*:"):
        files.make_directory(path)


class Failing:
    """A file system all of whose operations raise an error."""

    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        def fail(*args, **options):
            raise self._error

        return fail


class Forbidden(Exception):
    code = 403


@pytest.mark.parametrize(
    "error, number, said",
    [
        (Forbidden("no"), errno.EACCES, "no"),
        (ConnectionResetError("gone"), errno.EIO, "gone"),
        (socket.gaierror(socket.EAI_NONAME, "name not known"), errno.EIO, "name not known"),
    ],
)
def test_a_failing_network_is_no_absence(monkeypatch, error, number, said):
    """A run that took it for one would begin again."""
    monkeypatch.setattr(remote, "file_system", lambda path: (Failing(error), path))
    for call in (files.exists, files.is_directory, files.names, files.walk):
        with pytest.raises(OSError) as caught:
            call("gs://bucket/run")
        assert caught.value.errno == number and caught.value.filename == "gs://bucket/run"
        assert said in str(caught.value.strerror)


@pytest.mark.parametrize(
    "read",
    [
        lambda url: cache.local_copy(url, lambda line: None),
        lambda url: list(table.text_lines(f"{url}.tsv")),
        lambda url: list(question_files.squad_items(f"{url}.json")),
        lambda url: len(columnar.Table(f"{url}.parquet")),
    ],
    ids=["records", "rows", "questions", "table"],
)
@pytest.mark.parametrize(
    "error, refusal",
    [
        (ConnectionResetError("the bucket is gone"), StorageError),
        (OSError(errno.EIO, "the bucket is gone"), StorageError),
        (PermissionError(errno.EACCES, "Permission denied"), UserError),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), UserError),
    ],
    ids=["connection", "disk", "permission", "missing"],
)
def test_only_a_wrong_path_is_a_mistake(monkeypatch, read, error, refusal):
    """Launchers start the same command again after a failure of the storage."""
    monkeypatch.setattr(remote, "file_system", lambda path: (Failing(error), path))
    with pytest.raises((StorageError, UserError), match="gs://bucket/file") as caught:
        read("gs://bucket/file")
    assert caught.type is refusal and "\n" not in str(caught.value)
