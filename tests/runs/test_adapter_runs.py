"""Runs with `adapter.kind`: what they train and save, and that whatever reads them sees the merged model."""

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

QUERY = "encoder/layers/stack/layer/query/kernel"
LORA = ("--config.adapter.kind=lora", "--config.adapter.rank=2", "--config.adapter.alpha=4")

HOULSBY = ("--config.adapter.kind=houlsby", "--config.adapter.size=4")


def run(files, workdir, pretrained, *more):
    flags = (
        "--config.max_seq_length=16", "--config.batch_size=16", "--config.epochs=4", "--config.eval.every=2",
        "--config.checkpoint.every=4", "--config.optimizer.learning_rate=0.01",
        "--config.optimizer.warmup_steps=1", "--config.checkpoint.keep=9", *fine_tuned.NO_DROPOUT,
    )  # fmt: skip
    return cli.main(fine_tuned.command(files, workdir, pretrained, *flags, *more, text="text", label="color"))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, vocabulary):
    return write(tmp_path_factory.mktemp("pretrained"), vocabulary, num_hidden_layers=2)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, files, pretrained):
    workdir = tmp_path_factory.mktemp("adapted")
    assert run(files, workdir, pretrained, *LORA) == 0
    return workdir


def check(params, pretrained):
    """The names and shapes are those of the whole model; query and value changed, the rest of it did not."""
    before = stored_params(pretrained)
    shapes = {name: x.shape for name, x in params.items() if name.startswith("encoder/")}
    assert shapes == {name: x.shape for name, x in before.items() if name.startswith("encoder/")}
    changed = {name for name in shapes if np.any(np.asarray(params[name]) != np.asarray(before[name]))}
    assert changed == {QUERY, QUERY.replace("query", "value")}
    np.testing.assert_array_equal(params["pooler/dense/kernel"], before["pooler/dense/kernel"])
    assert "classifier/kernel" in params


@pytest.mark.long
def test_steps_hold_the_updates_and_the_head(adapted):
    saved = set(checkpoint.describe(adapted / "checkpoints" / "8"))
    trained = {name for name in saved if name.startswith("params/")}
    assert trained == {"params/classifier/kernel", "params/classifier/bias"} | {
        f"params/encoder/layers/stack/layer/{name}/kernel_lora_{factor}"
        for name in ("query", "value")
        for factor in "ab"
    }
    shared = checkpoint.describe(adapted / "checkpoints" / "frozen")
    assert {f"frozen/params/{QUERY}", f"frozen/params/{QUERY}_lora_scale"} < set(shared)


@pytest.mark.long
def test_every_reader_sees_the_merged_parameters(adapted, pretrained, tmp_path):
    check(stored_params(adapted), pretrained)
    merged = convert.load(adapted).params
    check(merged, pretrained)
    predictor = flatten(placement.restack(Predictor(adapted, log=[].append)._params))
    check(predictor, pretrained)
    np.testing.assert_allclose(predictor[QUERY], merged[QUERY], rtol=1e-6, atol=1e-7)
    assert cli.main(["convert", f"--input={adapted}", f"--output={tmp_path}/hf", "--to=huggingface"]) == 0
    check(convert.load(tmp_path / "hf").params, pretrained)


@pytest.mark.long
def test_the_updates_are_exported_to_peft_and_read_again(adapted, tmp_path):
    """The conversion itself compares the merged parameters bit for bit."""
    command = ["convert", f"--input={adapted}", f"--output={tmp_path}/peft", "--to=peft"]
    assert cli.main(command) == 0
    fields = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (fields["r"], fields["lora_alpha"], fields["target_modules"]) == (2, 4, ["query", "value"])
    assert (fields["task_type"], fields["modules_to_save"]) == ("SEQ_CLS", ["classifier"])
    np.testing.assert_array_equal(
        convert.load(tmp_path / "peft").params[QUERY], convert.load(adapted).params[QUERY]
    )


@pytest.mark.long
def test_a_run_resumes_to_the_same_end(adapted, files, pretrained, tmp_path, capsys):
    fine_tuned.assert_resumes_to_the_same_end(
        lambda copy: run(files, copy, pretrained, *LORA), adapted, tmp_path / "run", capsys
    )


@pytest.fixture(scope="module")
def bottlenecks(tmp_path_factory, files, pretrained):
    workdir = tmp_path_factory.mktemp("bottlenecks")
    assert run(files, workdir, pretrained, *HOULSBY) == 0
    return workdir


@pytest.mark.long
def test_bottlenecks_and_norms_are_trained_and_the_rest_is_not(bottlenecks, pretrained, tmp_path, capsys):
    model, before = convert.load(bottlenecks), convert.load(pretrained)
    assert (model.config.attention_adapter, model.config.output_adapter) == (4, 4)
    new = {name for name in model.params if "_adapter/" in name}
    assert len(new) == 8 and all(np.any(model.params[name]) for name in new)
    for name in model.params.keys() - new:
        if not name.startswith("classifier/"):
            same = np.array_equal(model.params[name], before.params[name])
            assert same == ("norm/" not in name), name
    saved = set(checkpoint.describe(bottlenecks / "checkpoints" / "8"))
    moments = [name for name in saved if name.startswith("opt_state") and "query" in name]
    assert not moments and any("opt_state" in name and "_adapter" in name for name in saved)
    flags = [f"--input={bottlenecks}", f"--output={tmp_path}/out"]
    for to, message in (
        ("huggingface", "has no attention_adapter=4, only 0"),
        ("peft", "no low-rank updates"),
    ):
        capsys.readouterr()
        assert cli.main(["convert", *flags, f"--to={to}"]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


@pytest.mark.long
def test_a_run_with_bottlenecks_resumes_to_the_same_end(bottlenecks, files, pretrained, tmp_path, capsys):
    fine_tuned.assert_resumes_to_the_same_end(
        lambda copy: run(files, copy, pretrained, *HOULSBY), bottlenecks, tmp_path / "run", capsys
    )


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
    """What is frozen stays bit for bit; what is trained moves as in a step of the merged objective."""
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
    # The gradient of A is 0 while B is, and that of the key's bias always: softmax ignores it.
    still = {name for name in before if name.endswith("_lora_a")}
    assert before.keys() - still - {"encoder/layers/stack/layer/key/bias"} <= moved
