"""`bert-jax doctor`: what it reports, and the fix that it names."""

import json
import os
import sys

import pytest

from bert_jax import cli
from bert_jax.commands import doctor
from bert_jax.commands.doctor import GIB, OK, PROBLEM, WARNING

HEALTHY = {
    "platform": "cpu",
    "kind": "cpu",
    "devices": 1,
    "memory_limit": None,
    "compile_seconds": 0.3,
    "wrong_matmuls": {},
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
    monkeypatch.setattr(doctor, "probe_in_child", lambda: {"error": "No module named 'jaxlib'"})
    assert cli.main(["doctor", f"--workdir={tmp_path}"]) == 1
    out = capsys.readouterr().out
    assert "problem  devices" in out and "fix: pip install -r requirements" in out and "1 problem," in out


def test_packages_within_the_ranges_and_as_tested():
    needed = ["jax>=0.10", "Flax>=0.12", "pytest>=8; extra == 'dev'"]
    lock = "# pins\njax==0.10.2\nflax==0.12.1\nruff==1.0\n"
    versions = {"jax": "0.10.2", "flax": "0.12.1", "other": "9"}
    (check,) = doctor.check_packages(needed, versions, lock)
    assert check.status == OK and "0.10.2" in check.detail
    (old, _) = doctor.check_packages(needed, versions | {"jax": "0.9"}, "")
    assert (old.status, old.fix) == (PROBLEM, "pip install 'jax>=0.10'")
    (other,) = doctor.check_packages(needed, versions | {"jax": "0.10.3"}, lock)
    assert other.status == WARNING and "jax 0.10.3 (tested: 0.10.2)" in other.detail


def test_backends(monkeypatch):
    def check(present=(), **changes):
        return {one.name: one for one in doctor.check_backend(HEALTHY | changes, present)}

    assert {one.status for one in check().values()} == {OK}
    unused = check(["nvidia"])["devices"]
    assert unused.status == PROBLEM and "cuda" in unused.fix
    assert check(wrong_matmuls={"bfloat16": 0.4})["compilation"].status == PROBLEM
    assert check(x64=True)["precision"].status == WARNING
    assert check(crc32c="python")["checksums"].status == WARNING
    kernel = {"kernel": "attention=splash", "problem": "differs by 3%", "difference": 0.03}
    assert "differs by 3%" in check(kernels=[kernel])["kernels"].detail
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert check(["tpu"])["devices"].fix == "unset JAX_PLATFORMS"
    assert "unset JAX_PLATFORMS" in check(error="hangs")["devices"].fix


def test_a_probe_that_hangs_or_crashes_is_one_line(monkeypatch):
    assert "within 0 s" in doctor.probe_in_child(0.01)["error"]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "code 1" in doctor.probe_in_child()["error"]


def test_amounts():
    assert [doctor.check_memory(int(x * GIB)).status for x in (0.5, 2, 4)] == [PROBLEM, WARNING, OK]
    assert [doctor.check_disk(int(x * GIB)).status for x in (0.5, 2, 40)] == [PROBLEM, WARNING, OK]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    (check,) = doctor.check_directory(str(tmp_path / "locked" / "run"))
    assert check.status == PROBLEM and "Permission denied" in check.detail


def test_a_disk_that_changes_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.files, "read", lambda path: b"other")
    (check,) = doctor.check_directory(str(tmp_path))
    assert check.status == PROBLEM and "other contents" in check.detail


def test_a_model(tmp_path):
    assert doctor.check_model(str(tmp_path / "none")).status == PROBLEM
