"""A run in several processes with two CPU devices each, as on several hosts."""

import signal
import time

import numpy as np
import pytest
from support import processes

from bert_jax import checkpoint

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

STEPS = 40  # enough that no signal comes after the end
FIELDS = {"steps": STEPS, "batch_size": 16, "checkpoint.every": 4, "checkpoint.keep": 3, "eval.every": 6}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "records")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, records):
    """The work directory of the run in one process."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    code, output = processes.run(command(workdir, records), devices=2)
    assert code == 0, output
    return workdir


def command(workdir, records, **fields):
    return processes.command(workdir, records, **(FIELDS | fields))


def lines(workdir, kind="train"):
    return processes.metrics(workdir, kind)


def assert_same_course(workdir, other):
    for kind, name in (("train", "loss"), ("train", "grad_norm"), ("eval", "mlm_loss")):
        one, two = ([(line["step"], line[name]) for line in lines(each, kind)] for each in (workdir, other))
        np.testing.assert_allclose(one, two, rtol=1e-6, err_msg=name)
    assert len(lines(workdir)) == STEPS


def run(arguments, count, **options):
    with processes.Processes(arguments, count, **options) as started:
        codes = started.wait()
        return codes, started


@pytest.mark.parametrize(
    "count, mesh",
    [
        (2, {}),
        (4, {}),
        (4, {"mesh.data": 2, "mesh.fsdp": 4}),
        (2, {"mesh.data": 1, "mesh.tensor": 4}),
        (2, {"checkpoint.every": 0, "checkpoint.minutes": 0.01}),
    ],
    ids=["2", "4", "4-fsdp", "2-tensor", "2-timed-saves"],
)
def test_losses_are_those_of_one_process(records, alone, tmp_path, count, mesh):
    codes, started = run(command(tmp_path / "run", records, **mesh), count)
    assert codes == [0] * count, started.transcript()
    assert_same_course(tmp_path / "run", alone)
    assert checkpoint.verify(tmp_path / "run" / "checkpoints" / str(STEPS))


def test_resumes_with_other_numbers_of_processes(records, alone, tmp_path):
    workdir = tmp_path / "run"
    for step, count in zip((3, 6, 9, STEPS), (4, 2, 1, 4), strict=True):
        # The number of steps determines the learning rates, so each part is stopped by a signal.
        arguments = command(workdir, records, **{"checkpoint.every": 1})
        with processes.Processes(arguments, count) as started:
            if step < STEPS:
                started.wait_for(f"step {step:>{len(str(STEPS))}}")
                started[count - 1].send_signal(signal.SIGTERM)
            codes = started.wait()
        assert codes == [3 if step < STEPS else 0] * count, started.transcript()
    assert_same_course(workdir, alone)


# The output of a process as it enters a phase. Evaluation starts immediately after this step.
PHASES = {
    "compilation": "parameters;",
    "training": "step  3",
    "evaluation": "step  6",
}


@pytest.mark.parametrize("signaled", [0, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_sigterm_to_one_saves_the_same_step_in_all(records, alone, tmp_path, phase, signaled):
    workdir = tmp_path / "run"
    with processes.Processes(command(workdir, records), 4) as started:
        started.wait_for(PHASES[phase])
        started[signaled].send_signal(signal.SIGTERM)
        codes = started.wait()
    assert codes == [3] * 4, started.transcript()
    saved = sorted(int(path.name) for path in (workdir / "checkpoints").glob("[0-9]*"))
    if phase in ("training", "evaluation"):
        assert saved and checkpoint.verify(workdir / "checkpoints" / str(saved[-1]))
        assert any(f"stopped at step {saved[-1]}, saved" in line for line in started.output[signaled])
    codes, started = run(command(workdir, records), 4)
    assert codes == [0] * 4, started.transcript()
    if saved:
        assert any(f"resumed from step {saved[-1]}" in line for line in started.output[0])
    assert_same_course(workdir, alone)


@pytest.mark.parametrize(
    "sent, victim",
    [(signal.SIGKILL, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 1)],
    ids=["worker-killed", "coordinator-killed", "worker-stopped"],
)
def test_the_others_end_when_one_is_lost(records, tmp_path, sent, victim):
    fields = {"steps": 100000, "batch_size": 12, "checkpoint.every": 0, "eval.every": 0, "log_every": 5}
    with processes.Processes(command(tmp_path / "run", records, **fields), 3) as started:
        started.wait_for("step      5")
        started[victim].send_signal(sent)
        lost = time.monotonic()
        others = [process for number, process in enumerate(started.started) if number != victim]
        codes = [process.wait(timeout=90) for process in others]
        seconds = time.monotonic() - lost
        started[victim].kill()
        started.wait()
    # JAX aborts them, unless a collective fails first, which the command reports.
    assert set(codes) <= {1, -signal.SIGABRT}, started.transcript()
    assert seconds < 80  # a heartbeat timeout of 10 s, on a machine that may be busy
    for number in {0, 1, 2} - {victim}:
        said = "\n".join(started.output[number])
        assert "another task died" in said or "Traceback" in said, said
        assert said.count('File "') < 60  # no stack traces of all threads
