"""Runs that train a part of the model, with `optimizer.freeze` or `adapter.kind`: frozen parameters are saved
once, and all readers of the run get the joined or merged parameters."""

import functools
import json
import math

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
from bert_jax.settings.run_config import AdapterConfig
from bert_jax.training.adapters import adapt
from bert_jax.training.state import init_state
from bert_jax.training.step import make_train_step

FREEZE = "encoder/embeddings/.*|encoder/layers/0/.*"
KERNEL = "encoder/layers/stack/layer/query/kernel"
KINDS = {
    "freeze": (f"--config.optimizer.freeze={FREEZE}",),
    "lora": ("--config.adapter.kind=lora", "--config.adapter.rank=2", "--config.adapter.alpha=4"),
    "houlsby": ("--config.adapter.kind=houlsby", "--config.adapter.size=4"),
}


def run(kind, files, workdir, pretrained):
    flags = (
        "--config.max_seq_length=16", "--config.batch_size=16", "--config.epochs=4", "--config.eval.every=2",
        "--config.checkpoint.every=4", "--config.optimizer.learning_rate=0.01",
        "--config.optimizer.warmup_steps=1", "--config.checkpoint.keep=9", *fine_tuned.NO_DROPOUT,
    )  # fmt: skip
    more = KINDS[kind]
    return cli.main(fine_tuned.command(files, workdir, pretrained, *flags, *more, text="text", label="color"))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, vocabulary):
    return write(tmp_path_factory.mktemp("pretrained"), vocabulary, num_hidden_layers=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, files, pretrained):
    """Returns a function from a kind to the work directory of a finished run."""

    @functools.cache
    def train(kind):
        workdir = tmp_path_factory.mktemp(kind)
        assert run(kind, files, workdir, pretrained) == 0
        return workdir

    return train


def changed(kind, params, pretrained):
    """Returns (name, layer) of changed encoder parameters; asserts that names and shapes did not change."""
    before = stored_params(pretrained)
    shapes = {name: x.shape for name, x in params.items() if name.startswith("encoder/")}
    assert shapes == {name: x.shape for name, x in before.items() if name.startswith("encoder/")}
    assert "classifier/kernel" in params
    return {
        (name, layer)
        for name in shapes
        for layer in (range(2) if "/layers/" in name else (None,))
        if np.any(np.asarray(params[name])[layer] != np.asarray(before[name])[layer])
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", ["freeze", "lora"])
def test_every_reader_sees_the_whole_model(trained, kind, pretrained, tmp_path):
    directory = trained(kind)
    best = json.loads((directory / "best.json").read_text())
    assert cli.main(["convert", f"--input={directory}", f"--output={tmp_path}/hf", "--to=huggingface"]) == 0
    predictor = flatten(placement.restack(Predictor(directory, log=[].append)._loaded[1]))
    stored, loaded = stored_params(directory), convert.load(directory).params
    if kind == "freeze":
        expected = {(name, 1) for name in stored if "/layers/" in name}
    else:
        names = (KERNEL, KERNEL.replace("query", "value"))
        expected = {(name, layer) for name in names for layer in range(2)}
    for params in (
        stored,
        stored_params(directory / "best" / str(best["step"])),
        loaded,
        convert.load(tmp_path / "hf").params,
        predictor,
    ):
        assert changed(kind, params, pretrained) == expected
    np.testing.assert_allclose(predictor[KERNEL], loaded[KERNEL], rtol=1e-6, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_to_the_same_end(trained, kind, files, pretrained, tmp_path, capsys):
    fine_tuned.assert_resumes_to_the_same_end(
        lambda copy: run(kind, files, copy, pretrained), trained(kind), tmp_path / "run", capsys
    )


@pytest.mark.long
def test_steps_hold_what_is_trained_and_their_directory_the_rest_once(trained):
    frozen = trained("freeze")
    saved = checkpoint.verify(frozen / "checkpoints" / "8")
    assert f"params/{KERNEL}/axis0_1" in saved and f"params/{KERNEL}" not in saved
    assert not any("embeddings" in name or "axis0_0" in name for name in saved)
    shared = checkpoint.verify(frozen / "checkpoints" / "frozen")
    assert {f"frozen/params/{KERNEL}/axis0_0", "frozen/params/encoder/embeddings/word_embeddings"} < set(
        shared
    )
    assert all(name.startswith("frozen/params/encoder/") for name in shared)
    checkpoint.verify(frozen / "checkpoints" / "8")


@pytest.mark.long
def test_steps_hold_the_updates_and_the_head(trained):
    adapted = trained("lora")
    saved = set(checkpoint.verify(adapted / "checkpoints" / "8"))
    trained = {name for name in saved if name.startswith("params/")}
    assert trained == {"params/classifier/kernel", "params/classifier/bias"} | {
        f"params/encoder/layers/stack/layer/{name}/kernel_lora_{factor}"
        for name in ("query", "value")
        for factor in "ab"
    }
    shared = checkpoint.verify(adapted / "checkpoints" / "frozen")
    assert {f"frozen/params/{KERNEL}", f"frozen/params/{KERNEL}_lora_scale"} < set(shared)


@pytest.mark.long
def test_bottlenecks_and_norms_are_trained_and_the_rest_is_not(trained, pretrained, tmp_path, capsys):
    bottlenecks = trained("houlsby")
    model, before = convert.load(bottlenecks), convert.load(pretrained)
    assert (model.config.attention_adapter, model.config.output_adapter) == (4, 4)
    new = {name for name in model.params if "_adapter/" in name}
    assert len(new) == 8 and all(np.any(model.params[name]) for name in new)
    for name in model.params.keys() - new:
        if not name.startswith("classifier/"):
            same = np.array_equal(model.params[name], before.params[name])
            assert same == ("norm/" not in name), name
    saved = set(checkpoint.verify(bottlenecks / "checkpoints" / "8"))
    moments = [name for name in saved if name.startswith("opt_state") and "query" in name]
    assert not moments and any("opt_state" in name and "_adapter" in name for name in saved)
    flags = [f"--input={bottlenecks}", f"--output={tmp_path}/out"]
    for to, message in (
        ("huggingface", "attention_adapter"),
        ("peft", "no low-rank updates"),
    ):
        capsys.readouterr()
        assert cli.main(["convert", *flags, f"--to={to}"]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "kind, mesh",
    [
        ("lora", (2, 2, 2)),
        ("bitfit", (1, 1, 1)),
        ("head", (1, 1, 1)),
        *(pytest.param(kind, (2, 2, 2), marks=pytest.mark.slow) for kind in ("bitfit", "head")),
    ],
)
def test_a_step_of_pre_training(kind, mesh):
    """A step leaves frozen parameters bit-identical and changes all others that have a nonzero gradient."""
    devices = jax.devices()[: math.prod(mesh)]
    task, mesh = tiny_task(num_hidden_layers=2), sharding.make_mesh(*mesh, devices)
    objective = adapt(task, AdapterConfig(kind=kind, rank=2))
    optimizer = optax.scale_by_adam()
    state = init_state(objective, optimizer, mesh, 0)
    before = {name: np.asarray(x) for name, x in flatten(state.params).items()}
    frozen = {name: np.asarray(x) for name, x in flatten(state.frozen).items()}
    shardings = jax.tree.map(lambda x: x.sharding, state)
    step = make_train_step(objective, optimizer, lambda step: 0.01)
    batch = sharding.global_batch(packed_batch(rows=16), mesh)
    state, metrics = sharding.jit_train_step(step, mesh, shardings)(state, batch, np.uint32(3))
    assert np.isfinite(float(metrics["loss"]))
    for name, x in flatten(state.frozen).items():
        np.testing.assert_array_equal(x, frozen[name])
    moved = {name for name, x in flatten(state.params).items() if np.any(np.asarray(x) != before[name])}
    # The gradient of A is 0 while B is 0. The gradient of the key's bias is always 0: softmax ignores it.
    still = {name for name in before if name.endswith("_lora_a")}
    assert before.keys() - still - {"encoder/layers/stack/layer/key/bias"} <= moved
