"""JobSets and xpk: the manifests are valid and say what they should, and the calls of kubectl and xpk."""

import re

import jsonschema
import pytest
import yaml
from support.jobset_schema import JOBSET
from support.launching import LAUNCH, NASTY, StandIns, assert_dry_run_is_faithful

JOBSET_SCRIPT = LAUNCH / "gke" / "jobset.sh"
XPK_SCRIPT = LAUNCH / "gke" / "xpk.sh"
IMAGE = "europe-docker.pkg.dev/p/r/bert-jax:tpu"
FLAGS = {
    "tpu": ["--name=base", f"--image={IMAGE}", "--accelerator=tpu-v5-lite-podslice"],
    "gpu": ["--name=base", f"--image={IMAGE}", "--accelerator=nvidia-h100-80gb"],
}


@pytest.fixture
def cluster(tmp_path):
    return StandIns(tmp_path / "stand-ins", ["kubectl", "xpk"])


@pytest.fixture
def render(cluster):
    def call(*words):
        return yaml.safe_load(cluster.run(JOBSET_SCRIPT, "render", *words).stdout)

    return call


def job_of(manifest):
    (job,) = manifest["spec"]["replicatedJobs"]
    return job["template"]["spec"]


def container_of(manifest):
    (container,) = job_of(manifest)["template"]["spec"]["containers"]
    return container


def expand(word, environment):
    """What Kubernetes makes of a word of a command (its container documentation: $(NAME), and $$ for a $)."""
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda match: "$" if match[0] == "$$" else environment.get(match[1], match[0]),
        word,
    )


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_the_manifest_is_valid(render, kind):
    manifest = render(*FLAGS[kind], "--", *NASTY)
    jsonschema.Draft202012Validator(JOBSET, format_checker=jsonschema.FormatChecker()).validate(manifest)
    assert job_of(manifest)["parallelism"] == job_of(manifest)["completions"]
    mounted = {mount["name"] for mount in container_of(manifest)["volumeMounts"]}
    assert mounted == {volume["name"] for volume in job_of(manifest)["template"]["spec"]["volumes"]}


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_the_job_is_valid_to_kubernetes(render, kind):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    job = job_of(render(*FLAGS[kind], "--", *NASTY))
    resource = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "base"}, "spec": job}
    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_what_a_failure_leads_to(render, kind):
    """Exit code 3 and a lost node start it again without end, 2 ends it, all else counts."""
    manifest = render(*FLAGS[kind], "--max_restarts=7", "--", "bert-jax")
    rules = manifest["spec"]["failurePolicy"]["rules"]
    of_pods = job_of(manifest)["podFailurePolicy"]["rules"]
    place = {rule["onExitCodes"]["values"][0]: i for i, rule in enumerate(of_pods) if "onExitCodes" in rule}
    place["lost"] = next(i for i, rule in enumerate(of_pods) if "onPodConditions" in rule)

    def action(cause):
        # The message as Kubernetes' job controller words it.
        message = f"... matching FailJob rule at index {place[cause]}"
        for rule in rules:
            patterns = rule.get("onJobFailureMessagePatterns", [""])
            if any(re.search(pattern, message) for pattern in patterns):
                return rule["action"]

    assert {cause: action(cause) for cause in place} == {
        3: "RestartJobSetAndIgnoreMaxRestarts",
        "lost": "RestartJobSetAndIgnoreMaxRestarts",
        2: "FailJobSet",
    }
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] == 7
    assert all(rule["action"] == "FailJob" for rule in of_pods)


@pytest.mark.parametrize(
    "topology, chips, hosts", [("4x4", 4, 4), ("2x2x4", 4, 4), ("2x4", 8, 1), ("16x16", 4, 64), ("1x1", 1, 1)]
)
def test_hosts_of_a_slice(render, topology, chips, hosts):
    manifest = render(
        *FLAGS["tpu"], f"--topology={topology}", f"--chips_per_host={chips}", "--slices=2", "--", "x"
    )
    assert job_of(manifest)["completions"] == hosts
    assert manifest["spec"]["replicatedJobs"][0]["replicas"] == 2
    assert container_of(manifest)["resources"]["limits"] == {"google.com/tpu": chips}
    assert (
        job_of(manifest)["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    )


def test_the_command_reaches_a_tpu_host_word_for_word(render):
    command = container_of(render(*FLAGS["tpu"], "--", *NASTY))["command"]
    given = [expand(word, {"HOME": "no", "id": "no"}) for word in command]
    assert given == [*NASTY, "--initialization_timeout=3600", "--distributed=auto"]


def test_a_time_to_meet_that_is_given_stays(render):
    words = ["bert-jax", "pretrain", "--initialization_timeout=60"]
    assert container_of(render(*FLAGS["tpu"], "--", *words))["command"] == [*words, "--distributed=auto"]


def test_the_command_reaches_a_gpu_node_word_for_word(render):
    command = container_of(render(*FLAGS["gpu"], "--nodes=4", "--", *NASTY))["command"]
    assert [expand(word, {"JOB_COMPLETION_INDEX": "2", "id": "no"}) for word in command] == [
        *NASTY, "--initialization_timeout=3600",
        "--coordinator_address=base-worker-0-0.base:8476", "--num_processes=4",
        "--process_id=2",
    ]  # fmt: skip


def test_values_stay_values(render):
    image = 'x: "y"\n# __NAME__ {a}'
    manifest = render(*FLAGS["tpu"], f"--image={image}", "--service_account=no", "--", "true")
    assert container_of(manifest)["image"] == image
    assert container_of(manifest)["command"][0] == "true"
    assert job_of(manifest)["template"]["spec"]["serviceAccountName"] == "no"


def test_run(cluster):
    cluster.run(JOBSET_SCRIPT, "run", *FLAGS["tpu"], "--context=a b", "--namespace=ml", "--", "bert-jax")
    kubectl = ["kubectl", "--namespace=ml", "--context=a b"]
    assert cluster.calls() == [
        [*kubectl, "get", "jobset", "base", "--ignore-not-found", "--output=name"],
        [*kubectl, "apply", "--filename=-"],
    ]
    rendered = cluster.run(JOBSET_SCRIPT, "render", *FLAGS["tpu"], "--", "bert-jax").stdout
    assert (cluster.path / "input").read_text() == rendered


def test_run_what_is_there(cluster):
    cluster.answers(jobset="jobset.jobset.x-k8s.io/base")
    assert "base is there already" in cluster.run(JOBSET_SCRIPT, "run", *FLAGS["tpu"], "--", "x").stderr
    assert len(cluster.calls()) == 1


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
@pytest.mark.parametrize("verb", ["run", "logs", "delete"])
def test_a_dry_run_of_a_jobset_shows_the_calls(cluster, verb, kind):
    assert_dry_run_is_faithful(cluster, JOBSET_SCRIPT, verb, *FLAGS[kind], "--", *NASTY, jobset="")
    if verb == "run":
        rendered = cluster.run(JOBSET_SCRIPT, "render", *FLAGS[kind], "--", *NASTY).stdout
        assert (cluster.path / "input").read_text() == rendered


def test_xpk_run(cluster, tmp_path):
    flags = ["--cluster=c", "--project=p", "--zone=z", "--slices=2", "--xpk_flag=--priority=high"]
    cluster.run(XPK_SCRIPT, "run", "--name=base", f"--image={IMAGE}", *flags, "--", "bert-jax", *NASTY)
    look, create = cluster.calls()
    where = ["--cluster=c", "--project=p", "--zone=z"]
    assert look == ["xpk", "workload", "list", *where, "--filter-by-job=^base$"]
    assert create[:-1] == [
        "xpk", "workload", "create", *where, "--workload=base", "--tpu-type=v5litepod-16", "--num-slices=2",
        f"--docker-image={IMAGE}", "--max-restarts=100", "--restart-on-exit-codes=1,3,134,137,139,143",
        "--termination-grace-period-seconds=120", "--priority=high",
    ]  # fmt: skip
    command = create[-1].removeprefix("--command=")
    # xpk puts it into a YAML block and, there, between parentheses for bash.
    assert "\n" not in command
    pod = StandIns(tmp_path / "pod", ["bert-jax"])
    pod.run("bash", "-c", f"({command}) & wait $!")
    assert pod.calls() == [["bert-jax", *NASTY, "--initialization_timeout=3600", "--distributed=auto"]]


def test_xpk_run_what_is_there(cluster):
    (cluster.path / "workload").write_text("base    2026-01-01  medium  4\n")
    words = ["run", "--cluster=c", f"--image={IMAGE}", "--", "bert-jax"]
    assert "base is there already" in cluster.run(XPK_SCRIPT, "--name=base", *words).stderr
    assert len(cluster.calls()) == 1
    cluster.run(XPK_SCRIPT, "--name=bas", *words)
    assert len(cluster.calls()) == 2


@pytest.mark.parametrize("verb", ["run", "logs", "delete"])
def test_a_dry_run_of_xpk_shows_the_calls(cluster, verb):
    words = [verb, "--name=base", "--cluster=my cluster", f"--image={IMAGE}", "--", *NASTY]
    (cluster.path / "workload").write_text("base    2026-01-01  medium  4\n" if verb == "delete" else "")
    assert_dry_run_is_faithful(cluster, XPK_SCRIPT, *words)


def test_xpk_deletes_what_is_there(cluster):
    words = ["delete", "--name=base", "--cluster=c"]
    assert "base is not there" in cluster.run(XPK_SCRIPT, *words).stderr
    assert [call[2] for call in cluster.calls()] == ["list"]
    (cluster.path / "bin" / "xpk").write_text("#!/bin/sh\necho 'xpk: no such cluster' >&2\nexit 7\n")
    done = cluster.run(XPK_SCRIPT, *words, check=7)
    assert "xpk" in done.stderr and "is not there" not in done.stderr


@pytest.mark.parametrize(
    "script, words, message",
    [
        (JOBSET_SCRIPT, ["run", "--name=base", "--", "x"], "--image is missing"),
        (JOBSET_SCRIPT, ["run", "--name=a" + "b" * 40, "--", "x"], "40 at most"),
        (JOBSET_SCRIPT, ["render", *FLAGS["tpu"], "--topology=4", "--", "x"], "--topology=4: expected"),
        (JOBSET_SCRIPT, ["render", *FLAGS["tpu"], "--topology=3x3", "--", "x"], "has 9 chips"),
        (JOBSET_SCRIPT, ["render", *FLAGS["gpu"], "--nodes=0", "--", "x"], "--nodes=0: expected"),
        (JOBSET_SCRIPT, ["render", *FLAGS["gpu"]], "what to run?"),
        (JOBSET_SCRIPT, ["apply", *FLAGS["gpu"]], "apply: expected render, run, logs or delete"),
        (XPK_SCRIPT, ["run", "--name=base"], "--cluster is missing"),
        (XPK_SCRIPT, ["run", "--name=base", "--cluster=c", "--", "x"], "--image is missing"),
    ],
    ids=["image", "name", "topology", "chips", "nodes", "command", "verb", "cluster", "xpk-image"],
)
def test_mistakes_are_told_in_one_line(cluster, script, words, message):
    done = cluster.run(script, *words, check=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert cluster.calls() == []
