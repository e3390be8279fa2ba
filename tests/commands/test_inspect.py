"""`bert-jax inspect` on checkpoints; tests/data/inspection has records and vocabularies."""

import json
import shutil

import jax
import jax.numpy as jnp
import pytest

from bert_jax import checkpoint, cli


@pytest.fixture
def workdir(tmp_path):
    """A work directory with the steps 5 and 10."""
    checkpointer = checkpoint.Checkpointer(tmp_path / "checkpoints", log=lambda text: None)
    for step in (5, 10):
        params = {"encoder": {"kernel": jnp.full((4, 6), step, jnp.float32), "bias": jnp.zeros(6)}}
        checkpointer.save(step, {"step": jnp.int32(step), "params": jax.device_put(params)})
    checkpointer.close()
    return tmp_path


def inspect(capsys, path):
    code = cli.main(["inspect", "--json", str(path)])
    return code, json.loads(capsys.readouterr().out)


def damage(step):
    """Changes a bit of each file with arrays, one of which is a copy that is not read."""
    for path in (path for path in step.rglob("*") if path.is_file() and "/d/" in str(path)):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))


def test_every_step_of_a_work_directory(workdir, capsys):
    code, report = inspect(capsys, workdir)
    assert code == 0 and report["kind"] == "work directory" and report["problems"] == []
    for step in ("5", "10"):
        assert report["facts"][step]["parameters"] == 30
        assert report["facts"][step]["shapes"]["params/encoder/kernel"] == [4, 6]
    assert cli.main(["inspect", str(workdir)]) == 0
    assert "parameters: 30" in capsys.readouterr().out


def test_damaged_steps_are_told_and_the_others_are_read(workdir, capsys):
    shutil.copytree(workdir / "checkpoints" / "5", workdir / "best" / "5")
    code, report = inspect(capsys, workdir)
    assert code == 0 and {"best/5", "5", "10"} <= report["facts"].keys()
    for folder in ("best", "checkpoints"):
        damage(workdir / folder / "5")
    code, report = inspect(capsys, workdir)
    assert code == 1 and "10" in report["facts"] and not {"5", "best/5"} & report["facts"].keys()
    for folder, problem in zip(("best", "checkpoints"), report["problems"], strict=True):
        assert f"{folder}/5" in problem
