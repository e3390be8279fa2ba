"""The script for a machine with a GPU, as far as it goes without one."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def results(*arguments, **environment):
    """What a check prints, in a process of its own as `gpu.sh` starts it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_checks.py"), *arguments],
        capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.long
def test_checks_run_without_google_crc32c(tmp_path):
    """It is not on every machine with a GPU; a sitecustomize keeps this one from finding it."""
    hide = (
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'google_crc32c' else find(name, *rest)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hide)
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    (found,) = results("attention", PYTHONPATH=path)
    assert found == {"skipped": "no GPU: jax runs on cpu"}


@pytest.mark.long
def test_the_kernels_of_half_a_layer_on_the_cpu():
    found = results("residual", "--small")
    assert len(found) == 3 and all(one["ok"] for one in found)


@pytest.mark.slow
def test_gradients_on_the_cpu():
    found = results("gradients", "--small")
    assert found and all(one["ok"] for one in found)


def run_kernels(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_kernels.py"), *arguments],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
def test_blocks_are_timed_by_the_interpreter(tmp_path):
    assert "('backward', 128, 0.1): us of the fastest: [64, 64, 4, 2] " in run_kernels(
        "blocks", "--small", f"--output={tmp_path}"
    )
    found = json.loads((tmp_path / "blocks.json").read_text())
    assert [one["direction"] for one in found] == ["forward", "backward"] and found[0]["us"] > 0


@pytest.mark.slow
def test_a_step_is_profiled_on_the_cpu(tmp_path):
    """Of the GPU's operations there are none; the program and the time are there."""
    variant = "packed:0.1:0.1:float32"
    out = run_kernels("step", "tiny", "4", "64", variant, "--suffix=-one", f"--output={tmp_path}")
    assert out.startswith("tiny-4x64-one: ")
    assert "attention: xla (cpu has no fused kernel), residual: xla" in out
    assert "TFLOP/s of the model" in out and "busy for 0.00 ms" in out
    assert b"HloModule" in gzip.decompress((tmp_path / "tiny-4x64-one.hlo.gz").read_bytes())
    assert json.loads((tmp_path / "tiny-4x64-one.operations.json").read_text()) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_script_on_the_cpu(tmp_path):
    """Without a peer."""
    environment = {"PYTHON": sys.executable, "OUT": str(tmp_path), "SECONDS_IN_ALL": "1200"}
    script = str(ROOT / "benchmarks" / "gpu.sh")
    done = subprocess.run([script, "--small"], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "table.md").read_text()
    assert "packed, dropout 0.1, 0, float32 | **bert_jax**" in table and "fine-tuning step | tiny" in table
    assert "FAILED" not in done.stdout and '"ok": false' not in done.stdout
