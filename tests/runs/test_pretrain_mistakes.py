"""`bert-jax pretrain`: one line for everything that cannot be."""

import shutil

import pytest
from support import processes
from support.processes import error_of

from bert_jax import cli
from bert_jax.training import train
from bert_jax.workdir import run_directory

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_no_config_and_no_workdir(capsys):
    assert cli.main(["pretrain", "--workdir=x"]) == 2
    assert "pretrain needs --config=" in capsys.readouterr().err
    assert cli.main(["pretrain", f"--config={processes.CONFIG}"]) == 2
    assert "pretrain needs --workdir=DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    "config, field",
    [
        ("continue", "init_from"),
        ("large_lamb:phase2", "init_from"),
        ("modernbert:ettin-17m+8k", "init_from"),
        ("base:phase2", "resume_from"),
        ("distilbert", "distillation.teacher"),
    ],
)
def test_a_config_that_needs_another_model_does_not_train_a_new_one(records, tmp_path, capsys, config, field):
    flags = [f"--workdir={tmp_path}/run", f"--config.data.dir={records}"]
    assert cli.main(["pretrain", f"--config=pretrain/{config}", *flags]) == 2
    assert field in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"data.dir": ""}, "no records given: set --config.data.dir"),
        ({"data.dir": "/missing"}, "there is no record directory '/missing'"),
        (
            {"data.eval_split": "dev"},
            "no split 'dev' to evaluate on; --config.data.eval_split= trains without",
        ),
        ({"model.max_position_embeddings": 16}, "rows of 32 tokens and the model has 16 positions"),
        ({"model.vocab_size": 50}, "model.vocab_size=50 is less than the 100 of the records' vocabulary"),
        ({"model.num_attention_heads": 3}, "hidden_size=32 must be a multiple of num_attention_heads=3"),
        ({"model.causal": True}, "objective=masked_lm and model.causal=true: set both"),
        ({"model.model_type": "elektra"}, "model.model_type='elektra' is unknown; choose one of bert, "),
        ({"masking.replace": "nan, nan, nan"}, "masking.replace=nan, nan, nan: expected the fractions"),
        (
            {
                "budget.tokens": 1000,
                "optimizer.schedule": "inverse_square_root",
                "optimizer.warmup_steps": 0,
            },
            "optimizer.schedule=inverse_square_root: with budget.tokens, the rate falls from the end",
        ),
        (
            {
                "optimizer.schedule": "triangle",
                "optimizer.warmup_steps": 0,
                "optimizer.initial_rate": 0.5,
            },
            "optimizer.initial_rate=0.5: there is no warm-up, which it is the start of",
        ),
        (
            {"model.classifier_dropout": 0.2},
            "model.classifier_dropout=0.2: pre-training does not use it; leave it at None",
        ),
        ({"model.model_type": "roberta"}, "those of a RoBERTa are 'cls:0 A:0 sep:0 sep:0 B:0 sep:0'"),
        ({"masking.strategy": "words"}, "masking.strategy='words' is unknown"),
        ({"optimizer.name": "adamx"}, "optimizer.name='adamx' is unknown"),
        ({"batch_size": 12}, "batch_size=12 must be a multiple of"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"log_every": 0}, "log_every=0 must be at least 1"),
        ({"mesh.fsdp": 3}, "mesh data=-1 fsdp=3 tensor=1 does not fit 8 devices"),
        ({"checkpoint.keep": 0}, "checkpoint.keep=0 must be at least 1"),
        ({"init_from": "/missing"}, "/missing: no such directory"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(pretrain, fields, told):
    assert told in error_of(pretrain(**fields))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("seed", -1, "seed=-1 must be at least 0"),
        ("seed", 2**40, f"seed={2**40} must be at most 4,294,967,295"),
        ("batch_size", 10**20, f"batch_size={10**20} must be at most"),
        ("steps", 2**31, f"steps={2**31} must be at most"),
        ("masking.prob", "nan", "masking.prob=nan must be a finite number"),
        ("optimizer.learning_rate", "nan", "optimizer.learning_rate=nan must be a finite number"),
        ("optimizer.learning_rate", "1e400", "optimizer.learning_rate=inf must be a finite number"),
        ("optimizer.learning_rate", -1, "optimizer.learning_rate=-1.0 must be at least 0"),
        ("optimizer.weight_decay", "nan", "optimizer.weight_decay=nan must be a finite number"),
        ("optimizer.clip_norm", "nan", "optimizer.clip_norm=nan must be a finite number"),
        ("model.layer_norm_eps", "nan", "model.layer_norm_eps=nan must be a finite number"),
        ("model.layer_norm_eps", -1, "model.layer_norm_eps=-1.0 must be at least 1e-37"),
        ("model.initializer_range", "nan", "model.initializer_range=nan must be a finite number"),
        ("optimizer.warmup_steps", -5, "optimizer.warmup_steps=-5 must be at least 0"),
        ("eval.batches", -1, "eval.batches=-1 must be at least 0"),
        ("checkpoint.every", -3, "checkpoint.every=-3 must be at least 0"),
        ("init_ignore", "(", "init_ignore='(' must be a regular expression"),
        ("optimizer.b2", 1, "optimizer.b2=1.0 must be less than 1"),
        ("optimizer.eps", 0, "optimizer.eps=0.0 must be at least 1e-37"),
        ("steps", "abc", "steps"),
        ("steps", "1.5", "steps"),
        ("optimizer.learning_rate", "fast", "learning_rate"),
    ],
)
def test_a_senseless_value_is_refused_by_name_before_anything_is_read(
    pretrain, monkeypatch, field, value, told
):
    monkeypatch.setattr(train, "fit", lambda **unused: pytest.fail("it would have compiled"))
    assert told in error_of(pretrain(data="/not/even/opened", **{field: value}))


def test_a_vocabulary_that_is_not_the_records_own(pretrain, records, tmp_path):
    data = shutil.copytree(records, tmp_path / "records")
    processes.write_vocabulary(data / "vocab.txt", words=96)
    assert "vocab.txt is not the vocabulary" in error_of(pretrain(data=data))


@pytest.mark.long
def test_a_work_directory_of_another_model(pretrain, trained):
    error = error_of(pretrain(trained, steps=6, **{"model.num_hidden_layers": 3}))
    assert "belongs to another run: model.num_hidden_layers is 2 there and 3 here" in error


def test_a_work_directory_of_other_records(pretrain, trained, tmp_path):
    data = processes.write_records(tmp_path / "records", words=96)
    error = error_of(pretrain(trained, data, steps=6))
    assert "the digest of the vocabulary is" in error and "the digest of the records" in error


def test_allowed_changes_go_on_with_the_new_values(pretrain, trained, tmp_path):
    directory, changed = shutil.copytree(trained, tmp_path / "copy"), {"steps": 6, "optimizer.clip_norm": 2.0}
    assert "optimizer.clip_norm is 1.0 there and 2.0 here" in error_of(pretrain(directory, **changed))
    code, output, _ = pretrain(directory, more=["--allow_changes"], **changed)
    assert code == 0 and "resumed from step 6" in output
    assert run_directory.read_run(directory)["config"]["optimizer"]["clip_norm"] == 2


def test_allowed_changes_do_not_reach_the_shapes(pretrain, trained):
    error = error_of(pretrain(trained, more=["--allow_changes"], steps=6, **{"model.intermediate_size": 128}))
    assert "is of another model: model.intermediate_size is 64 there and 128 here" in error


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"model.num_attention_heads": 4}, "is of another model: model.num_attention_heads is 2 there and 4"),
        ({"optimizer.name": "lamb"}, "is of another model or optimizer"),
    ],
)
def test_a_change_that_the_checkpoint_does_not_fit_leaves_the_config(pretrain, trained, changes, told):
    before = (trained / "config.json").read_bytes()
    assert told in error_of(pretrain(trained, more=["--allow_changes"], steps=6, **changes))
    assert (trained / "config.json").read_bytes() == before


def test_allowed_changes_do_not_reach_the_vocabulary(pretrain, trained, tmp_path):
    data = processes.write_records(tmp_path / "records", words=96)
    before = {name: (trained / name).read_bytes() for name in ("config.json", "vocab.txt")}
    error = error_of(pretrain(trained, data, more=["--allow_changes"], steps=6))
    assert "is of another model: " in error and "the digest of the vocabulary is" in error
    assert before == {name: (trained / name).read_bytes() for name in before}


def test_a_config_file_without_a_field(tmp_path, capsys):
    config = tmp_path / "config.py"
    config.write_text(
        "from bert_jax.settings import defaults\n\n\ndef get_config():\n    c = defaults.pretrain('tiny')\n"
        "    del c['masking']\n    c.extra = 1\n    return c\n"
    )
    assert cli.main(["pretrain", f"--config={config}", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "the config has no masking.copies, masking.count, masking.exc" in capsys.readouterr().err


@pytest.mark.long
def test_another_run_that_has_done_all_steps_is_not_gone_on_from(pretrain, trained, tmp_path):
    message = f"resume_from={trained} is at step 6, and the run has steps=6; set more steps"
    assert message in error_of(pretrain(tmp_path / "run", steps=6, resume_from=trained))
    code, output, _ = pretrain(tmp_path / "run", steps=7, resume_from=trained)
    assert code == 0 and "resumed from" in output


@pytest.mark.long
def test_another_vocabulary_is_told_after_an_attempt_that_failed(pretrain, trained, tmp_path):
    shape = {"model.intermediate_size": 128}
    assert "another model" in error_of(pretrain(tmp_path / "run", steps=7, resume_from=trained, **shape))
    data = processes.write_records(tmp_path / "records", words=96)
    error = error_of(pretrain(tmp_path / "run", data, steps=7, resume_from=trained))
    assert f"resume_from={trained} was trained with another vocabulary" in error


@pytest.mark.long
def test_weights_that_are_not_used(pretrain, trained):
    code, output, _ = pretrain(steps=7, resume_from=trained, init_from=trained)
    assert code == 0 and f"of {trained} only the architecture is used, not the weights" in output
    assert "init_ignore=mlm/.*: there is no init_from" in error_of(pretrain(init_ignore="mlm/.*"))


@pytest.mark.parametrize("field", ["init_from", "resume_from"])
def test_another_vocabulary_than_that_of_the_weights(pretrain, trained, tmp_path, field):
    data = processes.write_records(tmp_path / "records", words=96)
    error = error_of(pretrain(data=data, **{field: trained}))
    assert f"{field}={trained} was trained with another vocabulary" in error
