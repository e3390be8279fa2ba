"""Slurm: what is submitted, and what the job does with it."""

import getpass

import pytest
from support.launching import LAUNCH, NASTY, StandIns, assert_dry_run_is_faithful

SCRIPT = LAUNCH / "slurm.sh"
JOB = str(LAUNCH / "slurm.sbatch")


@pytest.fixture
def cluster(tmp_path):
    stand_ins = StandIns(tmp_path / "stand-ins", ["sbatch", "squeue", "scancel", "scontrol"])
    # Runs the command as the second of the processes.
    srun = tmp_path / "stand-ins" / "bin" / "srun"
    srun.write_text('#!/usr/bin/env bash\nwhile [[ "$1" == --* ]]; do shift; done\nSLURM_PROCID=1 "$@"\n')
    srun.chmod(0o755)
    stand_ins.environment |= {
        "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NODELIST": "gpu[007-008]",
        "SLURM_NTASKS": "2",
    }
    stand_ins.answers(hosts="gpu007 gpu008")
    return stand_ins


def test_one_process_a_node(cluster, tmp_path):
    logs = f"--log_dir={tmp_path}/a b"
    cluster.run(
        SCRIPT, "run", "--name=base", "--nodes=2", "--sbatch_flag=--constraint=h100&ib", logs, "--", *NASTY
    )
    user = getpass.getuser()
    assert cluster.calls() == [
        ["squeue", "--noheader", f"--user={user}", "--name=base", "--format=%A"],
        ["sbatch", "--job-name=base", "--nodes=2", "--time=24:00:00", "--requeue", "--signal=TERM@120",
         f"--output={tmp_path}/a b/base.log", "--open-mode=append", "--gpus-per-node=8",
         "--ntasks-per-node=1", "--export=ALL,PROCESS_PER=node,MAX_RESTARTS=20", "--constraint=h100&ib", JOB,
         *NASTY],
    ]  # fmt: skip
    assert (tmp_path / "a b").is_dir()


@pytest.mark.parametrize(
    "flags, expected, absent",
    [
        (
            ["--process_per=gpu"],
            ["--gpus-per-node=8", "--ntasks-per-node=8", "--export=ALL,PROCESS_PER=gpu,MAX_RESTARTS=20"],
            "--constraint",
        ),
        (["--gpus_per_node=0"], ["--ntasks-per-node=1"], "--gpus"),
        (["--cpus_per_task=12"], ["--cpus-per-task=12", "--ntasks-per-node=1"], "--constraint"),
        (["--nodes=2"], ["--nodes=2"], "--cpus-per-task"),
        (["--partition=p", "--account=a"], ["--partition=p", "--account=a"], "--constraint"),
    ],
    ids=["gpu", "cpu", "cores", "default_cores", "partition"],
)
def test_other_shapes(cluster, tmp_path, flags, expected, absent):
    cluster.run(SCRIPT, "run", "--name=base", f"--log_dir={tmp_path}", *flags, "--", "bert-jax")
    call = cluster.calls()[-1]
    assert set(expected) <= set(call)
    assert not any(word.startswith(absent) for word in call)


def test_a_job_that_is_there_is_not_submitted_again(cluster):
    cluster.answers(job="41")
    assert "base is there already: job 41" in cluster.run(SCRIPT, "run", "--name=base", "--", "true").stderr
    assert [call[0] for call in cluster.calls()] == ["squeue"]


def test_delete(cluster):
    cluster.run(SCRIPT, "delete", "--name=base")
    assert cluster.calls() == [["scancel", f"--user={getpass.getuser()}", "--name=base"]]


REQUEUE = [["scontrol", "requeue", "12345"]]


@pytest.mark.parametrize("code", [0, 2, 126, 127, 130])
@pytest.mark.parametrize("restarts", [0, 19, 20])
def test_a_job_that_is_done_or_mistaken_is_not_queued_again(cluster, code, restarts):
    environment = {"SLURM_RESTART_COUNT": str(restarts), "MAX_RESTARTS": "20"}
    cluster.run(JOB, "bash", "-c", f"exit {code}", check=code, env=environment)
    assert cluster.calls()[1:] == []


@pytest.mark.parametrize("code", [1, 3, 134, 137, 139, 143])
@pytest.mark.parametrize("restarts", [0, 19, 20])
def test_a_crash_is_queued_again_so_often_and_a_stop_on_purpose_without_end(cluster, code, restarts):
    environment = {"SLURM_RESTART_COUNT": str(restarts), "MAX_RESTARTS": "20"}
    cluster.run(JOB, "bash", "-c", f"exit {code}", check=code, env=environment)
    assert cluster.calls()[1:] == (REQUEUE if code == 3 or restarts < 20 else [])


def test_what_a_process_is_told(cluster, tmp_path):
    script = f'printf "%s\\0" "${{JAX_LOCAL_DEVICE_IDS:-}}" "$@" >{tmp_path}/words'
    told = [*NASTY, "--coordinator_address=gpu007:22345", "--num_processes=2", "--process_id=1"]
    on_node = {"SLURM_GPUS_ON_NODE": "8", "SLURM_LOCALID": "3"}
    for of_task, devices in (
        ({"PROCESS_PER": "node"}, "0,1,2,3,4,5,6,7"),
        ({"PROCESS_PER": "node", "SLURM_GPUS_ON_NODE": "1"}, "0"),
        ({"PROCESS_PER": "node", "SLURM_GPUS_ON_NODE": ""}, ""),
        ({"PROCESS_PER": "gpu"}, "3"),
        ({"PROCESS_PER": "gpu", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, "3"),
        ({"PROCESS_PER": "gpu", "CUDA_VISIBLE_DEVICES": "3"}, "0"),
    ):
        cluster.run(JOB, "bash", "-c", script, "bash", *NASTY, env=on_node | of_task)
        assert (tmp_path / "words").read_bytes().decode().split("\0")[:-1] == [devices, *told]
    assert cluster.calls()[0] == ["scontrol", "show", "hostnames", "gpu[007-008]"]


@pytest.mark.parametrize("cores", ["12", ""])
def test_srun_gives_each_process_the_cores_that_the_job_has_for_it(cluster, tmp_path, cores):
    script = f'printf "%s" "${{SRUN_CPUS_PER_TASK-unset}}" >{tmp_path}/cores'
    environment = {"SLURM_CPUS_PER_TASK": cores} if cores else {}
    cluster.run(JOB, "bash", "-c", script, env=environment)
    assert (tmp_path / "cores").read_text() == (cores or "unset")


@pytest.mark.parametrize("verb", ["run", "delete"])
def test_a_dry_run_shows_the_calls(cluster, tmp_path, verb):
    words = ["--name=base", f"--log_dir={tmp_path}/$x", "--", *NASTY]
    assert_dry_run_is_faithful(cluster, SCRIPT, verb, *words)


@pytest.mark.parametrize(
    "words, message",
    [
        (["run", "--", "true"], "--name is missing"),
        (["run", "--name=a b", "--", "true"], "--name=a b: expected"),
        (["run", "--name=a"], "what to run?"),
        (["start", "--name=a"], "start: expected run, logs or delete"),
        (["run", "--name=a", "--process_per=core", "--", "true"], "--process_per=core: expected node or gpu"),
        (
            ["run", "--name=a", "--process_per=gpu", "--gpus_per_node=0", "--", "true"],
            "--gpus_per_node=0: expected",
        ),
        (
            ["run", "--name=a", "--gpus_per_node=08", "--", "true"],
            "--gpus_per_node=08: expected",
        ),
        (
            ["run", "--name=a", "--cpus_per_task=0", "--", "true"],
            "--cpus_per_task=0: expected a whole number",
        ),
        (["run", "--name=a", "--log_dir=%j", "--", "true"], "Slurm would replace the %"),
    ],
    ids=["no-name", "name", "no-command", "verb", "process", "no-gpu", "octal", "no-core", "percent"],
)
def test_mistakes_are_told_in_one_line(cluster, words, message):
    done = cluster.run(SCRIPT, *words, check=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert cluster.calls() == []
