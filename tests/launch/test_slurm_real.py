"""The Slurm scripts on a real cluster of one node: this machine, with Debian's slurm-wlm and munge.

    apt-get install slurm-wlm munge

As root, as the daemons switch users. They run in the foreground on ports and files of their own.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time

import pytest
from support.launching import LAUNCH

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="munged and slurmctld are started as root"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))),
        reason="no Slurm; apt-get install slurm-wlm munge",
    ),
]

_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={path}/munge/socket
CredType=cred/munge
SlurmUser=root
StateSaveLocation={path}/state
SlurmdSpoolDir={path}/spool
SlurmctldPidFile={path}/slurmctld.pid
SlurmdPidFile={path}/slurmd.pid
SlurmctldLogFile={path}/slurmctld.log
SlurmdLogFile={path}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


_SHELL = ["bash", "-c"]


class Cluster:
    def __init__(self, path, config):
        self.path = path
        self.environment = os.environ | {"SLURM_CONF": str(config)}

    def __call__(self, *command):
        return subprocess.run(
            [str(word) for word in command],
            env=self.environment,
            cwd=self.path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def submit(self, name, script, *flags):
        self(
            LAUNCH / "slurm.sh",
            "run",
            f"--name={name}",
            "--gpus_per_node=0",
            *flags,
            "--",
            *_SHELL,
            script,
            "x",
        )
        return self("squeue", "--noheader", f"--name={name}", "--format=%A").strip()

    def log(self, name):
        path = self.path / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, what, test):
        deadline = time.monotonic() + 400
        while not test():
            assert time.monotonic() < deadline, (what, self("scontrol", "show", "job"))
            time.sleep(1)

    def job(self, number):
        words = self("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def start_requeued(self, number):
        """A job that went back to the queue waits two minutes; this one does not."""
        self.wait_for("requeued", lambda: self.job(number)["JobState"] == "PENDING")
        self("scontrol", "update", f"jobid={number}", "StartTime=now")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    path = tmp_path_factory.mktemp("slurm")
    # munged asks for directories that others can enter and not write to.
    for name, mode in {"state": 0o755, "spool": 0o755, "munge": 0o711}.items():
        (path / name).mkdir(mode=mode)
    key = path / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    config = path / "slurm.conf"
    config.write_text(
        _CONFIG.format(host=socket.gethostname(), ports=free_ports(2), path=path, cpus=os.cpu_count())
    )
    cluster = Cluster(path, config)
    munge = path / "munge"
    daemons = [
        ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={key}",
         f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for i, command in enumerate(daemons):
            output = stack.enter_context(open(path / f"daemon-{i}.out", "w"))
            process = subprocess.Popen(
                command, env=cluster.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
            stack.callback(process.wait, timeout=60)
            stack.callback(process.terminate)
            if i == 0:
                cluster.wait_for("munged", (munge / "socket").exists)

        def is_up():
            done = subprocess.run(
                ["sinfo", "--noheader", "--format=%T"],
                env=cluster.environment,
                capture_output=True,
                text=True,
            )
            return done.stdout.strip() == "idle"

        cluster.wait_for("the node", is_up)
        yield cluster
        subprocess.run(["scancel", "--full", "--user=root"], env=cluster.environment)


def test_exit_code_3_goes_back_to_the_queue_and_on(cluster):
    script = "echo start $SLURM_RESTART_COUNT; [[ ${SLURM_RESTART_COUNT:-0} == 1 ]] || exit 3; echo done"
    number = cluster.submit("again", script)
    cluster.start_requeued(number)
    cluster.wait_for("the end", lambda: cluster.job(number)["JobState"] == "COMPLETED")
    assert cluster.job(number)["Restarts"] == "1"
    log = cluster.log("again")
    assert "0: start 1" in log
    assert "0: done" in log
    assert log.index("exit code 3") < log.index("start 2:") < log.index("exit code 0")


def test_a_process_gets_its_place(cluster):
    number = cluster.submit("place", 'echo "$@"')
    cluster.wait_for("the end", lambda: cluster.job(number)["JobState"] == "COMPLETED")
    port = 20000 + int(number) % 10000
    flags = f"--coordinator_address={socket.gethostname()}:{port} --num_processes=1 --process_id=0"
    assert f"0: {flags}\n" in cluster.log("place")


@pytest.mark.parametrize("code", [2, 130])
def test_a_mistake_and_an_interrupt_end_it(cluster, code):
    number = cluster.submit(f"end-{code}", f"exit {code}")
    cluster.wait_for("the end", lambda: cluster.job(number)["JobState"] == "FAILED")
    assert cluster.job(number)["ExitCode"] == f"{code}:0"
    assert cluster.job(number)["Restarts"] == "0"


def test_a_mistake_of_one_process_ends_it_though_the_others_are_aborted(cluster):
    script = "[[ $SLURM_PROCID == 0 ]] && exit 2; sleep 1; kill -ABRT $$"
    number = cluster.submit("one", script, "--sbatch_flag=--ntasks-per-node=2")
    cluster.wait_for("the end", lambda: cluster.job(number)["JobState"] == "FAILED")
    assert cluster.job(number)["ExitCode"] == "2:0" and cluster.job(number)["Restarts"] == "0"
    assert not list(cluster.path.glob(".slurm-*"))


_SAVES = "trap 'echo saved; exit 3' TERM; echo up; while true; do sleep 0.2; done"


def test_ahead_of_the_time_limit_it_saves_and_goes_back_to_the_queue(cluster):
    number = cluster.submit("limit", _SAVES, "--time=2", "--save_seconds=60")
    cluster.wait_for("requeued", lambda: cluster.job(number)["Restarts"] == "1")
    assert "0: saved" in cluster.log("limit")
    cluster("scancel", number)


def test_a_cancelled_job_does_not_come_back(cluster):
    number = cluster.submit("cancelled", _SAVES)
    cluster.wait_for("the start", lambda: "0: up" in cluster.log("cancelled"))
    cluster(LAUNCH / "slurm.sh", "delete", "--name=cancelled")
    cluster.wait_for("the end", lambda: "0: saved" in cluster.log("cancelled"))
    cluster.wait_for("its state", lambda: cluster.job(number)["JobState"] == "CANCELLED")
    assert cluster.job(number)["Restarts"] == "0"
