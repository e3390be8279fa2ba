"""Runs in separate processes that are killed and restarted end like an uninterrupted run."""

import random
import re
import signal
import threading
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest
from support import processes

from bert_jax import checkpoint

pytestmark = pytest.mark.multiprocess

STEPS = 20
FIELDS = {"steps": STEPS, "checkpoint.every": 2, "checkpoint.keep": 2, "eval.every": 6}
FIELDS |= {"batch_ramp": "0=8, 6=16", "batch_size": 16}


def command(workdir, records):
    return processes.command(workdir, records, **FIELDS)


def assert_same_end(workdir, other):
    """Compares parameters, moments and step, read by orbax itself, the digests, and all lines of metrics."""
    trees = []
    for each in (workdir, other):
        with ocp.PyTreeCheckpointer() as reader:
            trees.append(reader.restore(each / "checkpoints" / str(STEPS)))
    one, two = (dict(_leaves(tree)) for tree in trees)
    assert one.keys() == two.keys() and int(one["step"]) == STEPS
    assert any(name.startswith("opt_state/") for name in one)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert checkpoint.verify(workdir / "checkpoints" / str(STEPS)) == checkpoint.verify(
        other / "checkpoints" / str(STEPS)
    )
    for kind, names in (("train", ("step", "loss", "grad_norm")), ("eval", ("step", "mlm_loss"))):
        one, two = (
            [[line[name] for name in names] for line in processes.metrics(w, kind)] for w in (workdir, other)
        )
        assert one == two


def _leaves(tree, prefix=""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}/")
        else:
            yield prefix + name, np.asarray(value)


class Attempt:
    """One start of the command, which a test interrupts."""

    def __init__(self, workdir, records):
        self.workdir, self.output = workdir, []
        self.process = processes.start(command(workdir, records), 1)

    def read_until(self, pattern):
        for line in self.process.stdout:
            self.output.append(line)
            if re.match(pattern, line):
                return
        raise AssertionError(f"ended without {pattern!r}:\n{''.join(self.output)}")

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.finish()

    def finish(self):
        """Reads the remaining output and returns the exit code."""
        # `communicate` reads the pipe itself and would lose the lines that `read_until` has buffered.
        stalled = threading.Timer(300, self.process.kill)
        stalled.start()
        self.output += self.process.stdout
        stalled.cancel()
        return self.process.wait()

    @property
    def resumed_from(self):
        found = re.search(r"resumed from step (\d+)", "".join(self.output))
        return int(found[1]) if found else None

    @property
    def text(self):
        return "".join(self.output)


def kill_in_a_save(attempt):
    """Sends SIGKILL during a save, after a previous step is complete."""
    attempt.read_until("step ")
    directory, before = attempt.workdir / "checkpoints", set(attempt.workdir.glob("checkpoints/[0-9]*"))
    while attempt.process.poll() is None:
        names = {path.name for path in directory.iterdir()}
        complete = {name for name in names if name.isdigit()} - {path.name for path in before}
        if complete and any(name.endswith(".orbax-checkpoint-tmp") for name in names):
            break
        time.sleep(0.001)
    return attempt.kill()


@pytest.mark.long
def test_killed_and_started_again_it_ends_bit_for_bit_the_same(records, tmp_path):
    """SIGKILL in a save, SIGKILL at a random time after a step, and SIGTERM do not change the result."""
    workdir, expected = tmp_path / "run", tmp_path / "expected"
    code, output = processes.run(command(expected, records), 1)
    assert code == 0, output
    first = Attempt(workdir, records)
    assert kill_in_a_save(first) == -signal.SIGKILL, first.text

    second = Attempt(workdir, records)
    second.read_until("step ")
    time.sleep(random.Random(0).uniform(0, 0.2))
    assert second.kill() == -signal.SIGKILL, second.text

    third = Attempt(workdir, records)
    third.read_until("step ")
    assert third.kill(signal.SIGTERM) == 3, third.text
    stopped = int(re.search(r"stopped at step (\d+), saved; run the same command", third.text)[1])
    assert stopped == [int(step) for step in re.findall(r"^step +(\d+) ", third.text, re.MULTILINE)][-1]

    last = Attempt(workdir, records)
    assert last.finish() == 0, last.text
    assert 0 < second.resumed_from <= third.resumed_from < stopped == last.resumed_from < STEPS
    assert_same_end(workdir, expected)
