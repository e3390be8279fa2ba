import pytest

from bert_jax import cli
from bert_jax.commands import configs
from bert_jax.runs import sweep
from bert_jax.settings import config_fields, config_files


def test_a_printed_config_or_experiment_runs_as_a_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, load in (("pretrain/tiny", config_files.load), ("experiments/masks", sweep.load_experiment)):
        assert cli.main(["configs", name]) == 0
        (tmp_path / "mine.py").write_text(capsys.readouterr().out)
        assert load("mine.py")
    assert cli.main(["configs", "--fields", "mine.py"]) == 2
    assert "get_config" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["finetune/squad:v2", "pretrain/tiny"])
def test_every_field_has_its_meaning(name):
    config = config_files.load(name)
    lines = configs.describe_fields(config).splitlines()
    other = {"class_weights", "document_context"}  # of classification and of tagging
    values = [f"{field} = {value!r}" for field, value in config_fields.flatten(config)]
    values = [value for value in values if value in "\n".join(lines)]
    assert other.isdisjoint(value.partition(" ")[0] for value in values) and len(values) > 80
    meanings = {value: line.removeprefix(value).strip() for value, line in zip(values, lines, strict=True)}
    assert meanings[f"seed = {config.seed}"].startswith("Random seed ")
    assert all(meanings.values()) and not any("](" in meaning for meaning in meanings.values())
