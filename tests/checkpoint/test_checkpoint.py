"""Checkpoints of a small state: round trips over meshes, what is kept, and what does not fit."""

import os
import threading

import jax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.states import abstract, assert_same, make_state, restore_latest, save

from bert_jax import checkpoint
from bert_jax.checkpoint import reading, saving
from bert_jax.errors import UserError
from bert_jax.parallel import sharding
from bert_jax.training.state import TrainState

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("sizes", [(2, 2, 2), (8, 1, 1), (1, 8, 1), (1, 1, 8), (1, 4, 2)])
def test_a_state_comes_back_bit_for_bit_on_any_mesh(saved, mesh, sizes):
    other = sharding.make_mesh(*sizes)
    (step, state), lines = restore_latest(saved, abstract(make_state(mesh), other))
    assert (step, lines) == (6, [])
    assert isinstance(state, TrainState)
    assert_same(state, make_state(mesh, 6))
    moment = state.opt_state[0].mu["encoder"]["kernel"]
    assert moment.sharding == NamedSharding(other, PartitionSpec("fsdp", "tensor"))


def test_a_state_may_be_donated_once_save_returns(tmp_path, mesh):
    spoil = jax.jit(lambda state: jax.tree.map(lambda x: x * 0 - 1, state), donate_argnums=0)
    checkpointer = checkpoint.Checkpointer(tmp_path / "checkpoints")
    for step in range(1, 4):
        state = make_state(mesh, step)
        checkpointer.save(step, state)
        jax.block_until_ready(spoil(state))
    checkpointer.close()
    for step in (1, 2, 3):
        restored = reading.read_state(str(tmp_path / "checkpoints" / str(step)), abstract(make_state(mesh)))
        assert_same(restored, make_state(mesh, step))


def test_the_newest_and_every_nth_are_kept(tmp_path, mesh):
    save(tmp_path / "checkpoints", range(1, 10), mesh, keep=2, keep_every=4)
    assert sorted(os.listdir(tmp_path / "checkpoints"), key=int) == ["4", "8", "9"]


def test_steps_do_not_wait_for_the_store(copy, mesh, monkeypatch):
    """A save after the last one is done, its errors and deletions: the store is asked in other threads."""
    checkpointer, main, asked = checkpoint.Checkpointer(copy, keep=2), threading.current_thread(), []

    def watch(name):
        function = getattr(saving.files, name)

        def call(*arguments, **options):
            asked.append((name, threading.current_thread() is main))
            return function(*arguments, **options)

        monkeypatch.setattr(saving.files, name, call)

    for name in ("names", "exists", "move", "remove", "remove_tree"):
        watch(name)
    for step in (8, 10):
        checkpointer.save(step, make_state(mesh, step))
        checkpointer.wait()
    checkpointer.poll()
    assert ("move", False) in asked and not any(in_main for _, in_main in asked)
    checkpointer.close()
    assert sorted(os.listdir(copy)) == ["10", "8"]


def test_a_step_that_is_there_is_not_saved_again(copy, mesh):
    before = (copy / "6" / "_METADATA").stat().st_mtime_ns
    checkpointer = checkpoint.Checkpointer(copy)
    checkpointer.save(6, make_state(mesh, 7))
    checkpointer.close()
    assert (copy / "6" / "_METADATA").stat().st_mtime_ns == before
    assert sorted(os.listdir(copy)) == ["2", "4", "6"]


def test_what_a_killed_run_left_is_cleared(copy, mesh):
    (copy / "8.orbax-checkpoint-tmp").mkdir()
    (copy / "8.orbax-checkpoint-tmp" / "x").write_text("x")
    (copy / "2").rename(copy / "deleting-2")
    assert restore_latest(copy, abstract(make_state(mesh)))[0][0] == 6
    assert sorted(os.listdir(copy)) == ["4", "6"]


def test_another_shape_names_the_leaf_and_both_shapes(copy, mesh):
    with pytest.raises(UserError, match=r"encoder/kernel has shape \(16, 32\) there and \(24, 32\) here"):
        restore_latest(copy, abstract(make_state(mesh, hidden=24)))
    assert sorted(os.listdir(copy)) == ["2", "4", "6"]  # another model is no damage


def test_plain_orbax_reads_a_step(saved, mesh):
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.restore(saved / "6")
    expected = make_state(mesh, 6)
    assert_same(tree["params"], expected.params)
    assert_same(tree["opt_state"]["0"]["nu"], expected.opt_state[0].nu)


def test_steps_are_deleted_once_the_new_one_is_on_the_disk(monkeypatch, tmp_path):
    """All its files, its directory and its name are flushed before an old step gets another name."""
    for step in range(1, 7):
        (tmp_path / str(step)).mkdir()
    checkpointer, calls, paths = checkpoint.Checkpointer(tmp_path), [], {}
    (tmp_path / "6" / "d").mkdir()
    for name in ("6/_METADATA", "6/d/data"):
        (tmp_path / name).write_text("content")
    open_, fsync, replace = os.open, os.fsync, os.replace

    def opened(path, *args, **kwargs):
        descriptor = open_(path, *args, **kwargs)
        paths[descriptor] = os.path.relpath(path, tmp_path)
        return descriptor

    def flushed(descriptor):
        calls.append(paths[descriptor])
        fsync(descriptor)

    def renamed(*names):
        calls.append("rename")
        replace(*names)

    for name, function in (("open", opened), ("fsync", flushed), ("replace", renamed)):
        monkeypatch.setattr(os, name, function)
    checkpointer.delete_others(6)
    first = calls.index("rename")
    assert {"6/_METADATA", "6/d/data", "6/d", "6", "."} <= set(calls[:first])
    checkpointer.close()
    assert calls[first:] == ["rename"] * 5 and os.listdir(tmp_path) == ["6"]
