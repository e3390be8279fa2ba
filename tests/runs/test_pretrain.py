"""`bert-jax pretrain`: what it writes and prints, and what it reads."""

import numpy as np
import pytest
from support import google_records, processes
from support.processes import error_of

from bert_jax import checkpoint, cli, convert
from bert_jax.workdir import run_directory

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.long
def test_what_is_in_the_work_directory(trained, records):
    names = {path.name for path in trained.iterdir()}
    assert names == {".lock", "checkpoints", "config.json", "metrics.jsonl", "tensorboard", "vocab.txt"}
    assert (trained / "vocab.txt").read_bytes() == (records / "vocab.txt").read_bytes()
    run = run_directory.read_run(trained)
    assert run["config"]["model"]["vocab_size"] == 100
    assert run["config"]["model"]["dtype"] == "float32"  # what "auto" became
    assert run["config"]["masking"]["max_predictions"] == 8  # of 32 tokens
    assert run["records"]["max_seq_length"] == 32
    assert run_directory.load_tokenizer(trained).encode_batch(["word3 word94"]) == [[8, 99]]


@pytest.mark.long
def test_a_warm_up_that_is_longer_than_the_run_is_a_tenth_of_it(pretrain, tmp_path):
    fields = {"steps": 10, "optimizer.warmup_steps": 1000}
    code, output, _ = pretrain(**fields)
    assert code == 0 and "warm-up: 1 of 10 steps" in output
    assert run_directory.read_run(tmp_path / "run")["config"]["optimizer"]["warmup_steps"] == 1
    assert pretrain(**fields)[0] == 0  # resumes


@pytest.mark.long
def test_init_from_starts_with_its_weights(pretrain, trained, tmp_path):
    code, output, _ = pretrain(init_from=trained, steps=6)
    assert code == 0 and f"started from the weights of {trained}" in output
    assert f"tensors from {trained}/checkpoints/6; new: none; not used: none" in output
    losses = [processes.metrics(path)[0]["loss"] for path in (trained, tmp_path / "run")]
    assert losses[1] < losses[0]  # of the first step


@pytest.mark.slow
def test_records_without_labels_train_no_pooler(pretrain, tmp_path):
    single, run = processes.write_records(tmp_path / "single", nsp="none"), tmp_path / "run"
    assert pretrain(run, single, steps=6)[0] == 0
    assert {name.split("/")[0] for name in checkpoint.parameter_names(run)} == {"encoder", "mlm"}
    assert not any(name.startswith("nsp") for line in processes.metrics(run) for name in line)
    folder = tmp_path / "exported"
    assert cli.main(["convert", f"--input={run}", f"--output={folder}", "--to=huggingface"]) == 0
    assert convert.load(folder).head == "masked_lm"


@pytest.fixture
def masked_records(tmp_path):
    """A directory of records of another tool, with the newer names, and their vocabulary."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(5, 100, (16, 4)).tolist()
    made = [
        google_records.example(first=first, masks=((1, mask),), label=i % 2, newer=True)
        for i, (*first, mask) in enumerate(drawn)
    ]
    google_records.write(tmp_path / "others" / "tf_examples.tfrecord-00000-of-00001", made)
    return tmp_path / "others", google_records.write_vocabulary(tmp_path / "others.txt", 100)


@pytest.mark.long
def test_records_of_others_with_masks(pretrain, masked_records, tmp_path):
    data, vocab = masked_records
    fields = {"data.vocab": vocab, "steps": 6}
    code, output, error = pretrain(data=data, **fields)
    assert (code, error) == (0, "")
    assert "no evaluation: the records have no split 'eval'" in output
    run = run_directory.read_run(tmp_path / "run")
    assert run["config"]["masking"]["max_predictions"] == 3 and run["records"]["max_seq_length"] == 12
    assert (tmp_path / "run" / "vocab.txt").exists()
    lines = processes.metrics(tmp_path / "run")
    assert lines[0]["loss"] == pytest.approx(np.log(100) + np.log(2), abs=0.3)
    code, output, _ = pretrain(data=data, **fields)
    assert code == 0 and "nothing to train" in output
    error = error_of(pretrain(data=data, **fields | {"masking.copies": 1}))
    assert f"masking: the records {data} are already masked" in error
