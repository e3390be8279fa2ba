import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

from bert_jax import cli
from bert_jax.commands.health import devices, machine, software
from bert_jax.commands.health.check import GIB, OK, PROBLEM, WARNING, Check

HEALTHY = {
    "platform": "cpu",
    "kind": "cpu",
    "local_devices": 1,
    "devices": 1,
    "processes": 1,
    "memory_limit": None,
    "compile_seconds": 0.3,
    "wrong_products": {},
    "x64": False,
    "crc32c": "c",
    "kernels": [],
}


def statuses(checks):
    return {check.name: check.status for check in checks}


@pytest.fixture(autouse=True)
def no_platform(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)


@pytest.mark.long
def test_this_machine_passes(tmp_path, capsys):
    """The whole command, with the real probe: what a user gets after `make install`."""
    code = cli.main(["doctor", f"--workdir={tmp_path}/new/run", "--json"])
    result = json.loads(capsys.readouterr().out)
    found = {check["name"]: check for check in result["checks"]}
    problems = [check for check in result["checks"] if check["status"] == PROBLEM]
    assert (code, result["ok"]) == ((1, False) if problems else (0, True))
    assert found["devices"]["status"] == found["compilation"]["status"] == OK
    assert found["write access"] == dict(name="write access", status=OK, detail=str(tmp_path), fix="")
    assert os.listdir(tmp_path) == []


def test_exit_code_and_report(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "probe_in_child", lambda: {"error": "No module named 'jaxlib'"})
    assert cli.main(["doctor", f"--workdir={tmp_path}"]) == 1
    out = capsys.readouterr().out
    assert (
        "problem  devices" in out and "fix: pip install -r requirements.lock" in out and "1 problem," in out
    )


@pytest.mark.parametrize("version, status", [((3, 10, 4), PROBLEM), ((3, 11, 0), OK), ((3, 14, 1), OK)])
def test_python(version, status):
    assert software.check_python(version).status == status


def test_packages_within_the_ranges_and_as_tested():
    needed = ["jax>=0.10", "Flax>=0.12", "pytest>=8; extra == 'dev'"]
    installed = {"jax": "0.10.2", "flax": "0.12.1", "other": "9"}
    (check,) = software.check_packages(needed, installed, "# pins\njax==0.10.2\nflax==0.12.1\nruff==1.0\n")
    assert check.status == OK and "3 pinned" in check.detail and "0.10.2" in check.detail


def test_packages_of_a_wheel_are_within_the_ranges(monkeypatch, tmp_path):
    """It has no requirements.lock, of which no word is to be lost."""
    for module in (software, devices):
        monkeypatch.setattr(module, "LOCK", tmp_path / "requirements.lock")
    needed = ["jax>=0.10", "flax>=0.12", "pytest>=8; extra == 'dev'"]
    (check,) = software.check_packages(needed, {"jax": "0.10.2", "flax": "0.12.1"}, "")
    assert check == Check(
        "packages", OK, "jax 0.10.2, flax 0.12.1, 2 packages in the ranges that bert-jax needs"
    )
    fixes = [
        *(check.fix for check in devices.check_backend({"error": "No module named 'jaxlib'"}, [])),
        *(check.fix for check in devices.check_backend(HEALTHY | {"wrong_products": {"float32": 1}}, [])),
        software.check_python((3, 10, 1)).fix,
    ]
    assert not [fix for fix in fixes if "requirements.lock" in fix or "make" in fix]


def test_packages_missing_or_too_old_are_problems_and_others_than_tested_a_warning():
    checks = software.check_packages(
        ["jax>=0.10", "flax>=0.12"], {"jax": "0.9", "ml-dtypes": "2"}, "jax==0.10.2\nml_dtypes==1\n"
    )
    assert [check.status for check in checks] == [PROBLEM, PROBLEM, WARNING]
    assert (
        checks[0].detail == "jax is 0.9; jax>=0.10 is needed" and checks[0].fix == "pip install 'jax>=0.10'"
    )
    assert "flax is missing" in checks[1].detail
    assert "ml_dtypes 2 (tested: 1)" in checks[2].detail


def test_packages_when_run_from_a_checkout():
    (check,) = software.check_packages(None, {}, "")
    assert check.status == WARNING and "pip install" in check.fix


def test_backend_healthy():
    assert statuses(devices.check_backend(HEALTHY, [])) == {
        "devices": OK,
        "compilation": OK,
        "kernels": OK,
    }
    tpu = HEALTHY | dict(platform="tpu", kind="TPU v5e", devices=32, local_devices=8, processes=4)
    check = devices.check_backend(tpu | dict(memory_limit=16 * GIB), ["tpu"])[0]
    assert check.detail == "32 x TPU v5e (tpu), 8 on this host, 4 processes, 16.0 GiB each"


def test_kernels_are_shown_with_their_difference_and_time():
    right = dict(kernel="attention=pallas", problem="", difference=0.0071, seconds=1.24)
    wrong = dict(kernel="residual=pallas", problem="ValueError: no", difference=None, seconds=0.5)
    first, second = devices.check_kernels("tpu", [right, wrong])
    assert (
        first.status == OK
        and first.detail == "attention=pallas: agrees with the XLA implementation to 0.7% (1.2 s)"
    )
    assert second.status == WARNING and second.detail == "residual=pallas: ValueError: no (0.5 s)"
    assert "residual=xla" in second.fix
    (none,) = devices.check_kernels("cpu", [])
    assert (
        none.status == OK
        and "uses no fused kernels; other platforms use attention=pallas (tpu)" in none.detail
    )


@pytest.mark.parametrize("asked, status", [("", PROBLEM), ("cpu", WARNING)])
def test_an_unused_accelerator(monkeypatch, asked, status):
    monkeypatch.setenv("JAX_PLATFORMS", asked)
    check = devices.check_backend(HEALTHY, ["nvidia"])[0]
    assert check.status == status and "nvidia" in check.detail
    assert ("cuda" in check.fix) == (asked == "")


@pytest.mark.parametrize(
    "change, name, status",
    [
        ({"wrong_products": {"bfloat16": 0.3}}, "compilation", PROBLEM),
        ({"x64": True}, "precision", WARNING),
        ({"crc32c": "python"}, "checksums", WARNING),
        ({"error": "Unable to initialize backend 'cuda'"}, "devices", PROBLEM),
    ],
)
def test_backend_problems_have_a_fix(change, name, status):
    checks = devices.check_backend(HEALTHY | change, [])
    assert statuses(checks)[name] == status
    assert all(bool(check.fix) == (check.status != OK) for check in checks)


@pytest.mark.long
def test_a_probe_that_crashes_or_hangs_is_a_finding(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    found = devices.probe_in_child()
    assert "nonsense" in found["error"] or "devices" in found["error"]
    assert "unset JAX_PLATFORMS" in devices.check_backend(found, [])[0].fix

    def hang(*args, timeout, **kwargs):
        raise subprocess.TimeoutExpired(args, timeout)

    monkeypatch.setattr(devices.subprocess, "run", hang)
    assert "within 1 s" in devices.probe_in_child(seconds=1)["error"]


def test_the_doctor_itself_needs_no_jax():
    code = "import sys, bert_jax.commands.doctor; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("gib, status", [(0.5, PROBLEM), (2, WARNING), (8, OK)])
def test_memory(gib, status):
    assert machine.check_memory(16 * GIB, int(gib * GIB)).status == status


@pytest.mark.parametrize("load, status", [(0.1, OK), (2.9, OK), (3.1, WARNING)])
def test_cores(load, status):
    assert machine.check_cores(2.0, load).status == status


@pytest.mark.parametrize("gib, status", [(0.5, PROBLEM), (5, WARNING), (50, OK)])
def test_disk(gib, status):
    assert machine.check_disk(int(gib * GIB)).status == status


def test_a_directory_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    (check,) = machine.check_directory(str(tmp_path / "file" / "run"))
    assert check.status == PROBLEM and str(tmp_path / "file") in check.detail and check.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert machine.check_directory(str(tmp_path))[0].status == PROBLEM


def test_shared_memory(monkeypatch, tmp_path):
    assert machine.check_shared_memory(str(tmp_path / "none")).status == OK
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage._replace(free=10 * 2**20))
    assert machine.check_shared_memory(str(tmp_path)).status == WARNING
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    check = machine.check_temporary()
    assert check.status == WARNING and check.detail == f"{tmp_path}: 0.01 GiB free"


def test_no_directory_for_temporary_files(no_temporary_directory):
    check = machine.check_temporary()
    assert check.status == PROBLEM and "No usable temporary directory found in" in check.detail
    assert check.fix == "set TMPDIR to a directory that can be written"
