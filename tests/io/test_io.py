"""Files and directories that appear whole, paths of users, JSON, progress and messages."""

import builtins
import bz2
import errno
import gzip
import importlib.machinery
import io
import itertools
import lzma
import os
import subprocess
import sys
import types

import pytest

from bert_jax.errors import UserError
from bert_jax.io import (
    atomic,
    checks,
    comma_lists,
    compression,
    files,
    json_files,
    progress,
    scratch,
)


def files_under(path):
    """{relative path: content} of all files under a directory."""
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


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
    with pytest.raises(FileNotFoundError) as error:
        atomic.write_file(tmp_path / "none" / "file", b"new")
    assert error.value.filename == str(tmp_path / "none" / "file")  # and not the temporary one


def test_the_bytes_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    atomic.write_text(tmp_path / "file", "content")
    assert calls == ["fsync", "replace", "fsync"]  # of the file, and of the directory
    calls.clear()
    atomic.write_text(tmp_path / "file", "content", sync=False)
    assert calls == ["replace"]


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


def test_the_working_directory_stays_and_gets_the_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").write_text("old")
    before = os.stat(tmp_path).st_ino
    with atomic.replace_directory(".") as folder:
        os.makedirs(os.path.join(folder, "inner"))
        atomic.write_text(os.path.join(folder, "inner", "new"), "new")
    assert os.stat(".").st_ino == before and files_under(tmp_path) == {"inner/new": "new"}


def test_an_error_while_a_directory_is_replaced_leaves_the_old_one(tmp_path, monkeypatch):
    model, rename = tmp_path / "model", os.rename
    (model / "inner").mkdir(parents=True)
    old = {"a": "old", "b": "old", "inner/c": "old"}
    for name in old:
        (model / name).write_text("old")
    for moment in range(2):
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


KILLED = """
import os, sys
from bert_jax.io import atomic
rename = os.rename
for moment in range(3):
    model = f"{sys.argv[1]}/{moment}/model"
    os.makedirs(model)
    atomic.write_text(f"{model}/a", "old")
    if os.fork():
        os.wait()
        continue
    count = iter(range(100))
    os.rename = lambda *paths: os._exit(1) if next(count) == moment else rename(*paths)
    with atomic.replace_directory(model) as folder:
        atomic.write_text(f"{folder}/a", "new")
    os._exit(0)
"""


def test_a_killed_process_leaves_the_old_content_and_the_next_one_removes_the_rest(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=True)
    for moment in range(3):
        folder = tmp_path / str(moment)
        (kept,) = [path for path in folder.iterdir() if not path.name.startswith(".")]
        assert kept.name.startswith("model.replaced-" if moment == 1 else "model")
        assert files_under(kept) == {"a": "new" if moment == 2 else "old"}
        with atomic.replace_directory(folder / "model"):
            assert len(os.listdir(folder)) == 2
            with atomic.replace_directory(folder / "model"):
                assert len(os.listdir(folder)) == 3
        assert os.listdir(folder) == [kept.name] if moment != 1 else len(os.listdir(folder)) == 2


def test_temporary_files_and_caches(tmp_path, monkeypatch):
    path = scratch.kept_file("tokenizer.json", b"{}")
    assert os.path.basename(path) == "tokenizer.json" and os.path.exists(path)
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert scratch.cache_directory("xla") == f"{tmp_path}/bert_jax/xla"


def test_what_is_there_is_replaced_only_when_asked(tmp_path):
    checks.check_free(tmp_path / "new", overwrite=False)
    checks.check_free(tmp_path, overwrite=False)  # an empty directory
    (tmp_path / "file.npy").write_text("")
    for path in (tmp_path, tmp_path / "file.npy"):
        with pytest.raises(UserError, match=f"--out={path} exists already; --overwrite replaces it"):
            checks.check_free(path, overwrite=False, flag="--out")
        checks.check_free(path, overwrite=True)
    with pytest.raises(UserError, match="exists already"):
        checks.check_output_file(tmp_path / "file.npy", (".npy",), overwrite=False)
    checks.check_output_file(tmp_path / "file.npy", (".npy",))
    for name in ("file.txt", "file.npy/x.npy", ""):  # another suffix, no directory, a directory
        with pytest.raises(UserError, match=f"^--output={tmp_path}"):
            checks.check_output_file(f"{tmp_path}/{name}", (".npy",) if name else ())
    assert os.listdir(tmp_path) == ["file.npy"]


def test_lists_with_commas(tmp_path):
    for name in ("a", "size=8,rate=0.1"):
        (tmp_path / name).touch()
    both = f"{tmp_path}/size=8,rate=0.1"
    assert comma_lists.paths(f"{tmp_path}/a, {both},gs://b/c") == [f"{tmp_path}/a", both, "gs://b/c"]
    assert comma_lists.names(" x, y") == ["x", "y"] and comma_lists.names("") == []
    assert comma_lists.names("x,,y,") == comma_lists.paths("x,,y,") == ["x", "y"]


COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": compression.zstd.compress,
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_files_are_decompressed_by_their_suffix(tmp_path, suffix):
    path, content = tmp_path / f"x.txt{suffix}", b"some text\n" * 1000
    path.write_bytes(COMPRESS[suffix](content))
    assert compression.strip_suffix(str(path)) == str(tmp_path / "x.txt")
    with compression.opened(path) as file:
        assert file.read() == content
    for damaged in (path.read_bytes()[:-9], b"plain text"):
        path.write_bytes(damaged)
        if suffix:
            with pytest.raises(UserError, match=f"not a {suffix} file"), compression.opened(path) as file:
                file.read()


SCHEMA = {
    "name": str,
    "size": range(1, 10),
    "seed?": int,
    "rate": float,
    "on": (bool, None),
    "parts": [{"rows": range(0, 1 << 63)}],
    "labels": {str: [str]},
}
GOOD = '{"name": "n", "size": 3, "rate": 1, "on": null, "parts": [{"rows": 0}], "labels": {"a": ["b"]}}'


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("", "", ""),
        ('"n"', "5", "name is 5, expected text"),
        ("3", "10", "size is 10, expected a whole number from 1 to 9"),
        ('"size": 3, ', "", "size is missing, expected a whole number from 1 to 9"),
        ('"rate": 1', '"rate": "1"', 'rate is "1", expected a number'),
        ('[{"rows": 0}]', '{"rows": 0}', 'parts is {"rows": 0}, expected a list'),
        ('"size": 3', '"size": 3, "seed": 9223372036854775808', "seed is 9223372036854775808, expected"),
        ('"n"', '"n', "not JSON"),
        ('"n"', "[" * 100_000, "not JSON"),
        ('"n"', '"\ud800"', "not JSON"),
    ],
)
def test_json_is_checked_against_a_schema(tmp_path, old, new, message):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace(old, new, 1).encode("utf-8", "surrogatepass"))
    if not message:
        assert json_files.read(path, SCHEMA)["parts"] == [{"rows": 0}]
        return
    with pytest.raises(UserError) as caught:
        json_files.read(path, SCHEMA)
    assert str(caught.value).startswith(f"{path}: {message}") and "\n" not in str(caught.value)


def test_bars_are_shown_on_terminals_and_in_notebooks_alone(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    class ZMQInteractiveShell:  # the class by which rich knows Jupyter's kernel
        pass

    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert progress.shows_bars(Terminal()) and not progress.shows_bars(io.StringIO())
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert not progress.shows_bars(Terminal())  # the terminal of `!bert-jax`
    widgets = types.ModuleType("ipywidgets")
    widgets.__spec__ = importlib.machinery.ModuleSpec("ipywidgets", None)
    for name, module in {"IPython": types.ModuleType("IPython"), "ipywidgets": widgets}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    assert progress.shows_bars(io.StringIO())


def test_progress_is_plain_lines_where_there_is_no_terminal(monkeypatch):
    out, now = io.StringIO(), itertools.count(step=6.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with progress.Progress(out) as shown:
        shown.start("embedding", 4, "texts")
        for _ in range(4):
            shown.advance(1)
    assert out.getvalue().startswith("embedding: 2 of 4 texts")
    assert "\x1b" not in out.getvalue() and out.getvalue().count("\n") == 2
