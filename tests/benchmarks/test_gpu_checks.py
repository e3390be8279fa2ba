"""The parts of the GPU script that run without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def results(*arguments, **environment):
    """Returns the results that a check prints when it runs in a separate process, as in `gpu.sh`."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_checks.py"), *arguments],
        capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_gradients_on_the_cpu():
    found = results("gradients", "--small")
    assert found and all(one["ok"] for one in found)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_script_on_the_cpu(tmp_path):
    """The script writes its table and passes its checks without a peer."""
    environment = {"PYTHON": sys.executable, "OUT": str(tmp_path), "SECONDS_IN_ALL": "1200"}
    script = str(ROOT / "benchmarks" / "gpu.sh")
    done = subprocess.run([script, "--small"], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "table.md").read_text()
    assert "packed, dropout 0.1, 0, float32 | **bert_jax**" in table and "fine-tuning step | tiny" in table
    assert "FAILED" not in done.stdout and '"ok": false' not in done.stdout
