"""The lock on a directory: live, killed and suspended holders, on this host and on others."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from bert_jax.errors import UserError
from bert_jax.io import atomic, files
from bert_jax.workdir.lock import Lock

HOLD = """
import sys, time
from bert_jax.workdir.lock import Lock
Lock(sys.argv[1], lease=float(sys.argv[2])).acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path."""
    command = [sys.executable, "-c", HOLD, tmp_path, "60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def remote():
    """The URL of an empty directory in a store without locks."""
    return f"memory://{uuid.uuid4().hex}"


def held_by_another_host(directory, age):
    """Writes what a run of another host would have written `age` seconds ago."""
    holder = {"host": "far", "pid": 7, "owner": "", "token": "x", "renewed": time.time() - age}
    files.make_directory(directory)
    atomic.write_text(f"{directory}/.lock", json.dumps(holder))


def test_two_in_one_directory(tmp_path, holder):
    with pytest.raises(UserError, match=f"in use by another run, process {holder.pid} on "):
        Lock(tmp_path).acquire()


@pytest.mark.parametrize("place", ["local", "remote"])
def test_two_in_one_process(tmp_path, remote, place):
    directory = tmp_path if place == "local" else remote
    first, second = Lock(directory, lease=1.2), Lock(directory, lease=1.2)
    first.acquire()
    with pytest.raises(UserError, match="in use"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    lock = Lock(tmp_path, log=pytest.fail)
    lock.acquire()
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    lock.release()
    assert (tmp_path / ".lock").read_text() == ""


def test_another_host_that_renews_is_alive_and_one_that_does_not_is_dead(remote):
    held_by_another_host(remote, age=1e6)
    with pytest.raises(UserError, match="in use by another run, process 7 on far"):
        Lock(remote, lease=1.2, log=lambda text: held_by_another_host(remote, age=1e6 - 5)).acquire()
    said = []
    lock = Lock(remote, lease=0.3, log=said.append)
    lock.acquire()
    assert "process 7 on far" in said[0] and json.loads(files.read(f"{remote}/.lock"))["pid"] == os.getpid()
    lock.release()
    assert not files.exists(f"{remote}/.lock")


def test_of_two_that_begin_at_once_one_gets_the_lock(remote, monkeypatch):
    first, second = Lock(remote), Lock(remote)
    first.acquire()
    monkeypatch.setattr(files, "exists", lambda path: False)  # as seen just before
    with pytest.raises(UserError, match="in use"):
        second.acquire()
    monkeypatch.undo()
    first.release()


def test_a_lock_taken_over_by_another_host_is_noticed(remote):
    lock = Lock(remote, lease=0.3)
    lock.acquire()
    deadline = time.monotonic() + 10
    with pytest.raises(UserError, match="process 7 on far took it over"):
        while time.monotonic() < deadline:
            held_by_another_host(remote, age=0)
            time.sleep(0.02)
            lock.check()
    lock.release()
    assert json.loads(files.read(f"{remote}/.lock"))["host"] == "far"  # its own is left to it
