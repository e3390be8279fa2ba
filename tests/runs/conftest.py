"""The tiny checkpoints that tests of this folder start from, and the command that trains one."""

import pytest
from support import processes
from support.pretrained import pretrained, vocabulary  # noqa: F401

from bert_jax import cli


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "records")


@pytest.fixture(scope="session")
def trained(tmp_path_factory, records):
    """The work directory of a finished run on 8 devices."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    with processes.quick_compilation():
        assert cli.main(processes.command(directory, records, steps=6, log_every=2)) == 0
    return directory


@pytest.fixture
def pretrain(tmp_path, records, capsys):
    """Runs the command; returns (exit code, stdout, stderr)."""

    def run(directory=tmp_path / "run", data=records, more=(), **fields):
        code = cli.main([*processes.command(directory, data, **fields), *more])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """train.csv and dev.csv: texts, each with the color that it names."""
    directory = tmp_path_factory.mktemp("files")
    for name, count in (("train", 32), ("dev", 16)):
        colors = ["red" if i % 2 else "blue" for i in range(count)]
        lines = (f"the {color} cat,{color}\n" for color in colors)
        (directory / f"{name}.csv").write_text("".join(["text,color\n", *lines]))
    return directory
