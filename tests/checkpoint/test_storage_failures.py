"""A disk that fails in the middle of a run: one line, exit code 1, and the same command goes on."""

import re
import resource

import pytest
from support import processes

from bert_jax import checkpoint

FIELDS = {"steps": 300, "checkpoint.every": 20, "checkpoint.keep": 20, "eval.every": 0}
# How the lines of a sound run begin.
SAID = r"step|[\d,]+ |evaluating|started|compiled|compiling"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "records")


def fail_after_the_first_save(command, first, size):
    """Once `first` is there no file may grow over `size` bytes: to a write beyond it the system answers
    EFBIG, as it answers ENOSPC on a full disk. Returns the lines that a sound run does not have."""
    process = processes.start(command)
    limited = False
    output = []
    for line in process.stdout:
        output.append(line)
        if not limited and first.exists():
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, size))
            limited = True
    assert process.wait(timeout=300) == 1, "".join(output)
    return [line for line in output if not re.match(SAID, line)]


def assert_goes_on(command, workdir):
    code, text = processes.run(command)
    assert code == 0, text
    assert int(re.search(r"resumed from step (\d+)", text)[1]) >= FIELDS["checkpoint.every"]
    assert checkpoint.verify(workdir / "checkpoints" / "300")


@pytest.mark.slow
def test_a_failed_save_is_one_line_and_the_same_command_goes_on(records, tmp_path):
    command = processes.command(tmp_path / "run", records, **FIELDS, log_every=100)
    first = tmp_path / "run" / "checkpoints" / "20"
    said = fail_after_the_first_save(command, first, 60_000)
    assert len(said) == 1, "".join(said)
    assert re.match("bert-jax: error: .*saving step .* failed .*File too large.*intact steps: 20", said[0])
    assert checkpoint.verify(first)
    assert_goes_on(command, tmp_path / "run")
