"""The script for a machine with a GPU, as far as it goes without one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gpu_table():
    return load("gpu_table")


def results(*arguments, **environment):
    """What a part emits, in a process of its own as `gpu_table.py` starts it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_parts.py"), *arguments],
        capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line.removeprefix("RESULT ")) for line in lines]


def figures(best, median):
    return {"best": best, "median": median}


def ours(gpu_table, variant, best):
    result = {
        "variant": variant,
        "dtype": "float32" if "float32" in variant else "bfloat16",
        "sequences_per_second": figures(best, best / 2),
        "model_flops_per_second": figures(2e12, 1e12),
        "compile_seconds": 31.4,
        "memory_bytes": 3 * 2**30,
        "peak_bytes": None if "scan" in variant else 4 * 2**30,
    }
    return gpu_table._our_row("base", 8, 128, result)


def peer(gpu_table, flags, best):
    return gpu_table._peer_row("base", 8, 128, flags, {1: str(best), 2: str(best / 2)})


def test_the_table_keeps_the_best_of_all_rounds_and_compares_equal_work(gpu_table):
    rows = [
        ours(gpu_table, "padded:0.1:0.1", 90),
        ours(gpu_table, "packed:0.1:0.0", 150),
        peer(gpu_table, gpu_table.STOCK, 50),
        peer(gpu_table, gpu_table.STRONG, 80),
        ours(gpu_table, "padded:0.1:0.1", 120),
        ours(gpu_table, "padded:0.0:0.0", 200),
        peer(gpu_table, gpu_table.STRONG, 75),
        peer(gpu_table, gpu_table.STRONG_WITHOUT, 160),
        ours(gpu_table, "packed:0.1:0.0:bfloat16:scan", 140),
        ours(gpu_table, "packed:0.1:0.0:float32", 60),
    ]
    rates = [
        {"framework": "jax", "dtype": dtype, "size": 8192, "flops_per_second": rate, "device": "H200"}
        for dtype, rate in (("bfloat16", 4e12), ("float32", 2.5e12))
    ]
    text = gpu_table.table(rows, rates, {"ok": True}, [], [])
    measured = [line for line in text.splitlines() if "| base |" in line]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in measured]
    lines = {(row[2], row[3]): row[4:] for row in cells}
    assert lines["bert_jax, padded, bfloat16", "0.1, 0.1"] == [
        "120.0 (60.0)", "2", "50.0%", "2.40", "1.50", "3.0, 4.0", "31 s",
    ]  # fmt: skip
    assert lines["bert_jax, packed, bfloat16", "0.1, 0"][3:5] == ["3.00", "1.88"]
    assert lines["bert_jax, padded, bfloat16", "0, 0"][3:5] == ["", "1.25"]
    assert lines["bert_jax, packed, scan, bfloat16", "0.1, 0"][5] == "3.0, -"
    assert lines["bert_jax, packed, float32", "0.1, 0"][2] == "80.0%"  # of the rate of float32 products
    assert lines["PyTorch, strong", "0.1, 0.1"][0] == "80.0 (40.0)"
    assert len(lines) == 8 and "reach 4 TFLOP/s on H200" in text


def test_the_table_has_tasks_and_gradients(gpu_table):
    task = {"what": "predict", "model": "base", "rows": 128, "length": 128, "dtype": "float32"}
    task |= {"texts_per_second": figures(900, 800), "compile_seconds": 12.3, "peak_bytes": 2**31}
    gradient = {"dtype": "float32", "precision": "highest", "length": 127, "device": "H200", "loss": 7.5}
    gradient |= {"loss_on_cpu": 7.5, "gradient_apart": 2e-3, "ok": False}
    text = gpu_table.table([], [], {"skipped": "no result"}, [gradient], [task])
    assert "| predict | base | 128 x 128 | float32 | 900.0 (800.0) | 12 s | 2.0 |" in text
    assert "| float32, precision highest, H200 | 127 | 7.50000 | 7.50000 | 2.0e-03 | WRONG |" in text


def test_matrices_are_random_and_their_product_keeps_its_size():
    (found,) = results("matrix", "jax", "--size=64", "--repeats=1", "--dtype=float32")
    assert found["flops_per_second"] > 0 and found["dtype"] == "float32"


def test_parts_run_without_google_crc32c(tmp_path):
    """It is not on every machine with a GPU; a sitecustomize keeps this one from finding it."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['google_crc32c'] = None")
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    (found,) = results("attention", PYTHONPATH=path)
    assert found == {"skipped": "no GPU: jax runs on cpu"}


def test_a_variant_in_parts():
    parts = load("gpu_parts")
    assert parts.split_variant("packed:0.1:0.0", "gpu") == ("packed", 0.1, 0.0, "bfloat16", "unrolled")
    assert parts.split_variant("packed:0.1:0.0", "cpu")[3] == "float32"
    assert parts.split_variant("full:0:0:float32:scan", "gpu")[3:] == ("float32", "scan")


@pytest.mark.slow
def test_every_part_on_the_cpu():
    assert all(found["ok"] for found in results("gradients", "--small"))
    (trained,) = results("train", "tiny", "4", "32", "packed:0.1:0.0:float32", "--steps=2")
    assert trained["compile_seconds"] > 0 and trained["memory_bytes"] > 0
    found = results("tasks", "tiny", "--batch=4", "--length=32", "--steps=2", "--dtypes=float32")
    assert [one["what"] for one in found] == ["fine-tune", "predict", "embed"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_script_on_the_cpu(tmp_path):
    """Without a peer."""
    environment = {"PYTHON": sys.executable, "OUT": str(tmp_path), "SECONDS_IN_ALL": "1200", "PEER": "none"}
    script = str(ROOT / "benchmarks" / "gpu.sh")
    done = subprocess.run([script, "--small"], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "table.md").read_text()
    assert "bert_jax, packed, float32" in table and "| fine-tune | tiny |" in table and "WRONG" not in table


def test_flops_of_the_peers_rows_are_those_of_the_formula(gpu_table):
    assert gpu_table.peer_flops_per_row("base", 512) == pytest.approx(301.4e9, rel=1e-3)
    assert gpu_table.peer_flops_per_row("large", 512) == pytest.approx(1020.5e9, rel=1e-3)


@pytest.mark.parametrize("memory, halvings", [(140, 0), (130, 0), (80, 1), (40, 2), (24, 3), (0.1, 6)])
def test_batches_shrink_with_the_memory(gpu_table, memory, halvings):
    assert gpu_table._halvings(memory) == halvings


def test_a_session_survives_failing_and_hanging_parts(gpu_table, tmp_path, capsys):
    session = gpu_table.Session(60, tmp_path)
    fails = "print('some output'); raise MemoryError('too much')"
    assert "some output" in session.run("one", [sys.executable, "-c", fails], 30)
    hangs = "import time; print('begun', flush=True); time.sleep(60)"
    assert "begun" in session.run("two", [sys.executable, "-c", hangs], 3)
    session.end = 0
    assert session.run("three", [sys.executable, "-c", "1"], 30) == ""
    out = capsys.readouterr().out
    assert "one: failed (MemoryError: too much)" in out and "two: stopped" in out and "three: left out" in out
    assert "some output" in (tmp_path / "log.txt").read_text()
