"""Which dtype fine-tuning and prediction compute in, whatever platform the checkpoint is from."""

import pytest
from support import fine_tuned

from bert_jax import tasks
from bert_jax.inference.predictor import Predictor
from bert_jax.kernels import check, platform
from bert_jax.kernels.dispatch import Target
from bert_jax.tasks import fields
from bert_jax.tasks.setup import resolve_model
from bert_jax.workdir import run_directory

CPU, TPU = Target("cpu"), Target("tpu")


@pytest.mark.parametrize(
    "given, target, dtype",
    [
        ("auto", CPU, "float32"),
        ("auto", TPU, "bfloat16"),
        ("float32", TPU, "float32"),
        ("bfloat16", CPU, "bfloat16"),
    ],
)
def test_fine_tuning_takes_its_own_dtype_and_not_the_checkpoints(
    pretrained, monkeypatch, given, target, dtype
):
    monkeypatch.setattr(platform, "target", lambda: target)
    record_dtype(monkeypatch, "bfloat16" if dtype == "float32" else "float32")
    config = tasks.default_config()
    assert config.model.dtype == "auto"
    config.update(dict(init_from=str(pretrained), max_seq_length=16))
    config.model.dtype = given
    assert resolve_model(fields.of_run(config))[0].execution.dtype == dtype


def record_dtype(monkeypatch, dtype):
    """Lets every run have been trained in a dtype."""
    true = run_directory.read_run

    def read_run(path):
        found = true(path)
        found["config"]["model"]["dtype"] = dtype
        return found

    monkeypatch.setattr(run_directory, "read_run", read_run)


@pytest.mark.long
@pytest.mark.parametrize(
    "trained, target, dtype",
    [("bfloat16", CPU, "float32"), ("bfloat16", TPU, "bfloat16"), ("float32", TPU, "float32")],
)
def test_prediction_keeps_the_dtype_of_training_but_a_cpu_computes_in_float32(
    tmp_path, vocabulary, monkeypatch, trained, target, dtype
):
    run = fine_tuned.make_run(tmp_path, vocabulary, "classification", ["a", "b"])
    monkeypatch.setattr(platform, "target", lambda: target)
    monkeypatch.setattr(check, "ensure", lambda model, log: None)
    record_dtype(monkeypatch, trained)
    assert Predictor(run).task.model_config.execution.dtype == dtype
