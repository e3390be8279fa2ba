"""The supervisor: what is started again, when it gives up, and signals."""

import os
import signal
import subprocess

import pytest
from support.launching import LAUNCH, NASTY

SCRIPT = LAUNCH / "restart.sh"

# Counts its attempts in a file, and exits with the code in place of the attempt's number.
ATTEMPT = 'n=$(cat attempts 2>/dev/null || echo 1); echo $((n + 1)) >attempts; exit "${!n:-0}"'


def run(directory, *words, flags=()):
    command = [SCRIPT, "--pause_seconds=0", "--status_file=status", *flags, "--", *words]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr, (directory / "status").read_text()


def heed_sigint():
    """A shell cannot trap what it was started to ignore, as tests that run in the background are."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def attempts(directory):
    return int((directory / "attempts").read_text()) - 1


@pytest.mark.parametrize(
    "codes, expected, count",
    [
        (["0"], 0, 1),
        (["3", "3", "0"], 0, 3),
        (["1", "134", "3", "0"], 0, 4),
        (["137", "143", "139", "0"], 0, 4),
        (["3", "2"], 2, 2),
        (["130"], 130, 1),
        (["3", "126"], 126, 2),
        (["127"], 127, 1),
        (["1"] * 9, 1, 5),
        (["3"] * 9, 3, 5),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_which_exit_codes_start_it_again(tmp_path, codes, expected, count):
    code, told, status = run(tmp_path, "bash", "-c", ATTEMPT, "bash", *codes)
    assert (code, attempts(tmp_path)) == (expected, count), told
    assert status == f"exit {expected}\n"


def test_attempts_that_last_are_not_counted(tmp_path):
    """One that takes longer than fast_seconds clears the count."""
    script = '[[ "$(cat attempts 2>/dev/null)" != 2 ]] || sleep 1.2; ' + ATTEMPT
    code, told, _ = run(
        tmp_path,
        "bash",
        "-c",
        script,
        "bash",
        *"1 1 1 1 0".split(),
        flags=["--fast_seconds=1", "--max_fast=3"],
    )
    # Fast, long, fast, fast, done: a third fast one in a row never came.
    assert (code, attempts(tmp_path)) == (0, 5), told


def test_the_words_of_the_command(tmp_path):
    run(tmp_path, "bash", "-c", "printf '%s\\0' \"$@\" >words", "bash", *NASTY)
    assert (tmp_path / "words").read_bytes().decode().split("\0")[:-1] == NASTY


@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 3), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_is_passed_on_and_ends_it(tmp_path, number, code):
    script = "trap 'echo saved; exit 3' TERM; trap 'exit 130' INT; echo up; while true; do sleep 0.05; done"
    process = subprocess.Popen(
        [SCRIPT, "--status_file=status", "--", "bash", "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_sigint,
    )
    assert process.stdout.readline() == "up\n"
    assert (tmp_path / "status").read_text() == f"running {process.pid}\n"
    process.send_signal(number)
    assert process.wait(timeout=300) == code
    assert process.stdout.read() == ("saved\n" if code == 3 else "")
    assert (tmp_path / "status").read_text() == f"exit {code}\n"


def test_a_command_that_does_not_handle_the_signal_yet_is_not_started_again(tmp_path):
    """SIGTERM kills a process in its first moments, in which it has done nothing: 143, as after a crash."""
    command = [SCRIPT, "--status_file=status", "--", "bash", "-c", "echo up; exec sleep 60"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(timeout=300) == 143 and process.stdout.read() == ""
    assert (tmp_path / "status").read_text() == "exit 143\n"


def test_a_signal_during_the_pause(tmp_path):
    command = [SCRIPT, "--status_file=status", "--pause_seconds=1000", "--", "bash", "-c", "exit 3"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert "starting again in 1000 s" in process.stderr.readline()
    process.terminate()
    assert process.wait(timeout=300) == 3


def test_mistakes():
    for words, message in [((), "what to run"), (("--max_fast=0", "--", "true"), "--max_fast=0: expected")]:
        done = subprocess.run([SCRIPT, *words], capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/dev/full"), reason="needs a full device")
def test_a_status_that_cannot_be_written_is_told_and_no_more(tmp_path):
    (tmp_path / "status.new").symlink_to("/dev/full")
    command = [SCRIPT, "--status_file=status", "--", "bash", "-c", "exit 2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "cannot write 'exit 2' to status" in done.stderr
    done = subprocess.run([SCRIPT, "--status_file=status/", "--", "true"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 2


def test_a_dry_run_starts_nothing(tmp_path):
    done = subprocess.run(
        [SCRIPT, "--dry_run", "--", "touch", "a b"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "touch a\\ b\n"
    assert list(tmp_path.iterdir()) == []
