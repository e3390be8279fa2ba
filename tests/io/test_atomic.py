"""Files that appear whole: also where two write one of them at a time."""

import contextlib
import errno
import os
import subprocess
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.io import atomic, checks, files, owners, scratch


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
def test_links_stay_and_what_they_refer_to_is_replaced(tmp_path, content):
    for name in ("disk", "here"):
        (tmp_path / name).mkdir()
    link, folder_link = tmp_path / "here/file", tmp_path / "here/model"
    link.symlink_to("../disk/file")
    folder_link.symlink_to("../disk/model")
    if content:
        (tmp_path / "disk/file").write_text(content)
        (tmp_path / "disk/model").mkdir()
        (tmp_path / "disk/model/old").touch()
    checks.check_output_file(link)
    atomic.write_text(link, "new")
    with atomic.replace_directory(folder_link) as made:
        atomic.write_text(os.path.join(made, "new"), "")
    assert link.is_symlink() and folder_link.is_symlink()
    assert files_under(tmp_path / "disk") == {"file": "new", "model/new": ""}
    dead = f"{owners.machine()}-{os.getpid()}-1"
    os.rename(tmp_path / "disk/model", tmp_path / f"disk/model.replaced-{dead}-1234")
    atomic.restore_directory(folder_link)
    assert (folder_link / "new").exists()


def test_an_upload_that_fails_leaves_nothing_of_the_new_content(tmp_path, monkeypatch):
    url, uploaded, upload = f"memory://{tmp_path.name}/model", [], files.upload

    def fail(source, path):
        if uploaded:
            raise OSError(errno.EIO, "gone", path)
        uploaded.append(path)
        upload(source, path)

    monkeypatch.setattr(files, "upload", fail)
    with pytest.raises(OSError, match="gone"), atomic.replace_directory(url) as folder:
        for name in ("config.json", "model.safetensors"):
            atomic.write_text(os.path.join(folder, name), "new")
    assert uploaded == [f"{url}/config.json"] and not files.walk(url)


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


def files_under(path):
    """{relative path: content} of all files under a directory."""
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("stays", "moments"), [(False, 2), (True, 5)])
def test_an_error_while_a_directory_is_replaced_leaves_the_old_one(tmp_path, monkeypatch, stays, moments):
    monkeypatch.setattr(atomic, "_has_to_stay", lambda path: stays)
    model, rename = tmp_path / "model", os.rename
    (model / "inner").mkdir(parents=True)
    old = {"a": "old", "b": "old", "inner/c": "old"}
    for name in old:
        (model / name).write_text("old")
    for moment in range(moments):
        count = iter(range(100))

        def fail(source, target, count=count, moment=moment):
            if next(count) == moment:
                raise PermissionError(source)
            rename(source, target)

        monkeypatch.setattr(os, "rename", fail)
        with pytest.raises(PermissionError), atomic.replace_directory(model) as folder:
            for name in ("a", "d"):
                atomic.write_text(os.path.join(folder, name), "new")
        assert files_under(model) == old and os.listdir(tmp_path) == ["model"]
        assert sorted(os.listdir(model)) == ["a", "b", "inner"]


KILLED = """
import os, sys
from bert_jax.io import atomic
rename = os.rename
for moment in range(7):
    model = f"{sys.argv[1]}/{moment}/model"
    os.makedirs(model)
    for name in ("a", "b"):
        atomic.write_text(f"{model}/{name}", "old")
    if os.fork():
        os.wait()
        continue
    os.chdir(model if sys.argv[2] == "stays" else "/")
    count = iter(range(100))
    os.rename = lambda *paths: os._exit(1) if next(count) == moment else rename(*paths)
    with atomic.replace_directory(model) as folder:
        for name in ("a", "c"):
            atomic.write_text(f"{folder}/{name}", "new")
    os._exit(0)
"""


@pytest.mark.parametrize("stays", ["stays", ""])
def test_what_a_killed_process_was_replacing_is_not_cleaned_up(tmp_path, stays):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path, stays], check=True)
    for folder in tmp_path.iterdir():
        scratch.remove_leftovers(str(folder), prefix=".bert_jax-")
        scratch.remove_leftovers(str(folder / "model"), prefix=".bert_jax-")
        found = sorted((os.path.basename(name), text) for name, text in files_under(folder).items())
        replaced = {"a": "new", "c": "new"}
        whole = (folder / "model").exists() and replaced.items() <= files_under(folder / "model").items()
        assert whole or {("a", "old"), ("b", "old")} <= set(found)
    assert files_under(tmp_path / "6" / "model") == replaced


def test_what_a_killed_process_was_replacing_is_restored(tmp_path, capsys):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path, ""], check=True)
    restored = 0
    for folder in tmp_path.iterdir():
        missing = not (folder / "model").exists()
        atomic.restore_directory(folder / "model")
        old, new = {"a": "old", "b": "old"}, {"a": "new", "c": "new"}
        assert files_under(folder / "model") in ([old] if missing else [old, new])
        said = capsys.readouterr().err
        assert (f"{folder / 'model'} was missing" in said and said.count("\n") == 1) == missing
        restored += missing
        with atomic.replace_directory(folder / "model") as made:
            atomic.write_text(os.path.join(made, "a"), "newest")
        assert files_under(folder) == {"model/a": "newest"} and os.listdir(folder) == ["model"]
    assert restored == 1


def test_what_has_to_be_restored_by_hand_is_refused_with_what_to_do(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path, "stays"], check=True)
    refused = 0
    for folder in tmp_path.iterdir():
        left = list(folder.glob("model/model.replaced-*"))
        with pytest.raises(UserError, match="move its entries back") if left else contextlib.nullcontext():
            atomic.restore_directory(folder / "model")
        refused += len(left)
    assert refused == 5


@pytest.mark.parametrize("token", ["living", "of another machine"])
def test_what_a_process_that_may_live_is_replacing_is_left_as_it_is(tmp_path, token):
    of = owners.token() if token == "living" else f"{'0' * 12}-1-1"
    (tmp_path / f"model.replaced-{of}-1234").mkdir()
    alive = token == "living"
    with contextlib.nullcontext() if alive else pytest.raises(UserError, match="rename it back"):
        atomic.restore_directory(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_bytes_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    atomic.write_text(tmp_path / "file", "content")
    assert calls == ["fsync", "replace", "fsync"]  # of the file, and of the directory
    calls.clear()
    atomic.write_text(tmp_path / "file", "content", sync=False)
    assert calls == ["replace"]
