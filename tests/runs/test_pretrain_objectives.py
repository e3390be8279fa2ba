"""Pre-training with other masks, and without next-sentence labels."""

import json

import numpy as np
import pytest
from support import processes

from bert_jax import checkpoint, cli, convert

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Records of single segments, without labels."""
    return processes.write_records(tmp_path_factory.mktemp("single") / "records", nsp="none")


def groups(directory):
    return {name.split("/")[0] for name in checkpoint.parameter_names(directory)}


@pytest.mark.slow
def test_records_without_labels_train_no_pooler(pretrain, single, tmp_path):
    run = tmp_path / "run"
    code, _, error = pretrain(run, single, steps=6)
    assert (code, error) == (0, "")
    assert groups(run) == {"encoder", "mlm"}
    lines = processes.metrics(run)
    assert not any(name.startswith("nsp") for line in lines for name in line)
    assert lines[0]["loss"] == lines[0]["mlm_loss"] == pytest.approx(np.log(100), abs=0.3)

    folder = tmp_path / "exported"
    assert cli.main(["convert", f"--input={run}", f"--output={folder}", "--to=huggingface"]) == 0
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    exported = convert.load(folder)
    assert exported.head == "masked_lm" and set(exported.groups) == {"encoder", "mlm"}
