"""Damaged steps: how they are found, and from which step a run goes on."""

import os
import random
import shutil

import pytest
from support.states import abstract, assert_same, make_state, restore_latest

from bert_jax import checkpoint
from bert_jax.checkpoint import reading
from bert_jax.errors import StorageError, UserError

pytestmark = pytest.mark.usefixtures("quick_compilation")


def flip_a_bit(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def array_files(step):
    """Every file that holds array bytes or leads to them."""
    files = [path for path in step.rglob("*") if path.is_file()]
    return sorted(path for path in files if path.parent.name == "d" or path.name == "manifest.ocdbt")


def test_flipped_bits_of_array_files_are_detected(copy):
    """A few bytes of an array file belong to no array, and which file holds the arrays is orbax's choice."""
    rng, seen = random.Random(1), 0
    expected = checkpoint.verify(copy / "6")
    data = [path for path in array_files(copy / "6") if path.name != "manifest.ocdbt"]
    contents = {path: path.read_bytes() for path in data}
    for _ in range(10):
        for path in contents:
            flip_a_bit(path, rng)
        try:
            assert checkpoint.verify(copy / "6") == expected
        except UserError as error:
            seen += "not those that were saved" in str(error) or "cannot be read" in str(error)
        for path, content in contents.items():
            path.write_bytes(content)
    assert seen >= 8


def test_the_digest_of_each_leaf_counts(copy, mesh, monkeypatch):
    """Orbax gives what another state held; nothing is wrong with any file."""
    real, other = reading.array_digests, {"params/mlm/bias": "0" * 16}
    monkeypatch.setattr(reading, "array_digests", lambda arrays: real(arrays) | other)
    with pytest.raises(UserError, match="the values of params/mlm/bias are not those that were saved"):
        checkpoint.verify(copy / "6")


DAMAGE = {
    "flipped bit": lambda step: [flip_a_bit(path, random.Random(2)) for path in array_files(step)],
    "truncated": lambda step: [os.truncate(path, 50) for path in array_files(step)],
    "missing file": lambda step: (step / "manifest.ocdbt").unlink(),
    "torn structure": lambda step: os.truncate(step / "_METADATA", 100),
    "no metadata": lambda step: (step / "_CHECKPOINT_METADATA").unlink(),
    "torn metadata": lambda step: os.truncate(step / "_CHECKPOINT_METADATA", 100),
    "emptied": lambda step: (shutil.rmtree(step), step.mkdir()),
    "a file": lambda step: (shutil.rmtree(step), step.write_text("")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_step_is_set_aside_for_the_newest_good_one(copy, mesh, damage):
    damage(copy / "6")
    (step, state), lines = restore_latest(copy, abstract(make_state(mesh)))
    assert step == 4
    assert_same(state, make_state(mesh, 4))
    assert sorted(os.listdir(copy)) == ["2", "4", "bad-6"]
    assert "renamed to bad-6" in lines[0] and "resuming from step 4; 2 steps are lost" in lines[1]


def test_all_bad_is_no_new_start(copy, mesh):
    for step in ("2", "4", "6"):
        DAMAGE["truncated"](copy / step)
    for _ in range(2):  # and it stays so the next time, with nothing left that looks like a step
        with pytest.raises(UserError, match=r"all checkpoints are damaged .bad-2, bad-4, bad-6"):
            restore_latest(copy, abstract(make_state(mesh)))


def test_load_params_falls_back_and_leaves_the_other_run_alone(copy, mesh):
    DAMAGE["truncated"](copy / "6")
    lines = []
    params, report = checkpoint.load_params(copy.parent, abstract(make_state(mesh)).params, log=lines.append)
    assert report.source == str(copy / "4") and "6 is damaged" in lines[0]
    assert_same(params, make_state(mesh, 4).params)
    assert sorted(os.listdir(copy)) == ["2", "4", "6"]
    with pytest.raises(UserError, match="all checkpoints are damaged"):
        checkpoint.load_params(copy / "6", abstract(make_state(mesh)).params, log=lines.append)


@pytest.mark.parametrize("damage", sorted(DAMAGE.keys() - {"emptied", "a file"}))
def test_damage_of_a_remote_step_is_told_from_an_error_of_the_network(copy, mesh, monkeypatch, damage):
    DAMAGE[damage](copy / "6")
    monkeypatch.setattr(reading.files, "is_remote", lambda path: True)
    with pytest.raises(reading.Damaged):
        reading.read_state(str(copy / "6"), abstract(make_state(mesh)))

    def fail(*args, **kwargs):
        raise ValueError("UNAVAILABLE: CURL error: Timeout was reached")

    monkeypatch.setattr(reading.ocp.PyTreeCheckpointHandler, "restore", fail)
    with pytest.raises(StorageError, match="UNAVAILABLE"):
        reading.read_state(str(copy / "4"), abstract(make_state(mesh)))
