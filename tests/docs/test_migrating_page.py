"""docs/migrating.md: every setting of another program that it has is answered, also as a flag."""

import re
from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.settings import config_fields
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.tasks import fields as task_fields

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
KNOWN = [*dict(config_fields.fields(PretrainConfig())), *task_fields.declared(), "workdir"]


def settings():
    """The names of flags and of fields of transformers' arguments in the tables, in their left columns."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return sorted(set(re.findall(r"`(?:--)?([a-z]+(?:_[a-z]+)+)`", " ".join(rows))))


def test_the_tables_have_their_settings():
    assert {"do_lower_case", "use_tpu", "per_device_train_batch_size", "mlm_probability"} <= set(settings())


@pytest.mark.parametrize("name", [*settings(), "auto_find_batch_size"])
def test_every_setting_is_answered(name):
    assert config_fields.closest(name, KNOWN) or config_fields.elsewhere(name)


@pytest.mark.parametrize(
    "name, field",
    [
        ("init_checkpoint", "init_from"),
        ("warmup_proportion", "optimizer.warmup_fraction"),
        ("save_checkpoints_steps", "checkpoint.every"),
        ("max_eval_steps", "eval.batches"),
        ("masked_lm_prob", "masking.prob"),
        ("max_predictions_per_seq", "masking.max_predictions"),
        ("do_whole_word_mask", "masking.strategy"),
        ("random_seed", "seed"),
        ("n_best_size", "n_best"),
        ("per_device_train_batch_size", "batch_size"),
        ("auto_find_batch_size", "accumulate_steps"),
        ("adam_epsilon", "optimizer.eps"),
        ("adam_beta2", "optimizer.b2"),
        ("lr_scheduler_type", "optimizer.schedule"),
        ("metric_for_best_model", "metrics"),
    ],
)
def test_the_field_of_a_setting(name, field):
    assert config_fields.closest(name, KNOWN) == field


@pytest.mark.parametrize("flag", ["--use_tpu", "--config.use_tpu=true"])
def test_a_setting_without_a_field_is_explained(flag, capsys, tmp_path):
    assert cli.main(["pretrain", "--config=pretrain/tiny", f"--workdir={tmp_path / 'run'}", flag]) == 2
    error = capsys.readouterr().err
    assert "a run uses the devices that JAX sees" in error and error.count("\n") == 1
