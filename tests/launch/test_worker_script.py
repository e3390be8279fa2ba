"""What runs on each worker of a TPU slice: start, status, stop, and installing twice."""

import os
import shutil
import time

import pytest
from support.launching import LAUNCH, NASTY, StandIns


@pytest.fixture
def worker(tmp_path):
    """Calls launch/worker.sh in a checkout of its own; has .checkout and .stand_ins."""
    shutil.copytree(LAUNCH, tmp_path / "launch")
    stand_ins = StandIns(tmp_path / "stand-ins", ["uv"])

    def call(*words, **options):
        return stand_ins.run(tmp_path / "launch" / "worker.sh", *words, **options)

    call.checkout, call.stand_ins = tmp_path, stand_ins
    yield call
    call("stop")


def wait_for(worker, status):
    deadline = time.monotonic() + 120
    while (now := worker("status").stdout.strip()) != status:
        assert time.monotonic() < deadline, now
        time.sleep(0.05)


def test_a_run_from_start_to_end(worker):
    assert worker("status").stdout == "none\n"
    worker(
        "start",
        "--",
        "bash",
        "-c",
        'echo out; echo err >&2; printf "%s\\0" "$@" >words; exit 2',
        "bash",
        *NASTY,
    )
    wait_for(worker, "exit 2")
    assert (worker.checkout / "run.log").read_text() == "out\nerr\n"
    assert (worker.checkout / "words").read_bytes().decode().split("\0")[:-1] == NASTY


def test_start_twice_and_stop(worker):
    script = 'trap "exit 3" TERM; touch up; while true; do sleep 0.05; done'
    worker("start", "--", "bash", "-c", script)
    wait_for(worker, "running")
    while not (worker.checkout / "up").exists():
        time.sleep(0.05)
    assert "already running" in worker("start", "--", "false").stderr
    worker("stop")
    wait_for(worker, "exit 3")
    assert "nothing is running" in worker("stop").stderr


def test_a_supervisor_that_is_gone(worker):
    (worker.checkout / "run.status").write_text(
        f"running {2**22 + os.getpid()}\n"
    )  # above the largest process id
    assert worker("status").stdout == "lost\n"


def test_install_again_keeps_the_environment(worker):
    worker("install", "cuda")
    first = worker.stand_ins.calls()
    assert [call[:3] for call in first] == [["uv", "venv", "--quiet"], ["uv", "pip", "install"]]
    assert first[1][-1] == ".[cuda,gcs,all]"
    python = worker.checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/true")
    worker("install", "cuda")
    assert worker.stand_ins.calls() == first[1:]


def test_mistakes(worker):
    assert "expected tpu, cuda or cpu" in worker("install", "gpu", check=2).stderr
    assert "expected install, start" in worker("begin", check=2).stderr
    assert "what to run?" in worker("start", check=2).stderr
