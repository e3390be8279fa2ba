"""Several processes on this machine: their flags, the prefixes of their output, and how one ends all."""

import os
import re
import shutil
import signal
import subprocess

import pytest
from support.launching import LAUNCH, NASTY

SCRIPT = LAUNCH / "local.sh"


def run(*words, script=SCRIPT, flags=("--processes=3",), check=0, **options):
    done = subprocess.run(
        [script, *flags, "--", *words], capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == check, done.stdout + done.stderr
    return done


def bash(script):
    return ["bash", "-c", f'rank="${{!#}}"; rank="${{rank##*=}}"; {script}', "bash"]


def test_each_gets_its_place():
    script = 'echo "${@: -3}"; echo "$JAX_PLATFORMS $XLA_FLAGS" >&2'
    lines = run(
        *bash(script), flags=["--processes=3", "--devices=4", "--port=1234"], env={"PATH": "/usr/bin:/bin"}
    )
    flags = "--coordinator_address=127.0.0.1:1234 --num_processes=3"
    assert sorted(lines.stdout.splitlines()) == sorted(
        line
        for i in range(3)
        for line in (
            f"[{i}] {flags} --process_id={i}",
            f"[{i}] cpu --xla_force_host_platform_device_count=4",
        )
    )


def test_a_port_is_found():
    out = run(*bash('echo "$*"')).stdout
    ports = set(re.findall(r"127\.0\.0\.1:(\d+)", out))
    assert len(ports) == 1
    assert 20000 <= int(*ports) < 30000


def test_the_words_of_the_command(tmp_path):
    run("bash", "-c", "printf '%s\\0' \"$@\" >words", "bash", *NASTY, flags=["--processes=1"], cwd=tmp_path)
    assert (tmp_path / "words").read_bytes().decode().split("\0")[: len(NASTY)] == NASTY


def test_one_that_fails_ends_all():
    script = '[[ $rank != 1 ]] || exit 7; trap "echo told; exit 3" TERM; while true; do sleep 0.05; done'
    done = run(*bash(script), check=7)
    assert "process 1 exited with 7" in done.stderr
    assert "[1] told" not in done.stdout


def test_one_that_fails_while_another_is_not_up_yet(tmp_path):
    """Process 2 opens its output late: a signal before that must not end its shell."""
    start = 'run_one "$i" >"$scratch/output-$i" 2>&1 &'
    source = SCRIPT.read_text()
    assert source.count(start) == 1
    late = tmp_path / "local.sh"
    late.write_text(source.replace(start, f"{{ [[ $i != 2 ]] || sleep 1; {start[:-2]}; }} &"))
    late.chmod(0o755)
    shutil.copy(LAUNCH / "lib.sh", tmp_path)
    script = '[[ $rank != 1 ]] || exit 7; trap "echo told; exit 3" TERM; while true; do sleep 0.05; done'
    done = run(*bash(script), script=late, flags=["--processes=3", "--grace_seconds=30"], check=7)
    assert "killed" not in done.stderr


@pytest.mark.long
def test_one_that_does_not_listen_is_killed():
    # Process 1 leaves the other one the time to begin to ignore the signal.
    script = '[[ $rank != 1 ]] || { sleep 2; exit 7; }; trap "" TERM; while true; do sleep 0.05; done'
    assert "killed" in run(*bash(script), flags=["--processes=2", "--grace_seconds=1"], check=7).stderr


def test_those_that_stop_on_purpose_are_left_to_save():
    """Process 0 exits with 3 first; the other still has something to write, and no signal disturbs it."""
    script = 'trap "echo disturbed" TERM; [[ $rank == 0 ]] || { sleep 0.5; echo written; }; exit 3'
    done = run(*bash(script), flags=["--processes=2"], check=3)
    assert done.stdout == "[1] written\n"


def test_what_a_process_leaves_behind_does_not_hold_it_up():
    run(*bash("sleep 1000 & exit 0"), flags=["--processes=2"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_goes_to_all(number):
    script = 'trap "echo saved; exit 3" TERM; echo up; while true; do sleep 0.05; done'
    # A shell cannot trap what it was started to ignore, as tests that run in the background are.
    process = subprocess.Popen(
        [SCRIPT, "--processes=2", "--", *bash(script)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] up\n", "[1] up\n"]
    process.send_signal(number)
    assert sorted(process.stdout.read().splitlines()) == ["[0] saved", "[1] saved"]
    assert process.wait(timeout=300) == 3


def test_a_signal_to_the_whole_group_loses_no_last_line():
    script = 'trap "sleep 1; echo saved; exit 3" TERM; echo up; while true; do sleep 0.05; done'
    process = subprocess.Popen(
        [SCRIPT, "--processes=1", "--", *bash(script)], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout.readline() == "[0] up\n"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout.read() == "[0] saved\n" and process.wait(timeout=300) == 3


def test_a_dry_run_shows_what_would_run(tmp_path):
    words = bash('printf "%s|" "$@" >"$rank"')
    shown = run(*words, *NASTY, flags=["--processes=2", "--port=1", "--dry_run"], cwd=tmp_path).stdout
    assert list(tmp_path.iterdir()) == []
    subprocess.run(["bash", "-euc", shown], cwd=tmp_path, check=True)
    dry = {path.name: path.read_text() for path in tmp_path.iterdir()}
    run(*words, *NASTY, flags=["--processes=2", "--port=1"], cwd=tmp_path)
    assert dry == {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(dry) == ["0", "1"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--processes=0", "--", "true"], "--processes=0: expected"),
        (["--devices=x", "--", "true"], "--devices=x: expected"),
        (["bert-jax", "pretrain"], "bert-jax: not expected"),
        ([], "what to run"),
    ],
    ids=["processes", "devices", "no-dashes", "nothing"],
)
def test_mistakes_are_told_in_one_line(words, message):
    done = subprocess.run([SCRIPT, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
