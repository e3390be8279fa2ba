"""Runs with `optimizer.freeze`: the frozen parameters are saved once, and whatever reads the run sees all."""

import json

import jax
import numpy as np
import optax
import pytest
from support import fine_tuned
from support.models import packed_batch, tiny_task
from support.pretrained import write
from support.stored_params import stored_params

from bert_jax import checkpoint, cli, convert
from bert_jax.checkpoint.leaves import flatten
from bert_jax.inference.predictor import Predictor
from bert_jax.parallel import placement, sharding
from bert_jax.training import optimizers
from bert_jax.training.state import init_state
from bert_jax.training.step import make_train_step

FREEZE = "encoder/embeddings/.*|encoder/layers/0/.*"
KERNEL = "encoder/layers/stack/layer/query/kernel"


def run(files, workdir, pretrained, *more):
    flags = (
        "--config.max_seq_length=16", "--config.batch_size=16", "--config.epochs=4", "--config.eval.every=2",
        "--config.checkpoint.every=4", "--config.optimizer.learning_rate=0.003",
        "--config.optimizer.warmup_steps=1", "--config.checkpoint.keep=9", *fine_tuned.NO_DROPOUT,
    )  # fmt: skip
    freeze = f"--config.optimizer.freeze={FREEZE}"
    command = fine_tuned.command(
        files, workdir, pretrained, *flags, freeze, *more, text="text", label="color"
    )
    return cli.main(command)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, vocabulary):
    return write(tmp_path_factory.mktemp("pretrained"), vocabulary, num_hidden_layers=2)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory, files, pretrained):
    workdir = tmp_path_factory.mktemp("frozen")
    assert run(files, workdir, pretrained) == 0
    return workdir


def check(params, pretrained):
    """The parameters are those of the whole model; what is frozen has the values of before."""
    before = stored_params(pretrained)
    shapes = {name: x.shape for name, x in params.items() if name.startswith("encoder/")}
    assert shapes == {name: x.shape for name, x in before.items() if name.startswith("encoder/")}
    for name, x in params.items():
        if name.startswith("encoder/layers/"):
            np.testing.assert_array_equal(x[0], before[name][0])
            assert np.any(np.asarray(x[1]) != np.asarray(before[name][1])), name
        elif name.startswith("encoder/"):
            np.testing.assert_array_equal(x, before[name], err_msg=name)
    assert "classifier/kernel" in params


@pytest.mark.long
def test_steps_hold_what_is_trained_and_their_directory_the_rest_once(frozen):
    saved = checkpoint.describe(frozen / "checkpoints" / "8")
    assert f"params/{KERNEL}/axis0_1" in saved and f"params/{KERNEL}" not in saved
    assert not any("embeddings" in name or "axis0_0" in name for name in saved)
    shared = checkpoint.describe(frozen / "checkpoints" / "frozen")
    assert {f"frozen/params/{KERNEL}/axis0_0", "frozen/params/encoder/embeddings/word_embeddings"} < set(
        shared
    )
    assert all(name.startswith("frozen/params/encoder/") for name in shared)
    checkpoint.verify(frozen / "checkpoints" / "8")


@pytest.mark.long
def test_every_reader_sees_the_joined_parameters(frozen, pretrained, tmp_path):
    check(stored_params(frozen), pretrained)
    best = json.loads((frozen / "best.json").read_text())
    check(stored_params(frozen / "best" / str(best["step"])), pretrained)
    check(convert.load(frozen).params, pretrained)
    check(flatten(placement.restack(Predictor(frozen, log=[].append)._params)), pretrained)
    assert cli.main(["convert", f"--input={frozen}", f"--output={tmp_path}/hf", "--to=huggingface"]) == 0
    check(convert.load(tmp_path / "hf").params, pretrained)


@pytest.mark.long
def test_a_run_resumes_to_the_same_end(frozen, files, pretrained, tmp_path, capsys):
    fine_tuned.assert_resumes_to_the_same_end(
        lambda copy: run(files, copy, pretrained), frozen, tmp_path / "run", capsys
    )


@pytest.mark.slow
def test_what_is_trained_is_trained_as_if_nothing_were_frozen():
    """One step without clipping: the updates of the others are the same, and the frozen ones are sharded."""
    task, mesh = tiny_task(num_hidden_layers=2), sharding.make_mesh(2, 2, 2)
    batch = sharding.global_batch(packed_batch(rows=16), mesh)

    def step_of(objective):
        optimizer = optax.scale_by_adam()
        state = init_state(objective, optimizer, mesh, 0)
        shardings = jax.tree.map(lambda x: x.sharding, state)
        step = make_train_step(objective, optimizer, lambda step: 0.01)
        state, metrics = sharding.jit_train_step(step, mesh, shardings)(state, batch, np.uint32(3))
        return objective.join(state.params, state.frozen), metrics, state

    whole, expected, _ = step_of(task)
    joined, metrics, state = step_of(optimizers.freeze(task, FREEZE))
    init = jax.jit(lambda: sharding.unbox(task.init(jax.random.key(0, impl="threefry2x32"))))
    whole, begun = flatten(whole), flatten(init())
    assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-6)
    for name, x in flatten(joined).items():
        frozen = x.shape[0] if "/embeddings/" in name else int("/layers/" in name)
        np.testing.assert_allclose(x[:frozen], begun[name][:frozen], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(x[frozen:], whole[name][frozen:], rtol=1e-4, atol=1e-5)
    specs = {name: x.sharding.spec for name, x in flatten(state.frozen).items()}
    assert specs[f"params/{KERNEL}/axis0_0"] == jax.sharding.PartitionSpec(None, "fsdp", "tensor", None)
