"""Runs in separate processes that are killed and restarted end like an uninterrupted run."""

import random
import re
import signal
import time

import pytest
from support import processes

from bert_jax import checkpoint

pytestmark = pytest.mark.multiprocess

STEPS = 20
FIELDS = {"steps": STEPS, "checkpoint.every": 2, "checkpoint.keep": 2, "eval.every": 6}
FIELDS |= {"batch_ramp": "0=8, 6=16", "batch_size": 16}


def wait_for_a_save(directory, process):
    """Waits until a save has begun after a step of this process was saved."""
    before = {path.name for path in directory.glob("[0-9]*")}
    while process.poll() is None:
        names = {path.name for path in directory.iterdir()}
        is_saving = any(name.endswith(".orbax-checkpoint-tmp") for name in names)
        if is_saving and any(name.isdigit() for name in names - before):
            return
        time.sleep(0.001)


@pytest.mark.long
def test_killed_and_started_again_it_ends_bit_for_bit_the_same(records, tmp_path):
    """SIGKILL in a save, SIGKILL at a random time after a step, and SIGTERM do not change the result."""
    workdir, expected = tmp_path / "run", tmp_path / "expected"
    code, output = processes.run(processes.command(expected, records, **FIELDS), 1)
    assert code == 0, output

    def attempt(sent=None, wait=lambda process: None):
        """Returns the step that the command resumes from, and what it prints until the signal ends it."""
        command = processes.command(workdir, records, **FIELDS)
        with processes.Processes(command, 1, devices=1) as started:
            if sent:
                started.wait_for("  loss ")
                wait(started[0])
                started[0].send_signal(sent)
            code, text = started.wait()[0], "\n".join(started.output[0])
        assert code == {None: 0, signal.SIGTERM: 3}.get(sent, -signal.SIGKILL), text
        found = re.search(r"resumed from step (\d+)", text)
        return int(found[1]) if found else None, text

    attempt(signal.SIGKILL, lambda process: wait_for_a_save(workdir / "checkpoints", process))
    delay = random.Random(0).uniform(0, 0.2)
    second, _ = attempt(signal.SIGKILL, lambda process: time.sleep(delay))
    third, text = attempt(signal.SIGTERM)
    stopped = int(re.search(r"stopped at step (\d+), saved; run the same command", text)[1])
    assert stopped == [int(step) for step in re.findall(r"^step +(\d+) ", text, re.MULTILINE)][-1]
    last, _ = attempt()
    assert 0 < second <= third < stopped == last < STEPS

    ends = [checkpoint.verify(each / "checkpoints" / str(STEPS)) for each in (workdir, expected)]
    assert ends[0] == ends[1] and any(name.startswith("opt_state/") for name in ends[0])
    for kind, names in (("train", ("step", "loss", "grad_norm")), ("eval", ("step", "mlm_loss"))):
        one, two = (
            [[line[name] for name in names] for line in processes.metrics(each, kind)]
            for each in (workdir, expected)
        )
        assert one == two
