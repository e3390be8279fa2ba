"""Checkpoints of a small state: round trips over meshes, damage, retention, weights for other models."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.states import abstract, assert_same, make_state, restore_latest, save

from bert_jax import checkpoint
from bert_jax.checkpoint import reading, saving, steps
from bert_jax.errors import StorageError, UserError
from bert_jax.parallel import sharding
from bert_jax.training.state import TrainState

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(data=2, fsdp=2, tensor=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, mesh):
    """A directory with steps 2, 4 and 6; tests that change it copy it."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    save(directory, (2, 4, 6), mesh)
    return directory


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


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


def test_few_steps_are_opened_to_find_those_to_delete(tmp_path, mesh, monkeypatch):
    """One of them cannot be read at the moment."""
    place, opened = tmp_path / "checkpoints", []
    save(place, range(1, 6), mesh, keep=9)

    def fail(path, check_files):
        opened.append(path)
        raise StorageError("the bucket does not answer")

    monkeypatch.setattr(saving.Step, "open", fail)
    save(place, [6], mesh, keep=2, keep_every=2)
    assert opened == [str(place / "5")]
    assert sorted(os.listdir(place)) == ["2", "4", "5", "6"]


def test_a_step_that_is_there_is_not_saved_again(copy, mesh):
    before = (copy / "6" / "files.json").stat().st_mtime_ns
    checkpointer = checkpoint.Checkpointer(copy)
    checkpointer.save(6, make_state(mesh, 7))
    checkpointer.close()
    assert (copy / "6" / "files.json").stat().st_mtime_ns == before
    assert sorted(os.listdir(copy)) == ["2", "4", "6"]


def test_what_a_killed_run_left_is_cleared(copy, mesh):
    (copy / "8.orbax-checkpoint-tmp").mkdir()
    (copy / "8.orbax-checkpoint-tmp" / "x").write_text("x")
    (copy / "2").rename(copy / "deleting-2")
    assert restore_latest(copy, abstract(make_state(mesh)))[0][0] == 6
    assert sorted(os.listdir(copy)) == ["4", "6"]


def flip_a_bit(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def array_files(step):
    """Every file that holds array bytes or leads to them."""
    files = [path for path in step.rglob("*") if path.is_file()]
    return sorted(path for path in files if path.parent.name == "d" or path.name == "manifest.ocdbt")


def test_a_flipped_bit_in_any_array_file_is_seen(copy, mesh):
    rng, seen = random.Random(0), 0
    for path in array_files(copy / "6"):
        content = path.read_bytes()
        for _ in range(5):
            flip_a_bit(path, rng)
            with pytest.raises(UserError, match=r"6: .*missing or has other bytes"):
                checkpoint.verify(copy / "6")
            path.write_bytes(content)
            seen += 1
    assert seen >= 20
    assert checkpoint.verify(copy / "6").keys() == checkpoint.describe(copy / "6").keys()


def test_wrong_values_are_seen_without_the_list_of_files(copy):
    """A few bytes of an array file belong to no array, and which file holds the arrays is orbax's to choose:
    a flip in each of them has to show, most of the times."""
    rng, seen = random.Random(1), 0
    expected = checkpoint.verify(copy / "6")
    data = [path for path in array_files(copy / "6") if path.name != "manifest.ocdbt"]
    contents = {path: path.read_bytes() for path in data}
    (copy / "6" / "files.json").unlink()
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
    real, other = steps.array_digests, {"params/mlm/bias": "0" * 16}
    monkeypatch.setattr(steps, "array_digests", lambda arrays: real(arrays) | other)
    with pytest.raises(UserError, match="the values of params/mlm/bias are not those that were saved"):
        checkpoint.verify(copy / "6")


def test_orbax_prints_nothing_of_a_step_that_cannot_be_read(copy):
    """Of a step without the list of its files, so that orbax itself finds out what is missing."""
    (copy / "6" / "files.json").unlink()
    for path in array_files(copy / "6"):
        path.unlink()
    program = f"""
from bert_jax import checkpoint
from bert_jax.errors import UserError
from bert_jax.training.state import TrainState
try:
    checkpoint.verify({str(copy / "6")!r})
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "cannot be read" in done.stdout and done.stdout.count("\n") == 1
    assert done.stderr == ""


DAMAGE = {
    "flipped bit": lambda step: flip_a_bit(array_files(step)[0], random.Random(2)),
    "truncated": lambda step: os.truncate(max(array_files(step), key=lambda path: path.stat().st_size), 50),
    "missing file": lambda step: array_files(step)[-1].unlink(),
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
    assert "set aside as bad-6" in lines[0] and "resuming from step 4; 2 steps are lost" in lines[1]


def test_an_empty_directory_is_not_the_latest(copy, mesh):
    (copy / "9").mkdir()
    (step, _), lines = restore_latest(copy, abstract(make_state(mesh)))
    assert step == 6 and "it is empty" in lines[0]
    assert sorted(os.listdir(copy)) == ["2", "4", "6", "bad-9"]


def test_what_was_set_aside_before_is_kept(copy, mesh):
    (copy / "bad-6").mkdir()
    DAMAGE["truncated"](copy / "6")
    restore_latest(copy, abstract(make_state(mesh)))
    assert sorted(os.listdir(copy)) == ["2", "4", "bad-6", "bad-6-2"]


def test_all_bad_is_no_new_start(copy, mesh):
    for step in ("2", "4", "6"):
        DAMAGE["truncated"](copy / step)
    for _ in range(2):  # and it stays so the next time, with nothing left that looks like a step
        with pytest.raises(UserError, match=r"no checkpoint is intact .bad-2, bad-4, bad-6 set aside"):
            restore_latest(copy, abstract(make_state(mesh)))


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


def test_an_error_in_the_background_surfaces_at_the_next_call(copy, mesh, monkeypatch):
    def fail(*unused, **also_unused):
        raise OSError(errno.EIO, "Input/output error")

    checkpointer = checkpoint.Checkpointer(copy)
    checkpointer.save(8, make_state(mesh, 8))
    checkpointer.wait()
    monkeypatch.setattr(saving, "write_file_digests", fail)
    checkpointer.save(10, make_state(mesh, 10))
    with pytest.raises(StorageError, match=r"step 10 failed .*Input/output error.*intact steps: 4, 6, 8;"):
        while True:
            checkpointer.poll()
            time.sleep(0.01)
    checkpointer.close()
    assert restore_latest(copy, abstract(make_state(mesh)))[0][0] == 8


@pytest.mark.parametrize("has_failed", [False, True])
def test_an_error_that_arrives_at_the_close_is_raised_once(tmp_path, mesh, monkeypatch, has_failed):
    checkpointer = checkpoint.Checkpointer(tmp_path / "checkpoints")
    checkpointer.save(1, make_state(mesh))
    checkpointer.wait()

    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer._orbax, "check_for_errors", fail)
        if has_failed:
            with pytest.raises(StorageError, match="No space left on device"):
                checkpointer.poll()
    orbax_close = checkpointer._orbax.close
    monkeypatch.setattr(checkpointer._orbax, "close", lambda: (orbax_close(), fail()))
    with contextlib.nullcontext() if has_failed else pytest.raises(StorageError, match="intact steps: 1;"):
        checkpointer.close()


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


def test_too_little_space_is_found_before_anything_is_saved(small_disk, mesh):
    checkpointer = checkpoint.Checkpointer(small_disk / "checkpoints")
    checkpointer.check_space(abstract(make_state(mesh)))
    with pytest.raises(StorageError, match="MB are free and a checkpoint takes up to"):
        checkpointer.check_space(abstract(make_state(mesh, hidden=4096)))


def test_all_processes_write_on_the_same_disk(tmp_path, mesh, monkeypatch):
    checkpointer = checkpoint.Checkpointer(tmp_path / "checkpoints")
    state = abstract(make_state(mesh))
    free = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)) - 1
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=free))
    monkeypatch.setattr(jax, "process_count", lambda: 16)
    with pytest.raises(StorageError, match="MB are free and a checkpoint takes up to"):
        checkpointer.check_space(state)


def params_like(mesh, **changes):
    params = make_state(mesh).params | changes
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)


@pytest.mark.parametrize("kind", ["work directory", "checkpoints", "step"])
def test_load_params_finds_the_newest_step(copy, mesh, kind):
    path = {"work directory": copy.parent, "checkpoints": copy, "step": copy / "4"}[kind]
    step = 4 if kind == "step" else 6
    params, report = checkpoint.load_params(path, params_like(mesh))
    assert_same(params, make_state(mesh, step).params)
    assert report == checkpoint.Report(
        str(copy / str(step)), ("encoder/bias", "encoder/kernel", "mlm/bias"), (), ()
    )


def test_load_params_reports_new_and_unused(copy, mesh):
    target = params_like(mesh, classifier={"bias": jnp.zeros(3)})
    del target["mlm"]
    params, report = checkpoint.load_params(copy, target)
    assert (report.new, report.unused) == (("classifier/bias",), ("mlm/bias",))
    assert "loaded 2 of 3 tensors" in str(report) and "not used: mlm/bias" in str(report)
    assert sorted(params) == ["encoder"]


def test_load_params_places_and_casts(copy, mesh):
    where = NamedSharding(mesh, PartitionSpec("fsdp"))
    target = {"encoder": {"kernel": jax.ShapeDtypeStruct((16, 32), jnp.bfloat16, sharding=where)}}
    kernel = checkpoint.load_params(copy, target)[0]["encoder"]["kernel"]
    assert (kernel.dtype, kernel.sharding) == (jnp.bfloat16, where)
    assert_same(kernel, make_state(mesh, 6).params["encoder"]["kernel"].astype(jnp.bfloat16))


def test_load_params_merges_an_update_of_a_rank_that_no_mesh_divides(tmp_path, mesh):
    rng = np.random.default_rng(0)
    shapes = {"kernel": (16, 32), "kernel_lora_a": (16, 3), "kernel_lora_b": (3, 32), "kernel_lora_scale": ()}
    stored = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    checkpointer = checkpoint.Checkpointer(tmp_path)
    checkpointer.save(1, TrainState(jnp.int32(1), jax.tree.map(jnp.asarray, stored), ()))
    checkpointer.close()
    place = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    target = {"kernel": jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=place)}
    kernel = checkpoint.load_params(tmp_path, target)[0]["kernel"]
    assert kernel.sharding == place
    expected = stored["kernel"] + stored["kernel_lora_scale"] * (
        stored["kernel_lora_a"] @ stored["kernel_lora_b"]
    )
    np.testing.assert_allclose(kernel, expected, rtol=1e-5, atol=1e-5)


def test_load_params_of_another_shape(copy, mesh):
    target = params_like(mesh, mlm={"bias": jnp.zeros(17)})
    with pytest.raises(UserError, match=r"params/mlm/bias has shape \(16,\) there and \(17,\) here"):
        checkpoint.load_params(copy, target)


def test_load_params_with_nothing_in_common(copy):
    with pytest.raises(UserError, match="none of the 1 tensor of this model"):
        checkpoint.load_params(copy, {"other": jax.ShapeDtypeStruct((2,), jnp.float32)})


def test_load_params_falls_back_and_leaves_the_other_run_alone(copy, mesh):
    DAMAGE["truncated"](copy / "6")
    lines = []
    params, report = checkpoint.load_params(copy.parent, params_like(mesh), log=lines.append)
    assert report.source == str(copy / "4") and "6 is damaged" in lines[0]
    assert_same(params, make_state(mesh, 4).params)
    assert sorted(os.listdir(copy)) == ["2", "4", "6"]
    with pytest.raises(UserError, match="no checkpoint is intact"):
        checkpoint.load_params(copy / "6", params_like(mesh), log=lines.append)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_load_params_where_there_is_no_checkpoint(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"{name}: no .*expected a work directory"):
        checkpoint.load_params(tmp_path / name, {"x": jax.ShapeDtypeStruct((2,), jnp.float32)})


def test_load_state_of_another_run(copy, mesh):
    source, state = checkpoint.load_state(copy.parent, abstract(make_state(mesh)))
    assert source == str(copy / "6")
    assert_same(state, make_state(mesh, 6))
