"""Checkpoints of a small state: round trips over meshes, what is kept, and what does not fit."""

import os

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.states import abstract, assert_same, make_state, restore_latest, save

from bert_jax import checkpoint
from bert_jax.checkpoint import reading
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


def test_a_state_comes_back_on_fewer_devices(saved, mesh):
    one = sharding.make_mesh(devices=jax.devices()[:1])
    (_, state), _ = restore_latest(saved, abstract(make_state(mesh), one))
    assert_same(state, make_state(mesh, 6))


def test_relative_paths(tmp_path, mesh, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("run/checkpoints", [3], mesh)
    state = make_state(mesh, 3)
    step, restored = checkpoint.Checkpointer("run/checkpoints").restore_latest(abstract(state))
    assert step == 3
    assert_same(restored, state)
    assert checkpoint.verify("run/checkpoints/3")
    for path in ("run", "run/checkpoints", "run/checkpoints/3"):
        params, _ = checkpoint.load_params(path, jax.tree.map(abstract, state.params))
        assert_same(params, state.params)


@pytest.mark.parametrize("name", ["04", "²", "٣", "9" * 10, "1" * 5000])
def test_a_name_that_no_step_has(name):
    assert not checkpoint.is_step(name) and checkpoint.is_step("0") and checkpoint.is_step("40")


def test_other_directories_beside_the_steps_are_left_alone(copy, mesh):
    for name in ("0008", "²"):
        (copy / name).mkdir()
    assert checkpoint.list_steps(str(copy)) == [2, 4, 6]
    (step, _), lines = restore_latest(copy, abstract(make_state(mesh)))
    assert (step, lines) == (6, []) and (copy / "0008").is_dir()


def test_a_file_in_place_of_the_directory(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(
        UserError, match=r"checkpoints: cannot be made \(File exists\); expected the directory"
    ):
        checkpoint.Checkpointer(tmp_path / "checkpoints")


def test_nothing_saved_is_none(tmp_path, mesh):
    assert restore_latest(tmp_path / "new", abstract(make_state(mesh)))[0] is None


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


def test_another_optimizer_names_the_leaves(copy, mesh):
    with pytest.raises(UserError, match=r"another model or optimizer: .*opt_state/0/trace"):
        restore_latest(copy, abstract(make_state(mesh, optimizer=optax.sgd(0.1, momentum=0.9))))


def test_another_dtype_is_not_cast(copy, mesh):
    target = abstract(make_state(mesh))
    target = target.replace(params=jax.tree.map(lambda x: x.update(dtype=jnp.bfloat16), target.params))
    with pytest.raises(UserError, match="params/encoder/bias is float32 there and bfloat16 here"):
        restore_latest(copy, target)


def test_plain_orbax_reads_a_step(saved, mesh):
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.restore(saved / "6")
    expected = make_state(mesh, 6)
    assert_same(tree["params"], expected.params)
    assert_same(tree["opt_state"]["0"]["nu"], expected.opt_state[0].nu)


def test_describe_gives_shapes_without_reading_arrays(saved):
    leaf = checkpoint.describe(saved / "6")["params/encoder/kernel"]
    assert (leaf.shape, leaf.dtype, len(leaf.digest)) == ((16, 32), "float32", 16)


def test_describe_of_something_else(tmp_path):
    with pytest.raises(UserError, match="it is empty"):
        checkpoint.describe(tmp_path)
