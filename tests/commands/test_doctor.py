"""`bert-jax doctor`: what it reports, and the fix that it names."""

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
    "wrong_matmuls": {},
    "kernels": [],
}


@pytest.fixture(autouse=True)
def no_platform(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)


@pytest.mark.long
def test_this_machine_passes(tmp_path, capsys):
    """The whole command, with the real probe: what a user gets after `make install`."""
    code = cli.main(["doctor", f"--workdir={tmp_path}/new/run"])
    lines = {line[9:23].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert code == any(line.startswith(PROBLEM) for line in lines.values())
    assert all(lines[name].startswith(OK) for name in ("devices", "compilation", "write access"))
    assert lines["write access"].endswith(str(tmp_path)) and os.listdir(tmp_path) == []


def test_backends(monkeypatch):
    def check(present=(), **changes):
        return {one.name: one for one in doctor.check_backend(HEALTHY | changes, present)}

    assert {one.status for one in check().values()} == {OK}
    unused = check(["nvidia"])["devices"]
    assert unused.status == PROBLEM and "cuda" in unused.fix
    assert check(wrong_matmuls={"bfloat16": 0.4})["compilation"].status == PROBLEM
    kernel = check(kernels=[["attention=splash", "differs by 3%", 0.03]])["kernels"]
    assert kernel.status == WARNING and "differs by 3%" in kernel.detail
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert "unset JAX_PLATFORMS" in check(["tpu"])["devices"].fix
    assert "unset JAX_PLATFORMS" in check(error="hangs")["devices"].fix


def test_a_probe_that_hangs_or_crashes_is_one_line(monkeypatch):
    assert "within 0 s" in doctor.probe_in_child(0.01)["error"]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "code 1" in doctor.probe_in_child()["error"]


def test_a_disk_that_changes_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.files, "read", lambda path: b"other")
    (check,) = doctor.check_directory(str(tmp_path))
    assert check.status == PROBLEM and "does not contain" in check.detail
