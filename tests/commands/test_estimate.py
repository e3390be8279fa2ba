"""`bert-jax estimate` reports errors before compiling; with the TPU compiler, it runs completely."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = f"--config={ROOT / 'configs' / 'pretrain' / 'tiny.py'}"


def run(*argv):
    """Runs in a separate process, because the environment must be set before jax is imported."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install '.[estimate]'")
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "bert_jax", "estimate", *argv],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tiny_on_four_chips():
    done = run(TINY, "--topology=v5e:2x2", "--seq_length=128", "--config.model.dtype=bfloat16", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["fits"] and result["rows_per_chip"] == 8 and result["topology"]["chips"] == 4
    memory = result["memory_bytes"]
    # 4.5 million parameters in float32, each with two moments.
    assert 17e6 < memory["parameters"] < 19e6 and memory["optimizer"] == pytest.approx(
        2 * memory["parameters"]
    )
    assert 0 < result["seconds"]["compute"] < result["seconds"]["step"] < 0.1
    assert {tuple(entry["axes"]) for entry in result["collectives"]} == {("data",)}
    assert result["operations_without_estimate"].get("tpu_custom_call") is None
