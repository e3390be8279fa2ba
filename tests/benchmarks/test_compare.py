"""The runner that compares the speed of bert_jax with other libraries."""

import importlib
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "compare"
MODULES = ("measure", "tables", "turns")


@pytest.fixture(scope="module")
def compare():
    """The modules of the runner, which is a folder that Python runs, not a package."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield types.SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)


def result(side, best, number=0, *, rows="padded", kind="train", unit="sequences/s", others=0.0, **fields):
    what = {"kind": kind, "model": "base", "batch": 8, "length": 128}
    what |= {"rows": rows, "dropout": 0.1, "attention_dropout": fields.pop("attention_dropout", 0.1)}
    measured = {"what": what | {"dtype": "float32"}, "side": side, "unit": unit, "best": best}
    return measured | {"median": best / 2, "round": number, "others": others} | fields


def cells(text):
    """Returns {(what, rows..., who): cells} of a table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {(row[0], row[3], row[4]): row[5:] for row in rows}


def test_sides_are_compared_round_by_round(compare):
    matrix = {"kind": "matrix", "size": 2048, "dtype": "float32"}
    rate = {"what": matrix, "unit": "FLOP/s", "median": 1e11, "round": 0, "others": 0.0}
    found = [
        rate | {"side": "bert_jax", "best": 3e11},
        rate | {"side": "PyTorch", "best": 4e11},
        result("bert_jax", 20, flops=1e10, memory_bytes=3 * 2**30, compile_seconds=12.34),
        result("PyTorch, compiled", 10),
        result("bert_jax", 24, 1, flops=1e10),
        result("PyTorch, compiled", 16, 1, others=0.2),
        result("bert_jax", 60, rows="packed", flops=5e9),
        result("bert_jax", 64, rows="packed", flops=5e9, attention_dropout=0.0),
    ]
    table = cells(compare.tables.table(found))
    assert table["matrix product", "float32", "PyTorch"][0] == "400 (100) GFLOP/s"
    padded, packed = "padded, dropout 0.1, float32", "packed, dropout 0.1, float32"
    step = "pre-training step"
    assert table[step, padded, "**bert_jax**"] == ["24.0 (11.0) sequences/s", "60%", "", "3.0", "12.3 s"]
    assert table[step, padded, "PyTorch, compiled"][:3] == ["16.0 (6.50) sequences/s*", "40%", "2.00, 1.50"]
    assert table[step, packed, "**bert_jax**"][1:3] == ["75%", "PyTorch, compiled, padded: 6.00"]
    # The peer has a single dropout rate.
    without = "packed, dropout 0.1, 0, float32"
    assert table[step, without, "**bert_jax**"][2] == "PyTorch, compiled, padded: 6.40"


@pytest.mark.long
def test_a_session_survives_failing_and_hanging_processes(compare, tmp_path, capsys):
    turn = compare.turns.Turn
    session = compare.turns.Session(60, tmp_path, patience=0)
    emit = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import measure; measure.emit(best=1)\n"
    fails = turn("one", [sys.executable, "-c", emit + "raise MemoryError('too much')"])
    assert [found["best"] for found in session.run([fails], 1, 4)] == [1]
    hangs = turn("two", [sys.executable, "-c", emit + "import time; time.sleep(60)"], limit=3)
    assert [found["round"] for found in session.run([hangs], 1, 5)] == [5]
    whole = turn("three", [sys.executable, "-c", "1"], whole={"what": {"kind": "first step"}, "side": "x"})
    (timed,) = session.run([whole], 1)
    assert 0 < timed["best"] < 30 and timed["unit"] == "s"
    late = compare.turns.Session(0, tmp_path, patience=0)
    assert late.run([turn("four", [sys.executable, "-c", "1"])], 1) == []
    out = capsys.readouterr().err
    for outcome in ("one: failed (MemoryError: too much)", "two: stopped", "four: skipped"):
        assert outcome in out
    stored = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [one["round"] for one in stored] == [4, 5, 0]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["train", "finetune", "forward", "checkpoint"])
def test_every_part_on_the_cpu(part):
    variants = ["padded:0.1:0.1:float32"] + ["packed:0.1:0.1:float32"] * (part == "train")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "ours.py"), part, "tiny", "4", "32", *variants, "--steps=2"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(found) == (2 if part in ("train", "checkpoint") else 1)
    assert all(one["what"]["model"] == "tiny" and one["best"] > 0 for one in found)
