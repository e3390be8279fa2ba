"""The script that takes families from text to transformers, as far as it goes without training."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from bert_jax import checkpoint

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def family():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        spec = importlib.util.spec_from_file_location("family", FOLDER / "family.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "family", module)
        spec.loader.exec_module(module)
        return module


def write_run(folder, checkpoints, step, loss, value):
    saver = checkpoint.Checkpointer(folder / checkpoints)
    saver.save(step, {"params": {"a": jnp.ones(3), "b": jnp.full(2, value)}})
    saver.close()
    lines = [{"step": step - 20, "loss": 7.0}, {"step": step, "loss": loss, "sequences_per_second": loss}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x | {"kind": "train"}) + "\n" for x in lines))


def test_a_resumed_run_that_is_another_is_seen(family, tmp_path):
    args, bert = argparse.Namespace(output=tmp_path), family.FAMILIES["bert"]
    at, folder = family.kill_step(bert), tmp_path / "bert"
    write_run(folder / "uninterrupted", "", at, 6.5, 1.0)
    write_run(tmp_path / "pretrain" / "bert", "checkpoints", at, 6.25, 2.0)
    found = family.compare_resumed(args, bert, folder)
    assert (found["arrays"], found["different"]) == (2, ["params/b"])
    assert (found["metrics"], found["different_metrics"]) == (2, 1)
    assert len(set(found["digests"])) == 2


def test_a_stage_is_done_once(family, tmp_path):
    done = []
    for _ in range(2):
        figures = family.Figures(tmp_path / "bert")
        assert figures.stage("one", lambda: done.append(1) or {"loss": 0.5})["loss"] == 0.5
    assert done == [1]
