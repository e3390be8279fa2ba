"""The lock on a directory: live, killed and suspended holders, on this host and on others."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bert_jax.errors import UserError
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


def held_by_another_host(directory, age, **changes):
    """Writes what a run of another host would have written `age` seconds ago."""
    holder = {"host": "far", "boot": "1", "pid": 7, "started": "1", "token": "x"}
    (directory / ".lock").write_text(json.dumps(holder | {"renewed": time.time() - age} | changes))


def test_two_in_one_directory(tmp_path, holder):
    with pytest.raises(UserError, match=f"in use by another run .process {holder.pid} on .* another --work"):
        Lock(tmp_path).acquire()


def test_two_in_one_process(tmp_path):
    first = Lock(tmp_path)
    first.acquire()
    with pytest.raises(UserError, match="in use"):
        Lock(tmp_path).acquire()
    first.release()
    second = Lock(tmp_path)
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


def test_another_host_that_renews_is_alive(tmp_path):
    held_by_another_host(tmp_path, age=1e6)

    def renew(text):
        held_by_another_host(tmp_path, age=1e6 - 5)

    with pytest.raises(UserError, match=r"in use by another run .process 7 on far"):
        Lock(tmp_path, lease=1.2, log=renew).acquire()


def test_a_lock_taken_over_by_another_host_is_noticed(tmp_path):
    lock = Lock(tmp_path, lease=0.3)
    lock.acquire()
    deadline = time.monotonic() + 10
    with pytest.raises(UserError, match="taken over by process 7 on far while this run was suspended"):
        while time.monotonic() < deadline:
            held_by_another_host(tmp_path, age=0)
            time.sleep(0.02)
            lock.check()
    lock.release()
    assert json.loads((tmp_path / ".lock").read_text())["host"] == "far"  # its own is left to it
