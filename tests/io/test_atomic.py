"""Files that appear whole: also where two write one of them at a time."""

import os

import pytest

from bert_jax.io import atomic


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    path = tmp_path / "file"
    with atomic.replace_file(str(path)) as first:
        first.write(b"first")
        with atomic.replace_file(str(path)) as second:
            second.write(b"the second")
        assert path.read_bytes() == b"the second"
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_alone(tmp_path):
    atomic.write_file(str(tmp_path / "file"), b"old")
    with pytest.raises(ZeroDivisionError), atomic.replace_file(str(tmp_path / "file")) as file:
        file.write(b"new")
        1 / 0  # noqa: B018
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path):
    path = tmp_path / "none" / "file"
    with pytest.raises(FileNotFoundError) as error:
        atomic.write_file(path, b"new")
    assert error.value.filename == str(path)


def test_names_that_are_not_utf_8(tmp_path):
    path = os.path.join(tmp_path, os.fsdecode(b"caf\xe9"))
    atomic.write_text(path, f"of {os.path.basename(path)}")
    assert os.listdir(os.fsencode(tmp_path)) == [b"caf\xe9"]
    with open(path, encoding="utf-8") as file:
        assert file.read() == "of caf\\udce9"


def test_names_as_long_as_the_file_system_has_them(tmp_path):
    for name in ("あ" * 84, "x" * 255):
        atomic.write_text(tmp_path / name, "content")
        assert (tmp_path / name).read_text() == "content"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("content", ["", "old"])
def test_the_working_directory_stays_and_gets_the_content(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / content).exists() or (tmp_path / content).write_text(content)
    before = os.stat(tmp_path).st_ino
    with atomic.replace_directory(".") as folder:
        os.makedirs(os.path.join(folder, "inner"))
        atomic.write_text(os.path.join(folder, "inner", "new"), "new")
    assert os.stat(".").st_ino == before
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["inner", "inner/new"]


def test_the_bytes_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    atomic.write_text(tmp_path / "file", "content")
    assert calls == ["fsync", "replace", "fsync"]  # of the file, and of the directory
    calls.clear()
    atomic.write_text(tmp_path / "file", "content", sync=False)
    assert calls == ["replace"]
