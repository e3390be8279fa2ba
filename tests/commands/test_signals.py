"""SIGTERM and SIGINT to whole commands, at moments when nothing is there to be saved yet."""

import re
import signal
import subprocess
import sys
import time

import pytest
from support import processes

CHILD = """
import sys
from bert_jax import cli, signals
from bert_jax.errors import Preempted
signals._CLEANING_SECONDS = 1.0
sys.argv = ["bert-jax", sys.argv[1]]
def run(argv):
    print("up", flush=True)
    {body}
cli._dispatch = run
sys.exit(cli.main())
"""

# What the main thread is in when the signal comes.
BODIES = {
    "python": "import time; time.sleep(60)",
    # In C and without the interpreter's lock for minutes, as when JAX compiles.
    "elsewhere": "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 29)",
    # A library that takes every exception for its own.
    "swallowed": "import time\n    try: time.sleep(60)\n    except BaseException: time.sleep(60)",
}


def start(command, body):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(body=body), command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize(
    "command, number, code, line",
    [
        ("pretrain", signal.SIGTERM, 3, "stopped with nothing to save; run the same command to resume"),
        ("embed", signal.SIGTERM, 143, "stopped by SIGTERM; the command starts over"),
        ("pretrain", signal.SIGINT, 130, "interrupted; run the same command to resume"),
        ("embed", signal.SIGINT, 130, "interrupted; the command starts over"),
    ],
)
@pytest.mark.parametrize("body", ["python", "elsewhere"])
def test_a_signal_ends_a_command_with_nothing_to_save(command, number, code, line, body):
    process = start(command, BODIES[body])
    began = time.monotonic()
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, f"bert-jax: {line}\n")
    assert time.monotonic() - began < 20  # the body would take a minute


@pytest.mark.long
def test_a_signal_that_was_swallowed_counts_still():
    """An exception may come inside a library that drops it: the process ends nonetheless."""
    process = start("pretrain", BODIES["swallowed"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=50) == 3


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "records")


def wait_until_caught(process):
    """Waits until a process has a handler of SIGTERM, which on a busy machine takes Python a while."""
    caught = 0
    while not caught & 1 << signal.SIGTERM - 1:
        time.sleep(0.02)
        assert process.poll() is None
        with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.0, 0.7, 2.2])
def test_sigterm_while_a_run_starts(records, tmp_path, seconds):
    """While modules are imported and the program is compiled: the code is 3, and the same command goes on."""
    command = processes.command(tmp_path / "run", records)
    process = processes.start(command)
    wait_until_caught(process)
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    assert re.search("^bert-jax: stopped (with nothing to save|at step .*saved); run the same", output, re.M)
    assert "Traceback" not in output
