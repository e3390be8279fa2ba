"""The runner that times bert_jax beside other libraries."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "compare"
MODULES = ("measure", "ours", "plan", "tables", "turns")


@pytest.fixture(scope="module")
def compare():
    """The modules of the runner, which is a folder that Python runs, and no package."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield types.SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def made(compare, tmp_path):
    return compare.plan.Plan(
        kinds=compare.plan.KINDS,
        models=("base",),
        lengths=(128,),
        variants=("padded:0.1:0.1:float32", "packed:0.1:0.1:float32", "padded:0.0:0.0:float32"),
        rounds=2,
        spread=False,
        batch=0,
        steps=3,
        memory_gib=0.0,
        peer_python="python-of-the-peer",
        stock=True,
        output=tmp_path,
        corpus=("text", "text", "vocab.txt"),
    )


def result(side, best, number=0, *, rows="padded", kind="train", unit="sequences/s", others=0.0, **fields):
    what = {"kind": kind, "model": "base", "batch": 8, "length": 128}
    what |= {"rows": rows, "dropout": 0.1, "attention_dropout": fields.pop("attention_dropout", 0.1)}
    measured = {"what": what | {"dtype": "float32"}, "side": side, "unit": unit, "best": best}
    return measured | {"median": best / 2, "round": number, "others": others} | fields


def cells(text):
    """{(what, rows..., who): cells}"""
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
    # The peer has one rate of dropout.
    without = "packed, dropout 0.1, 0, float32"
    assert table[step, without, "**bert_jax**"][2] == "PyTorch, compiled, padded: 6.40"


def test_less_time_is_faster(compare):
    found = [
        result("bert_jax", 5.0, kind="first step, cold", unit="s"),
        result("PyTorch", 10.0, kind="first step, cold", unit="s"),
        result("bert_jax", 4.0, 1, kind="first step, cold", unit="s"),
        result("PyTorch", 12.0, 1, kind="first step, cold", unit="s"),
    ]
    table = cells(compare.tables.table(found))
    described = "padded, float32"
    assert table["first step, cold", described, "**bert_jax**"][0] == "4.00 (2.25) s"
    assert table["first step, cold", described, "PyTorch"][2] == "2.00, 3.00"


def test_the_picture_has_a_bar_for_each_case(compare, tmp_path):
    found = [result("bert_jax", 20), result("PyTorch", 10), result("bert_jax", 3, rows="packed")]
    compare.tables.picture(found, tmp_path / "one.png", "title")
    compare.tables.picture(found[:1], tmp_path / "none.png", "no peer")
    assert (tmp_path / "one.png").stat().st_size > 5_000 and not (tmp_path / "none.png").exists()


def test_each_side_has_its_turn(made):
    turns = [turn.title for turn in made.round(0)]
    assert turns[:5] == [
        "float32 products: bert_jax",
        "float32 products: PyTorch",
        "train base, 8 x 128: bert_jax",
        "train base, 8 x 128: PyTorch, compiled",
        "train base, 8 x 128: PyTorch",
    ]
    assert "forward base, 1 x 128: ONNX Runtime" in turns and "forward base, 32 x 128: bert_jax" in turns
    assert turns[-1] == "records" and len(turns) == len(set(turns))
    assert not any("products" in turn.title for turn in made.round(1))
    (folder,) = made.preparations()
    assert {"--onnx", "8x128", "1x128", "32x128", "16x128"} <= set(folder.command)


def test_peers_have_no_packed_rows_and_forward_passes_no_dropout(made):
    for turn in made.round(0):
        is_peer = turn.command[0] == "python-of-the-peer"
        packed = [part for part in turn.command if part.startswith("packed")]
        assert not (packed and (is_peer or "train" not in turn.title)), turn
        if "forward" in turn.title:
            assert "padded:0.0:0.0:float32" in turn.command and "padded:0.1:0.1:float32" not in turn.command


def test_rounds_may_share_the_variants(made):
    spread = dataclasses.replace(made, kinds=("train",), spread=True, memory_gib=80.0)
    given = []
    for number in range(2):
        turn = next(turn for turn in spread.round(number) if turn.title.endswith("bert_jax"))
        given.append([part for part in turn.command if part.count(":") == 3])
    assert given == [list(made.variants[:2]), [made.variants[0], made.variants[2]]]
    assert [sum("PyTorch" in turn.title for turn in spread.round(number)) for number in range(2)] == [1, 2]
    assert "128" in next(spread.round(0)).command  # half of the rows for 141 GB


@pytest.mark.parametrize("memory, halvings", [(140, 0), (130, 0), (80, 1), (40, 2), (24, 3), (0.1, 6)])
def test_batches_shrink_with_the_memory(compare, memory, halvings):
    assert compare.plan.halvings(memory) == halvings


def test_a_session_survives_failing_and_hanging_processes(compare, tmp_path, capsys):
    turn = compare.turns.Turn
    session = compare.turns.Session(60, tmp_path, patience=0)
    emit = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import measure; measure.emit(best=1)\n"
    fails = turn("one", [sys.executable, "-c", emit + "raise MemoryError('too much')"])
    assert [found["best"] for found in session.run(fails, 4)] == [1]
    hangs = turn("two", [sys.executable, "-c", emit + "import time; time.sleep(60)"], limit=3)
    assert [found["round"] for found in session.run(hangs, 5)] == [5]
    whole = turn("three", [sys.executable, "-c", "1"], whole={"what": {"kind": "first step"}, "side": "x"})
    (timed,) = session.run(whole, 0)
    assert 0 < timed["best"] < 30 and timed["unit"] == "s"
    late = compare.turns.Session(0, tmp_path, patience=0)
    assert late.run(turn("four", [sys.executable, "-c", "1"]), 0) == []
    out = capsys.readouterr().err
    assert "one: failed (MemoryError: too much)" in out and "two: stopped" in out and "four: left out" in out
    stored = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [one["round"] for one in stored] == [4, 5, 0]


def test_the_work_of_others_is_what_is_not_ours(compare, monkeypatch):
    clocks = {"monotonic": 100.0, "busy": 50.0, "own": 7.0}
    monkeypatch.setattr(compare.turns.time, "monotonic", lambda: clocks["monotonic"])
    monkeypatch.setattr(compare.turns.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(compare.turns, "_busy_seconds", lambda: clocks["busy"])
    monkeypatch.setattr(compare.turns, "_own_seconds", lambda: clocks["own"])
    load = compare.turns.Load()
    clocks |= {"monotonic": 110.0, "busy": 80.0, "own": 27.0}  # of 40 s, 30 s are used, 20 s by this process
    assert load.others() == pytest.approx(0.25)
    clocks["busy"] = None
    assert load.others() is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="Linux counts the time of processors there")
def test_the_time_of_children_is_ours(compare):
    before = compare.turns._busy_seconds(), compare.turns._own_seconds()
    spin = "import time\nwhile time.process_time() < 1: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    assert compare.turns._busy_seconds() - before[0] > 0.9 and compare.turns._own_seconds() - before[1] >= 1


def test_a_bert_is_prepared_where_packages_for_files_are_missing(tmp_path):
    """On a machine with a GPU and little else; a sitecustomize keeps this one from finding them."""
    missing = ("google_crc32c", "ml_collections", "tensorboardX", "backports.zstd", "mwparserfromhell")
    hide = (
        f"import sys, importlib.util as u; hidden = {missing!r}; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)\n"
        "sys.modules.update(dict.fromkeys(hidden))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hide)
    path = os.pathsep.join([str(tmp_path), str(FOLDER.parents[1]), *sys.path])
    command = [sys.executable, str(FOLDER / "ours.py"), "prepare", "base", str(tmp_path / "base"), "2x16"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": path})
    fields = json.loads((tmp_path / "base" / "config.json").read_text())
    assert (fields["model_type"], fields["num_hidden_layers"], fields["hidden_act"]) == ("bert", 12, "gelu")
    assert (tmp_path / "base" / "padded-2x16.npz").exists()


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


def test_flops_of_a_sequence_are_those_of_the_formula(compare):
    from bert_jax.runs import benchmark
    from bert_jax.training.metrics import flops

    config = compare.ours.config_of("base", compare.measure.variant("padded:0.1:0.1:float32"))
    count = flops.RowFlops.of(benchmark.make_task(config, 512))
    assert count(512, 80) == pytest.approx(301.4e9, rel=1e-3)
    assert compare.ours.config_of("pretrain/hour").vocab_size == 30522
