"""`bert-jax doctor`: what it reports, and the fix that it names."""

import json
import os
import sys

import pytest

from bert_jax import cli
from bert_jax.commands import doctor
from bert_jax.commands.doctor import OK, PROBLEM, WARNING

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


def test_backends(monkeypatch):
    def check(present=(), **changes):
        return {one.name: one for one in doctor.check_backend(HEALTHY | changes, present)}

    assert {one.status for one in check().values()} == {OK}
    unused = check(["nvidia"])["devices"]
    assert unused.status == PROBLEM and "cuda" in unused.fix
    assert check(wrong_matmuls={"bfloat16": 0.4})["compilation"].status == PROBLEM
    assert check(x64=True)["precision"].status == WARNING
    assert check(crc32c="python")["checksums"].status == WARNING
    kernel = ["attention=splash", "differs by 3%", 0.03]
    assert "differs by 3%" in check(kernels=[kernel])["kernels"].detail
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert check(["tpu"])["devices"].fix == "unset JAX_PLATFORMS"
    assert "unset JAX_PLATFORMS" in check(error="hangs")["devices"].fix


def test_a_probe_that_hangs_or_crashes_is_one_line(monkeypatch):
    assert "within 0 s" in doctor.probe_in_child(0.01)["error"]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "code 1" in doctor.probe_in_child()["error"]


def test_a_disk_that_changes_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.files, "read", lambda path: b"other")
    (check,) = doctor.check_directory(str(tmp_path))
    assert check.status == PROBLEM and "other contents" in check.detail
