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

    table = tmp_path / "train.csv"
    table.write_text("sentence,label\n" + "".join(f"word{n} word{n + 1},{n % 2}\n" for n in range(16)))
    finetune = [
        "finetune", "--config=finetune/classification", f"--workdir={tmp_path / 'tuned'}",
        f"--config.init_from={run}", f"--config.data.train={table}", "--config.data.text_a=sentence",
        "--config.data.label=label", "--config.max_seq_length=32",
        "--config.batch_size=8", "--config.epochs=1",
    ]  # fmt: skip
    assert cli.main(finetune) == 0
    assert groups(tmp_path / "tuned") == {"encoder", "pooler", "classifier"}
    report = json.loads((tmp_path / "tuned" / "initialized.json").read_text())
    assert "pooler/dense/kernel" in report["new"]
