import pytest

from bert_jax import cli
from bert_jax.commands import configs
from bert_jax.runs import sweep
from bert_jax.settings import config_fields, config_files


def test_one_is_printed_or_copied_and_runs_as_a_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["configs", "pretrain/tiny"]) == 0
    source = capsys.readouterr().out
    assert source == config_files.find("pretrain/tiny").read_text()
    assert cli.main(["configs", "pretrain/tiny", "--output=mine.py"]) == 0
    assert "--config=mine.py" in capsys.readouterr().out and (tmp_path / "mine.py").read_text() == source
    assert cli.main(["configs", "pretrain/tiny", "--output=my/configs/mine.py"]) == 0
    (tmp_path / "mine.py").write_text("changed")
    assert cli.main(["configs", "pretrain/tiny", "--output=mine.py"]) == 2
    assert "exists already" in capsys.readouterr().err and (tmp_path / "mine.py").read_text() == "changed"


def test_a_copy_of_an_experiment_is_run_by_sweep(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["configs", "experiments/masks", "--output=mine.py"]) == 0
    printed = capsys.readouterr().out
    assert "`bert-jax sweep --experiment=mine.py`" in printed and "--config" not in printed
    assert sweep.load_experiment("mine.py").variants
    assert cli.main(["configs", "--fields", "mine.py"]) == 2
    assert "an experiment has no fields" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["finetune/squad:v2", "pretrain/tiny"])
def test_every_field_has_its_meaning(name):
    config = config_files.load(name)
    lines = configs.describe_fields(config).splitlines()
    values = [f"{field} = {value!r}" for field, value in config_fields.flatten(config)]
    meanings = {value: line.removeprefix(value).strip() for value, line in zip(values, lines, strict=True)}
    assert meanings[f"seed = {config.seed}"] == "of weights, order of the rows, masks and dropout"
    assert all(meanings.values()) and not any("](" in meaning for meaning in meanings.values())
