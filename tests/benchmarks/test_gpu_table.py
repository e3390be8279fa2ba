import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_table.py"


@pytest.fixture(scope="module")
def gpu_table():
    spec = importlib.util.spec_from_file_location("gpu_table", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(best, median):
    return {"best": best, "median": median}


def ours(gpu_table, variant, best):
    result = {"variant": variant, "sequences_per_second": figures(best, best / 2)}
    return gpu_table._our_row("base", 8, 128, result | {"model_flops_per_second": figures(2e12, 1e12)})


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
    ]
    rates = {"jax": {"framework": "jax", "size": 8192, "flops_per_second": 4e12, "device": "H200"}}
    text = gpu_table.table(rows, rates, {"ok": True})
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    lines = {(row[2], row[3]): row[4:] for row in cells[2:]}
    assert lines["bert_jax, padded", "0.1, 0.1"] == ["120.0 (60.0)", "2", "50.0%", "2.40", "1.50"]
    assert lines["bert_jax, packed", "0.1, 0"][3:] == ["3.00", "1.88"]
    assert lines["bert_jax, padded", "0, 0"][3:] == ["", "1.25"]
    assert lines["PyTorch, strong", "0.1, 0.1"][0] == "80.0 (40.0)"
    assert len(lines) == 6 and "reach 4 TFLOP/s on H200" in text


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
