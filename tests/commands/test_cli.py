import errno
import os
import re
import subprocess
import sys
import types

import pytest

from bert_jax import cli
from bert_jax.errors import ClusterError, Preempted, StorageError, UserError
from bert_jax.settings import config_flag


def command(run, doc="Do a thing."):
    def define_flags(define):
        define.integer("steps", "Number of steps.", 7)
        define.json()

    return types.SimpleNamespace(__doc__=doc, define_flags=define_flags, run=run, ARGUMENTS="[TEXT ...]")


def config_command(seen):
    def define_flags(define):
        config_flag.add(define, "pretrain")

    def run(flags, args):
        seen.append(flags.config)

    return types.SimpleNamespace(__doc__="Run.", define_flags=define_flags, run=run)


@pytest.fixture
def use(monkeypatch):
    """Puts a module behind the name of a command."""

    def put(name, module):
        monkeypatch.setattr(cli, "COMMANDS", [name, "pretrain"])
        monkeypatch.setitem(sys.modules, f"bert_jax.commands.{name}", module)

    return put


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(
        "import ml_collections\n"
        "def get_config(size='tiny'):\n"
        "    c = ml_collections.ConfigDict(dict(size=size, steps=10, rate=.1))\n"
        "    c.optimizer = ml_collections.ConfigDict(dict(name='adamw', warmup_steps=1))\n"
        "    return c\n"
    )
    return str(path)


def test_flags_and_arguments_in_any_order(use):
    seen = []
    use("bench", command(lambda flags, args: seen.append((flags.steps, flags.json, args))))
    assert cli.main(["bench", "a", "--steps=3", "b c", "--json", "--", "--not-a-flag"]) == 0
    assert seen == [(3, True, ["a", "b c", "--not-a-flag"])]


@pytest.mark.parametrize(
    "error, code, line",
    [
        (UserError("no such\nfile"), 2, "bert-jax: error: no such file\n"),
        (Preempted("saved at step 3"), 3, "bert-jax: saved at step 3\n"),
        (KeyboardInterrupt(), 130, "bert-jax: interrupted\n"),
        (ClusterError("process 1 is gone"), 1, "bert-jax: error: process 1 is gone\n"),
        (StorageError("saving step 3 failed"), 1, "bert-jax: error: saving step 3 failed\n"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            1,
            "bert-jax: error: storage: No space left on device\n",
        ),
        (
            OSError(errno.EIO, "Input/output error", "x.npy"),
            1,
            "bert-jax: error: x.npy: Input/output error\n",
        ),
        (
            OSError(errno.EACCES, "Permission denied", "x.npy"),
            2,
            "bert-jax: error: x.npy: Permission denied\n",
        ),
        (
            RuntimeError("I/O error: No space left on device"),
            1,
            "bert-jax: error: I/O error: No space left on device\n",
        ),
    ],
)
def test_errors_are_one_line_and_a_code(use, capsys, error, code, line):
    def run(flags, args):
        raise error

    use("bench", command(run))
    assert cli.main(["bench"]) == code
    captured = capsys.readouterr()
    assert captured.err == line and not captured.out.strip()


def test_config_with_argument_and_overrides(use, config_file):
    seen = []
    use("pretrain", config_command(seen))
    argv = ["pretrain", f"--config={config_file}:mini", "--config.steps=5", "--config.optimizer.name=lamb"]
    assert cli.main(argv) == 0
    assert seen[0].to_dict() == dict(
        size="mini", steps=5, rate=0.1, optimizer=dict(name="lamb", warmup_steps=1)
    )


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
