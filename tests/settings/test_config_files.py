"""Config files are found by name, in a clone and in an installed package."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.io import remote
from bert_jax.io.atomic import write_file
from bert_jax.settings import config_files

ROOT = Path(__file__).resolve().parents[2]


def test_the_names_are_those_of_the_files():
    found = config_files.names()
    assert {"pretrain/tiny", "pretrain/base", "finetune/glue", "finetune/squad"} <= set(found)
    assert found == sorted(f"{path.parent.name}/{path.stem}" for path in (ROOT / "configs").rglob("*.py"))


def test_an_installed_package_has_them_inside(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "bert_jax"
    (package / "configs" / "pretrain").mkdir(parents=True)
    (package / "configs" / "pretrain" / "one.py").write_text('"""One."""\n')
    monkeypatch.setattr(config_files.bert_jax, "__file__", str(package / "__init__.py"))
    assert config_files.names() == ["pretrain/one"] and config_files.summary("pretrain/one") == "One."


@pytest.mark.parametrize(
    "content, message",
    [
        ("x = 1\n", "KeyError: 'get_config'"),
        ("def get_config():\n    return 3\n", "get_config() returned int"),
        ("def get_config(:\n", "SyntaxError: invalid syntax (mine.py, line 1)\n"),
        ("import os\ndef get_config():\n    return os.get_config()\n", "has no attribute 'get_config'"),
    ],
)
def test_a_file_that_is_no_config_is_named(capsys, tmp_path, content, message):
    path = tmp_path / "mine.py"
    path.write_text(content)
    for more in ([], ["--config.steps=3"]):
        assert cli.main(["pretrain", f"--config={path}", *more]) == 2
        error = capsys.readouterr().err
        assert message in error and str(path) in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ["configs"],
        ["pretrain", "--workdir=run", "--config"],
        ["sweep", "--workdir=run", "--input=a.txt", "--experiment"],
    ],
    ids=lambda command: " ".join(command),
)
def test_code_from_a_url_is_not_executed(capsys, monkeypatch, command):
    """A config is Python: what another machine sends is not run, and is not even fetched."""
    write_file("memory://config-files/mine.py", b"raise SystemExit('executed')")
    monkeypatch.setattr(remote, "file_system", lambda path: pytest.fail(f"{path} is opened"))
    assert cli.main([*command, "memory://config-files/mine.py:rte"]) == 2
    error = capsys.readouterr().err
    assert "'memory'" in error and error.count("\n") == 1


def test_configs_of_pre_training_are_read_before_jax_is_imported():
    """The devices of `bert-jax estimate` are chosen then, after its config has been read."""
    code = """
import sys
from bert_jax.settings import config_files
from bert_jax.settings import pretrain_config
for name in sys.argv[1:]:
    config = config_files.load(name)
    assert "jax" not in sys.modules, name
pretrain_config.pretraining(config_files.load("pretrain/electra"))
assert "jax" not in sys.modules
"""
    names = [name for name in config_files.names() if name.startswith("pretrain/")]
    names[names.index("pretrain/large_lamb")] += ":phase1"
    done = subprocess.run([sys.executable, "-c", code, *names], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


def test_fields_on_the_command_line(capsys):
    argv = ["--config=pretrain/large_lamb:phase1", "--config.optimizer.learning_rate=.5", "--workdir=run"]
    flags, _ = cli.parse_flags("pretrain", argv)
    assert (flags.config.batch_size, flags.config.optimizer.learning_rate) == (65_536, 0.5)
    for flag in ("config.stepz=3", "config.masking=3", "config.steps=many"):
        assert cli.main(["pretrain", *argv, f"--{flag}"]) == 2
        error = capsys.readouterr().err
        assert flag.partition("=")[0] in error and error.count("\n") == 1
