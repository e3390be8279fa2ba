import errno
import re
import subprocess
import sys
import types

import pytest

from bert_jax import cli
from bert_jax.errors import ClusterError, Preempted, StorageError, UserError
from bert_jax.settings import config_files, config_flag


def command(run):
    def define_flags(define):
        define.integer("steps", "Number of steps.", 7)
        define.json()

    return types.SimpleNamespace(define_flags=define_flags, run=run, ARGUMENTS="[TEXT ...]")


@pytest.fixture
def use(monkeypatch):
    """Puts a module behind the name of a command."""

    def put(name, module):
        monkeypatch.setattr(cli, "COMMANDS", [name, "pretrain"])
        monkeypatch.setitem(sys.modules, f"bert_jax.commands.{name}", module)

    return put


def test_flags_and_arguments_in_any_order(use):
    seen = []
    use("bench", command(lambda flags, args: seen.append((flags.steps, flags.json, args))))
    assert cli.main(["bench", "a", "--steps=3", "b c", "--json", "--", "--not-a-flag"]) == 0
    assert seen == [(3, True, ["a", "b c", "--not-a-flag"])]


@pytest.mark.parametrize(
    "error, code, line",
    [
        (UserError("no such\nfile"), 2, "error: no such file"),
        (Preempted("saved at step 3"), 3, "saved at step 3"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ClusterError("process 1 is gone"), 1, "error: process 1 is gone"),
        (StorageError("saving step 3 failed"), 1, "error: saving step 3 failed"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "error: storage: No space left on device"),
        (OSError(errno.EIO, "Input/output error", "x"), 1, "error: x: Input/output error"),
        (OSError(errno.EACCES, "Permission denied", "x"), 2, "error: x: Permission denied"),
        (RuntimeError("No space left on device"), 1, "error: No space left on device"),
    ],
)
def test_errors_are_one_line_and_a_code(use, capsys, error, code, line):
    def run(flags, args):
        raise error

    use("bench", command(run))
    assert cli.main(["bench"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"bert-jax: {line}\n" and not captured.out.strip()


def test_config_with_argument_and_overrides(use):
    def run(flags, args):
        expected = config_files.load("pretrain/multilingual:tiny", "pretrain")
        expected.update({"steps": 5, "optimizer": {"name": "lamb"}})
        assert flags.config.to_dict() == expected.to_dict()

    flags = {"define_flags": lambda define: config_flag.add(define, "pretrain")}
    use("pretrain", types.SimpleNamespace(run=run, **flags))
    argv = ["--config=pretrain/multilingual:tiny", "--config.steps=5", "--config.optimizer.name=lamb"]
    assert cli.main(["pretrain", *argv]) == 0


def test_every_command_has_a_help_line_and_can_show_its_help(capsys):
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    codes = re.findall(r"^  (\d+)  ", overview, re.M)
    assert codes == ["0", "1", "2", "3", "130", "134", "143"]
    for name in cli.COMMANDS:
        lines = [line.split(maxsplit=1) for line in overview.splitlines()]
        assert [line for line in lines if line and line[0] == name and len(line) == 2], name
        assert cli.main([name, "--help"]) == 0
        assert f"usage: bert-jax {name}" in capsys.readouterr().out


def test_the_help_of_every_command_and_the_pipelines_need_no_jax():
    code = (
        "import sys, bert_jax, bert_jax.cli, data_pipelines, bert_jax.data, bert_jax.data.loader, "
        "bert_jax.data.packed\n"
        "bert_jax.cli.main(['--help'])\n"
        "for name in bert_jax.cli.COMMANDS: bert_jax.cli.main([name, '--help'])\n"
        "assert not {'jax', 'flax', 'tensorflow'} & set(sys.modules), 'jax came in'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
