"""What processes that were killed leave behind is removed by the next one."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.io import atomic, files, owners, scratch

HOLD = """
import sys, time
from bert_jax.io import atomic, scratch
with atomic.replace_file(sys.argv[1] + "/out.npy") as file, scratch.directory(sys.argv[1]) as folder:
    file.write(b"half")
    open(folder + "/weights", "w").close()
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def not_cleaned_yet():
    atomic._cleaned.clear()


def test_leftovers_of_a_killed_process_are_removed(tmp_path, holder):
    left = set(os.listdir(tmp_path))
    assert len(left) == 2
    with scratch.directory(str(tmp_path)):
        assert left < set(os.listdir(tmp_path))  # it is alive
    atomic.write_file(tmp_path / "other", b"")
    assert set(os.listdir(tmp_path)) == left | {"other"}
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    atomic._cleaned.clear()
    atomic.write_file(tmp_path / "out.npy", b"whole")
    with scratch.directory(str(tmp_path)):
        pass
    assert set(os.listdir(tmp_path)) == {"other", "out.npy"}


KEEP = """
import os, signal
from bert_jax.io import scratch
print(scratch.kept_file("tokenizer.json", b"{}"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kept_files_of_a_killed_process_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_kept", [])
    killed = subprocess.run([sys.executable, "-c", KEEP], capture_output=True, text=True, check=False)
    left = killed.stdout.strip()
    assert killed.returncode == -signal.SIGKILL and os.path.exists(left)
    first, second = (scratch.kept_file("tokenizer.json", b"{}") for _ in range(2))
    assert os.path.exists(first) and os.path.exists(second)
    assert sorted(os.listdir(tmp_path)) == sorted(Path(path).parent.name for path in (first, second))


def test_kept_files_of_another_machine_stay(tmp_path, monkeypatch):
    """They never change, and the process may be alive."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_kept", [])
    old = tmp_path / f".bert_jax_kept-{'0' * 12}-7-7-a"
    old.mkdir()
    os.utime(old, (0, 0))
    scratch.kept_file("tokenizer.json", b"{}")
    with scratch.directory():
        assert old.exists()


def test_no_directory_for_temporary_files_is_told_in_one_line(tmp_path, no_temporary_directory):
    (tmp_path / "file").touch()
    url = f"memory://{tmp_path.name}/file"
    for call in (
        lambda: scratch.kept_file("tokenizer.json", b"{}"),
        lambda: contextlib.ExitStack().enter_context(scratch.directory()),
        lambda: atomic.write_file(url, b""),
        lambda: files.open_local(url),
    ):
        with pytest.raises(UserError, match=r"^No usable temporary .*; set TMPDIR to a directory that can"):
            call()
    with scratch.directory(str(tmp_path)):
        pass


def test_those_of_another_machine_are_removed_after_a_day(tmp_path):
    """Their process may be alive, and write to the same disk."""
    token = f"{'0' * 12}-7-7"
    young, old = tmp_path / f"x.tmp-{token}-a", tmp_path / f"y.tmp-{token}-b"
    folder = tmp_path / f".bert_jax-{token}-c"
    folder.mkdir()
    for path in (young, old, folder / "weights"):
        path.write_text("")
    yesterday = time.time() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    os.utime(folder, (yesterday, yesterday))  # but not what is in it
    for _ in range(2):
        scratch.remove_leftovers(str(tmp_path), infix=".tmp-")
        scratch.remove_leftovers(str(tmp_path), prefix=".bert_jax-")
        assert not old.exists() and young.exists() and folder.exists()
    os.utime(folder / "weights", (yesterday, yesterday))
    os.utime(folder, (yesterday, yesterday))
    scratch.remove_leftovers(str(tmp_path), prefix=".bert_jax-")
    assert not folder.exists()


def test_only_names_with_an_owner_are_removed(tmp_path):
    (tmp_path / "mine.tmp-1").write_text("")
    os.utime(tmp_path / "mine.tmp-1", (0, 0))
    atomic.write_file(tmp_path / "x", b"")
    assert sorted(os.listdir(tmp_path)) == ["mine.tmp-1", "x"]


def test_owners():
    assert owners.is_dead(f"x.tmp-{owners.token()}-ab") is False
    assert owners.is_dead(f"{owners.machine()}-{os.getpid()}-1") is True  # its id was used again
    assert owners.is_dead(f"{'0' * 12}-1-1") is None and owners.is_dead("anything") is None


def test_devices_are_written_to_as_they_are(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    atomic.write_file(tmp_path / "pipe", b"through")
    assert os.read(reader, 20) == b"through" and os.listdir(tmp_path) == ["pipe"]
    os.close(reader)
