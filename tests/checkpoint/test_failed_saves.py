"""Saves that fail: in the background, and for lack of space."""

import errno
import subprocess
import time

import pytest
from support.states import abstract, assert_same, make_state, restore_latest

from bert_jax import checkpoint
from bert_jax.checkpoint import saving
from bert_jax.errors import StorageError

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_an_error_in_the_background_surfaces_at_the_next_call(copy, mesh, monkeypatch):
    def fail(*unused, **also_unused):
        raise OSError(errno.EIO, "Input/output error")

    checkpointer = checkpoint.Checkpointer(copy)
    checkpointer.save(8, make_state(mesh, 8))
    checkpointer.wait()
    monkeypatch.setattr(saving.ocp.PyTreeCheckpointHandler, "finalize", fail)
    checkpointer.save(10, make_state(mesh, 10))
    with pytest.raises(StorageError, match=r"step 10 failed .*Input/output error.*intact steps: 4, 6, 8$"):
        while True:
            checkpointer.poll()
            time.sleep(0.01)
    checkpointer.close()
    assert restore_latest(copy, abstract(make_state(mesh)))[0][0] == 8


@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_fails_the_save_and_keeps_the_earlier_steps(small_disk, mesh):
    checkpointer = checkpoint.Checkpointer(small_disk / "checkpoints", keep=100)
    with pytest.raises(StorageError, match=r"step .* failed .*No space left on device.*; intact steps: 1"):
        for step in range(1, 20):
            checkpointer.save(step, make_state(mesh, step, hidden=800))
            checkpointer.wait()
    checkpointer.close()
    steps = checkpointer.steps()
    assert steps == list(range(1, len(steps) + 1))
    (step, state), lines = restore_latest(small_disk / "checkpoints", abstract(make_state(mesh, hidden=800)))
    assert (step, lines) == (steps[-1], [])
    assert_same(state, make_state(mesh, step, hidden=800))
