"""`bert-jax pretrain`: one line for everything that cannot be."""

import shutil

import pytest
from support import processes
from support.processes import error_of

from bert_jax import cli
from bert_jax.workdir import run_directory

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
    ("field", "value"),
    [
        *(("data.dir", "/missing"), ("init_from", "/missing")),
        *(("model.max_position_embeddings", 16), ("model.vocab_size", 50), ("model.num_attention_heads", 3)),
        *(("model.model_type", "elektra"), ("model.norm", "batch"), ("masking.replace", "nan, nan, nan")),
        *(("batch_size", 12), ("log_every", 0), ("mesh.fsdp", 3)),
        ("mesh.reduce_dtype", "float16"),
    ],
)
def test_a_wrong_field_is_an_error_of_one_line(pretrain, field, value):
    error = error_of(pretrain(**{field: value}))
    assert field.rpartition(".")[2] in error or str(value) in error


def test_allowed_changes_go_on_with_the_new_values(pretrain, trained, tmp_path):
    directory, changed = shutil.copytree(trained, tmp_path / "copy"), {"steps": 6, "optimizer.clip_norm": 2.0}
    assert "optimizer.clip_norm is 1.0 there and 2.0 here" in error_of(pretrain(directory, **changed))
    code, output, _ = pretrain(directory, more=["--allow_changes"], **changed)
    assert code == 0 and "resumed from step 6" in output
    assert run_directory.read_run(directory)["config"]["optimizer"]["clip_norm"] == 2


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"model.num_attention_heads": 4}, "another run: model.num_attention_heads is 2 there and 4"),
        ({"optimizer.name": "lamb"}, "has another model or optimizer"),
    ],
)
def test_a_change_that_the_checkpoint_does_not_fit_leaves_the_config(pretrain, trained, changes, told):
    before = (trained / "config.json").read_bytes()
    assert told in error_of(pretrain(trained, more=["--allow_changes"], steps=6, **changes))
    assert (trained / "config.json").read_bytes() == before


@pytest.mark.parametrize("field", ["init_from", "resume_from"])
def test_another_vocabulary_than_that_of_the_weights(pretrain, trained, tmp_path, field):
    data = processes.write_records(tmp_path / "records", words=96)
    error = error_of(pretrain(data=data, **{field: trained}))
    assert f"{field}={trained} was trained with another vocabulary" in error


def test_networks_cannot_share_a_norm_of_two_widths(pretrain):
    fields = {"model_type": "electra", "position": "disentangled", "projection_placement": "before_norm"}
    model = {f"model.{name}": value for name, value in fields.items()} | {"model.embedding_size": 24}
    assert "replaced_tokens.sharing=all" in error_of(pretrain(objective="replaced_tokens", **model))
