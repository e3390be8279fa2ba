"""Cloud TPU VMs: the calls of gcloud that each command makes, and what follows a preemption."""

import shlex
from pathlib import Path

import pytest
from support.launching import LAUNCH, NASTY, StandIns, assert_dry_run_is_faithful

SCRIPT = LAUNCH / "tpu_vm.sh"
NAME = ["--name=pod", "--zone=us-west4-a", "--poll_seconds=0"]
TRAIN = ["--", "bert-jax", "pretrain", "--workdir=gs://bucket/runs/base"]
VM = ["gcloud", "compute", "tpus", "tpu-vm"]
QUEUE = ["gcloud", "compute", "tpus", "queued-resources"]


@pytest.fixture
def cloud(tmp_path):
    return StandIns(tmp_path / "stand-ins", ["gcloud"])


def steps(calls):
    """The calls in a word each."""
    return [_step(call) for call in calls]


def _step(call):
    if call[4] == "ssh":
        return call[-1].partition("worker.sh ")[2].split()[0]
    return ("queue-" if call[3] == "queued-resources" else "") + call[4]


def test_create(cloud):
    cloud.answers(node="NOT_FOUND READY")
    flags = ["--project=p", "--spot", "--service_account=me@p", "--create_flag=--network=my net"]
    cloud.run(SCRIPT, "create", *NAME, *flags)
    where = ["pod", "--zone=us-west4-a", "--project=p"]
    assert cloud.calls() == [
        [*VM, "describe", *where, "--format=value(state)"],
        [*VM, "create", *where, "--version=v2-alpha-tpuv5-lite", "--accelerator-type=v5litepod-16", "--spot",
         "--service-account=me@p", "--scopes=https://www.googleapis.com/auth/cloud-platform",
         "--network=my net"],
        [*VM, "describe", *where, "--format=value(state)"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "accelerator, version",
    [
        ("v4-32", "tpu-ubuntu2204-base"),
        ("v5litepod-256", "v2-alpha-tpuv5-lite"),
        ("v5p-128", "v2-alpha-tpuv5"),
        ("v6e-64", "v2-alpha-tpuv6e"),
    ],
)
def test_the_image_suits_the_accelerator(cloud, accelerator, version):
    cloud.answers(node="NOT_FOUND READY")
    cloud.run(SCRIPT, "create", *NAME, f"--accelerator_type={accelerator}")
    assert f"--version={version}" in cloud.calls()[1]


def test_create_what_is_there(cloud):
    cloud.answers(node="READY")
    assert "pod is there already: READY" in cloud.run(SCRIPT, "create", *NAME).stderr
    assert steps(cloud.calls()) == ["describe", "describe"]


def test_create_in_the_queue(cloud):
    cloud.answers(request="NOT_FOUND WAITING_FOR_RESOURCES PROVISIONING ACTIVE", node="READY")
    cloud.run(SCRIPT, "create", *NAME, "--queued", "--spot")
    calls = cloud.calls()
    assert steps(calls) == ["queue-describe", "queue-create", *["queue-describe"] * 3, "describe"]
    assert calls[1][:7] == [*QUEUE, "create", "pod", "--zone=us-west4-a"]
    assert {"--node-id=pod", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"} < set(calls[1])


def test_a_request_that_failed(cloud):
    cloud.answers(request="NOT_FOUND FAILED")
    assert "pod is FAILED: delete it" in cloud.run(SCRIPT, "create", *NAME, "--queued", check=1).stderr


def test_without_an_answer_nothing_is_made_or_deleted(cloud):
    cloud.answers(node="DENIED")
    for verb in ("create", "delete"):
        assert "PERMISSION_DENIED" in cloud.run(SCRIPT, verb, *NAME, check=1).stderr
    assert steps(cloud.calls()) == ["describe", "describe"]


def test_install(cloud, tmp_path):
    cloud.run(SCRIPT, "install", *NAME, "--ssh_flag=--internal-ip")
    copy, install = cloud.calls()
    assert copy[:5] == [*VM, "scp"]
    assert copy[6:] == ["pod:bert_jax.tar.gz", "--zone=us-west4-a", "--worker=all", "--internal-ip"]
    # On a worker, where the bundle arrives in the home directory.
    worker = StandIns(tmp_path / "worker", ["uv"])
    home = tmp_path / "worker" / "home"
    home.mkdir()
    (home / "bert_jax.tar.gz").write_bytes(Path(copy[5]).read_bytes())
    worker.run("bash", "-c", install[-1].removeprefix("--command="), cwd=home)
    assert worker.calls() == [
        ["uv", "venv", "--quiet", "--python=3.11", ".venv"],
        ["uv", "pip", "install", "--quiet", "--python=.venv", "--constraints=requirements.lock",
         "--editable", ".[tpu,gcs,all]"],
    ]  # fmt: skip
    assert (home / "bert_jax" / "configs" / "pretrain" / "base.py").exists()
    assert (home / "bert_jax" / "bert_jax" / "cli.py").exists()


def test_the_command_reaches_the_worker_word_for_word(cloud, tmp_path):
    cloud.run(SCRIPT, "run", *NAME, "--", *NASTY)
    (call,) = cloud.calls()
    assert call[:-1] == [*VM, "ssh", "pod", "--zone=us-west4-a", "--worker=all"]
    worker = StandIns(tmp_path / "worker", ["worker.sh"])
    script = tmp_path / "bert_jax" / "launch" / "worker.sh"
    script.parent.mkdir(parents=True)
    (tmp_path / "worker" / "bin" / "worker.sh").rename(script)
    worker.run("bash", "-c", call[-1].removeprefix("--command="), cwd=tmp_path)
    assert worker.calls() == [
        ["worker.sh", "start", "--", *NASTY, "--initialization_timeout=3600", "--distributed=auto"]
    ]


def test_logs_of_a_worker(cloud):
    cloud.run(SCRIPT, "logs", *NAME, "--worker=3")
    assert cloud.calls()[0][-2:] == ["--worker=3", "--command=tail -n +1 -F bert_jax/run.log"]


def test_stop_waits_until_no_worker_is_running(cloud):
    (cloud.path / "status").write_text("running,exit 3\nodd\nexit 3,running\nexit 3,exit 3\n")
    told = cloud.run(SCRIPT, "stop", *NAME).stderr
    assert "has not ended yet" in told and "not all workers answer" in told and "no worker is running" in told
    assert steps(cloud.calls()) == ["stop", *["status"] * 4]


@pytest.mark.parametrize("status", ["running,exit 3", "odd"])
def test_stop_gives_up_after_a_time(cloud, status):
    (cloud.path / "status").write_text(status)
    told = cloud.run(SCRIPT, "stop", *NAME, "--stop_seconds=0", check=1).stderr
    assert "may still be running after 0 s" in told
    assert steps(cloud.calls()) == ["stop", "status"]


def test_stop_of_a_run_that_could_not_save(cloud):
    (cloud.path / "status").write_text("exit 3,exit 1")
    assert "the run failed with exit 1" in cloud.run(SCRIPT, "stop", *NAME, check=1).stderr


@pytest.mark.parametrize("node, expected", [("READY", ["describe", "delete"]), ("NOT_FOUND", ["describe"])])
def test_delete(cloud, node, expected):
    cloud.answers(node=node)
    cloud.run(SCRIPT, "delete", *NAME)
    calls = cloud.calls()
    assert steps(calls) == expected
    assert calls[-1][-1] == ("--quiet" if node == "READY" else "--format=value(state)")


def test_delete_from_the_queue(cloud):
    cloud.answers(request="SUSPENDED")
    cloud.run(SCRIPT, "delete", *NAME, "--queued")
    assert cloud.calls()[-1] == [*QUEUE, "delete", "pod", "--zone=us-west4-a", "--force", "--quiet"]


def test_watch_from_nothing_through_a_preemption_to_the_end(cloud):
    node = "NOT_FOUND NOT_FOUND READY  READY  PREEMPTED PREEMPTED NOT_FOUND READY  READY READY"
    cloud.answers(node=node)
    (cloud.path / "status").write_text("running\nrunning\nexit 0\n")
    told = cloud.run(SCRIPT, "watch", *NAME, "--spot", *TRAIN).stderr
    begin = ["describe", "create", "describe", "scp", "install", "start"]
    look = ["describe", "status"]
    assert steps(cloud.calls()) == [
        "describe", *begin, *look, "describe", "describe", "delete", *begin, *look, *look
    ]  # fmt: skip
    assert "pod is PREEMPTED: making it anew" in told
    assert "the run is done" in told


def test_watch_in_the_queue(cloud):
    """A preempted machine's request is deleted with it: an old request is never filled again."""
    cloud.answers(request="ACTIVE SUSPENDED SUSPENDED NOT_FOUND ACTIVE", node="READY")
    (cloud.path / "status").write_text("running\nexit 0\n")
    cloud.run(SCRIPT, "watch", *NAME, "--queued", *TRAIN)
    look = ["queue-describe", "describe"]
    assert steps(cloud.calls()) == [
        *look, "status", "queue-describe", "queue-describe", "queue-delete",
        "queue-describe", "queue-create", *look, "scp", "install", "start", *look, "status",
    ]  # fmt: skip


def test_watch_starts_again_after_a_restart_of_the_worker(cloud):
    cloud.answers(node="READY")
    # A line a look, the workers between commas.
    (cloud.path / "status").write_text(
        "running,lost,running\nrunning,running,running\nexit 3,running\nexit 0,exit 0\n"
    )
    cloud.run(SCRIPT, "watch", *NAME, *TRAIN)
    look = ["describe", "status"]
    assert steps(cloud.calls()) == [*look, "start", *look, *look, "start", *look]


@pytest.mark.parametrize("status", ["exit 2", "running,exit 1", "lost,exit 137,none"])
def test_watch_ends_with_a_failed_run(cloud, status):
    cloud.answers(node="READY")
    (cloud.path / "status").write_text(status)
    (failure,) = (word for word in status.split(",") if word.startswith("exit"))
    assert f"the run failed with {failure}" in cloud.run(SCRIPT, "watch", *NAME, *TRAIN, check=1).stderr
    assert steps(cloud.calls()) == ["describe", "status"]


def test_watch_waits_for_all_workers_to_end(cloud):
    cloud.answers(node="READY")
    (cloud.path / "status").write_text("exit 0,running\nodd\nexit 0,exit 0\n")
    assert "not all workers answer" in cloud.run(SCRIPT, "watch", *NAME, *TRAIN).stderr
    assert steps(cloud.calls()) == ["describe", "status"] * 3


def test_watch_gives_up_where_workers_never_answer(cloud):
    cloud.answers(node="READY")
    (cloud.path / "status").write_text("odd\n" * 9)
    assert "giving up" in cloud.run(SCRIPT, "watch", *NAME, *TRAIN, check=1).stderr
    assert steps(cloud.calls()) == ["describe", "status"] * 5


def test_watch_gives_up_where_workers_of_a_new_machine_never_answer(cloud):
    cloud.answers(node="READY PREEMPTED PREEMPTED NOT_FOUND READY")
    (cloud.path / "status").write_text("running\n" + "odd\n" * 9)
    told = cloud.run(SCRIPT, "watch", *NAME, *TRAIN, check=1).stderr
    assert "making it anew" in told and "giving up" in told


def test_watch_waits_for_workers_that_answered(cloud):
    cloud.answers(node="READY")
    (cloud.path / "status").write_text("running\n" + "odd\n" * 9 + "exit 0\n")
    assert "the run is done" in cloud.run(SCRIPT, "watch", *NAME, *TRAIN).stderr


def test_watch_waits_for_capacity(cloud):
    cloud.answers(node="NOT_FOUND", create="FULL " * 6 + "DENIED")
    assert "giving up" in cloud.run(SCRIPT, "watch", *NAME, *TRAIN, check=1).stderr
    assert steps(cloud.calls()).count("create") == 6 + 5


def test_watch_ends_where_the_quota_is_too_small(cloud):
    cloud.answers(node="NOT_FOUND", create="FULL QUOTA")
    told = cloud.run(SCRIPT, "watch", *NAME, *TRAIN, check=1).stderr
    assert "Limit: 0" in told and "the quota is too small for v5litepod-16 in us-west4-a" in told
    assert told.count("no capacity") == 1
    assert steps(cloud.calls()).count("create") == 2


def test_watch_tries_again_after_too_many_requests(cloud):
    cloud.answers(node="NOT_FOUND NOT_FOUND READY", create="RATE READY")
    (cloud.path / "status").write_text("exit 0")
    told = cloud.run(SCRIPT, "watch", *NAME, *TRAIN).stderr
    assert "quota is too small" not in told and "no capacity" not in told and "the run is done" in told


@pytest.mark.parametrize("queued", [[], ["--queued"]], ids=["at-once", "queued"])
@pytest.mark.parametrize(
    "verb, words, node",
    [
        ("create", ["--create_flag=--labels=a=b c"], "NOT_FOUND READY"),
        ("install", [], ""),
        ("run", ["--", *NASTY], ""),
        ("logs", [], ""),
        ("stop", [], ""),
        ("delete", [], "READY"),
    ],
)
def test_a_dry_run_shows_the_calls(cloud, verb, words, node, queued):
    request = node.replace("READY", "ACTIVE")
    # A machine is only asked for once its request is active.
    answers = dict(request=request, node="READY" if queued else node, status="none")
    assert_dry_run_is_faithful(cloud, SCRIPT, verb, *NAME, *queued, *words, **answers)


def test_a_dry_run_of_watch(cloud):
    shown = cloud.run(SCRIPT, "watch", *NAME, "--dry_run", *TRAIN).stdout
    assert cloud.calls() == []
    cloud.answers(node="READY")
    cloud.run("bash", "-euc", shown)
    begin = ["describe", "create", "describe", "scp", "install", "start"]
    assert steps(cloud.calls()) == [*begin, "describe", "delete", *begin]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "no command: expected create"),
        (["creat", *NAME], "creat: expected create"),
        (["create", "now", *NAME], "now: not expected"),
        (["create", "--zone=z"], "--name is missing"),
        (["create", "--name=pod"], "--zone is missing"),
        (["create", *NAME, "--name=My Pod"], "--name=My Pod: expected lower-case"),
        (["create", *NAME, "--nmae=x"], "--nmae=x is not a flag"),
        (["create", *NAME, "--spot=yes"], "--spot=yes: expected true or false"),
        (["create", *NAME, "--worker"], "--worker needs a value"),
        (["create", *NAME, "--accelerator_type=v9-8"], "name one with --runtime_version"),
        (["create", *NAME, "--queued", "--accelerator_type=tpu7x-16"], "TPU7x has no queued resources"),
        (["run", *NAME], "what to run?"),
        (["watch", *NAME, "--poll_seconds=a"], "--poll_seconds=a: expected a whole number"),
        (["stop", *NAME, "--stop_seconds=a"], "--stop_seconds=a: expected a whole number"),
    ],
    ids=lambda value: shlex.join(value[-1:]) if isinstance(value, list) else "",
)
def test_mistakes_are_told_in_one_line(cloud, words, message):
    done = cloud.run(SCRIPT, *words, check=2)
    assert message in done.stderr
    assert done.stderr.startswith("tpu_vm.sh: error: ")
    assert done.stderr.count("\n") == 1
    assert cloud.calls() == []
