"""Config files are found by name, in a clone and in an installed package."""

import re
import subprocess
import sys
from pathlib import Path

import ml_collections
import pytest

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.io import remote
from bert_jax.io.atomic import write_file
from bert_jax.settings import config_fields, config_files
from bert_jax.tasks import fields

ROOT = Path(__file__).resolve().parents[2]


def test_the_names_are_those_of_the_files():
    found = config_files.names()
    assert {"pretrain/tiny", "pretrain/base", "finetune/glue", "finetune/squad"} <= set(found)
    assert found == sorted(f"{path.parent.name}/{path.stem}" for path in (ROOT / "configs").rglob("*.py"))


@pytest.mark.parametrize(
    "given, name",
    [
        ("finetune/hour:multiple_choice", "finetune/hour:multiplechoice"),
        ("finetune/hour:STS-B", "finetune/hour:stsb"),
        ("finetune/roberta:SST-2", "finetune/roberta:sst2"),
        ("finetune/albert:CoLA", "finetune/albert:cola"),
        ("finetune/distilbert:MRPC", "finetune/distilbert:mrpc"),
        ("finetune/electra:STS-B,large", "finetune/electra:stsb,large"),
        ("finetune/bilstm:SST-2,attention", "finetune/bilstm:sst2,attention"),
    ],
)
def test_a_task_in_the_spelling_of_its_folder_is_the_same(given, name):
    assert config_files.load(given).to_dict() == config_files.load(name).to_dict()


@pytest.mark.parametrize(
    "given, meant",
    [
        ("hour:squad:v1", "hour:squad"),
        ("hour:squad:v2", "hour:squad2"),
        ("roberta:SQuAD-v2.0", "roberta:squad2"),
        ("albert:squad1.1", "albert:squad"),
        ("hour:multiplchoice", "hour:multiplechoice"),
        ("electra:mprc,large", "electra:mrpc"),
    ],
)
def test_an_unknown_task_of_a_config_is_answered_with_the_one_that_is_meant(given, meant):
    with pytest.raises(UserError, match=rf"expected finetune/\w+:TASK .*; did you mean finetune/{meant}\?$"):
        config_files.load(f"finetune/{given}")
    config_files.load(f"finetune/{meant}")


@pytest.mark.parametrize("name", config_files.names())
def test_every_config_opens_with_one_line_and_its_command_by_name(name):
    source = config_files.find(name).read_text(encoding="utf-8")
    assert 20 < len(config_files.summary(name)) < 110 and config_files.summary(name).endswith(".")
    folder, _, own = name.partition("/")
    named = f"sweep --experiment={own}" if folder == "experiments" else f"{folder} --config={name}"
    assert re.search(rf"bert-jax {named}(:[\w,-]+)? --workdir=", source)
    assert "configs/" not in source


def test_a_file_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_files.find("pretrain/tiny") == ROOT / "configs" / "pretrain" / "tiny.py"
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / "tiny").write_text("")
    assert config_files.find("pretrain/tiny") == Path("pretrain/tiny")


@pytest.mark.parametrize(
    "given, near",
    [
        ("pretrain/tinny", "pretrain/tiny"),
        ("tiny", "pretrain/tiny"),
        ("glue", "finetune/glue"),
        ("configs/pretrain/tiny.py", "pretrain/tiny"),
        ("configs/pretrain/mimi.py", "pretrain/mini"),
        ("zzz", None),
    ],
)
def test_an_unknown_name_gets_the_nearest_one_and_how_to_list_all(given, near, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        config_files.find(given)
    assert repr(given) in str(error.value)
    assert str(error.value).endswith("`bert-jax configs` lists them") and len(str(error.value)) < 150
    assert near is None or f"; did you mean {near}? `bert-jax configs` lists them" in str(error.value)


@pytest.mark.parametrize(
    "given, group, near",
    [
        ("hour", "pretrain", "pretrain/hour"),
        ("hours", "pretrain", "pretrain/hour"),
        ("hours", "", "experiments/hour or finetune/hour or pretrain/hour"),
        ("pretrian/tiny", "", "pretrain/tiny"),
        ("mine/tinny.py", "", "pretrain/tiny"),
        ("hour", "finetune", "finetune/hour"),
        ("hour", "", "experiments/hour or finetune/hour or pretrain/hour"),
        ("gpt", "experiments", "experiments/gpt"),
    ],
)
def test_a_name_without_its_group_is_looked_for_in_the_group_of_the_command(given, group, near):
    with pytest.raises(UserError, match=f"; did you mean {near}\\? `bert-jax configs` lists them"):
        config_files.find(given, group)


def test_an_installed_package_has_them_inside(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "bert_jax"
    (package / "configs" / "pretrain").mkdir(parents=True)
    (package / "configs" / "pretrain" / "one.py").write_text('"""One."""\n')
    monkeypatch.setattr(config_files.bert_jax, "__file__", str(package / "__init__.py"))
    assert config_files.names() == ["pretrain/one"] and config_files.summary("pretrain/one") == "One."
    (package / "configs" / "pretrain" / "one.py").unlink()
    (package / "configs" / "pretrain").rmdir()
    with pytest.raises(UserError, match="install bert-jax again"):
        config_files.folder()


@pytest.mark.parametrize("command", ["pretrain", "estimate", "bench"])
def test_a_name_with_overrides_on_the_command_line(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = __import__(f"bert_jax.commands.{command}", fromlist=["run"])
    argv = ["--config=pretrain/large_lamb:phase1", "--config.optimizer.learning_rate=.5"]
    argv += {"pretrain": ["--workdir=run"], "estimate": ["--topology=v5e:4x4"], "bench": []}[command]
    flags, _ = cli.parse_flags(module, command, argv)
    assert (flags.config.batch_size, flags.config.optimizer.learning_rate) == (65_536, 0.5)
    assert flags["config"].given == "pretrain/large_lamb:phase1"  # and not where it is installed


def test_a_name_for_fine_tuning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from bert_jax.commands import finetune

    flags, _ = cli.parse_flags(finetune, "finetune", ["--config", "finetune/glue:mrpc", "--workdir=x"])
    assert flags.config.task == "mrpc"


def test_fields_are_dotted():
    config = ml_collections.ConfigDict(dict(a=1, b=dict(c=2)))
    assert list(config_fields.flatten(config)) == [("a", 1), ("b.c", 2)]


@pytest.mark.parametrize(
    "page",
    [page for folder in (".", "docs", "launch") for page in (ROOT / folder).glob("*.*") if page.is_file()],
    ids=lambda page: page.name,
)
def test_every_config_that_a_page_names_is_there(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for given in re.findall(r"--config[= ]([\w/.]*/[\w/.]+)", page.read_text(encoding="utf-8")):
        config_files.find(given.rstrip("."))


@pytest.mark.parametrize(
    "content, message",
    [
        ("x = 1\n", "a config file defines get_config(), and this one does not"),
        ("def get_config():\n    pass\n", "its get_config() returned NoneType, expected an ml_collections"),
        ("def get_config():\n    return 3\n", "its get_config() returned int"),
        ("def get_config(:\n", "mine.py, line 1: SyntaxError: invalid syntax\n"),
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
        ["configs", "--fields"],
        ["pretrain", "--workdir=run", "--config"],
        ["finetune", "--workdir=run", "--config"],
        ["estimate", "--topology=v5e:2x2", "--config"],
        ["bench", "--config"],
        ["sweep", "--workdir=run", "--input=a.txt", "--experiment"],
    ],
    ids=lambda command: " ".join(command),
)
@pytest.mark.parametrize("scheme", ["memory", "http", "gs"])
def test_code_from_a_url_is_not_executed(capsys, monkeypatch, scheme, command):
    """A config is Python: what another machine sends is not run, and is not even fetched."""
    write_file("memory://config-files/mine.py", b"raise SystemExit('executed')")
    monkeypatch.setattr(remote, "file_system", lambda path: pytest.fail(f"{path} is opened"))
    assert cli.main([*command, f"{scheme}://config-files/mine.py:rte"]) == 2
    error = capsys.readouterr().err
    assert "config-files/mine.py" in error and "URL" in error and error.count("\n") == 1


def test_json_is_no_config(capsys, tmp_path):
    (tmp_path / "config.json").write_text('{"v2": false}')
    assert cli.main(["finetune", f"--config={tmp_path}/config.json"]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/config.json" in error and error.count("\n") == 1


@pytest.mark.parametrize("task, epochs", [("cola", 9.98), ("qqp", 4.93), ("squad", 2.0), ("squad2", 3.0)])
def test_alberts_settings_by_task(task, epochs):
    config = config_files.load(f"finetune/albert:{task}")
    assert (config.task, config.epochs) == (task, epochs)
    assert config.model.hidden_dropout_prob == (0.1 if task == "qqp" else 0)
    assert fields.finetuning(config).optimizer.warmup_steps == config.optimizer.warmup_steps > 0
    for name in ("finetune/albert:race", "finetune/albert"):
        with pytest.raises(UserError, match=f"{name}: expected finetune/albert:TASK with one of cola, stsb"):
            config_files.load(name)


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
