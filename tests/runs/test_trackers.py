"""Runs with an experiment tracker, and names of trackers that are refused."""

import json

import pytest
from support.fine_tuned import command, mistake
from support.trackers import service  # noqa: F401

from bert_jax import cli

SHORT = ("--config.max_seq_length=16", "--config.batch_size=16")


@pytest.mark.long
def test_a_run_with_a_tracker(service, files, pretrained, tmp_path):  # noqa: F811
    name, found = service
    more = [*SHORT, f"--config.trackers={name}", "--config.epochs=1"]
    assert cli.main(command(files, tmp_path / "run", pretrained, *more, label="color")) == 0
    assert any("eval/accuracy" in values for _, values in found.logged) and found.ended == 1
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["trackers"] == name


def test_names_that_are_unknown_or_not_installed(files, pretrained, tmp_path, capsys, monkeypatch):
    error = mistake(
        command(files, tmp_path / "run", pretrained, *SHORT, "--config.trackers=comet", label="color"), capsys
    )
    assert "trackers=comet: expected wandb or mlflow" in error
    monkeypatch.setattr("bert_jax.errors.is_installed", lambda package: package != "wandb")
    error = mistake(
        command(files, tmp_path / "run", pretrained, *SHORT, "--config.trackers=wandb", label="color"), capsys
    )
    assert "trackers=wandb needs the package wandb" in error
