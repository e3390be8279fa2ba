import pytest

from bert_jax import cli
from bert_jax.settings import config_files


def test_the_list_has_a_line_for_each(capsys):
    assert cli.main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == config_files.names()
    assert all(config_files.summary(line.split()[0]) in line for line in lines)


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


def test_fields_and_values(capsys):
    assert cli.main(["configs", "--fields", "finetune/squad:v2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "v2 = True" in lines and "optimizer.learning_rate = 5e-05" in lines and "data.train = ''" in lines


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["tiny"], "did you mean pretrain/tiny?"),
        (["pretrain/tiny", "pretrain/base"], "at most one name"),
        (["--fields"], "need the NAME of a config"),
        (["pretrain/tiny", "--output=mine.txt"], "expected a name ending in .py"),
        (["pretrain/tiny", "--output=/dev/null/mine.py"], "/dev/null/mine.py: "),
        (["pretrain/tiny", "--output=a.py", "--fields"], "exclude each other"),
        (["--fields", "finetune/squad:v3"], "expected finetune/squad:v1"),
    ],
)
def test_mistakes_are_one_line(argv, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["configs", *argv]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err and captured.err.count("\n") == 1 and not list(tmp_path.iterdir())
