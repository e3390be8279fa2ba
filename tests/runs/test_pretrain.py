"""`bert-jax pretrain`: what it writes and prints, and what it reads."""

import json
import re
import shutil

import numpy as np
import pytest
from support import google_records, processes
from support.processes import error_of

from bert_jax import cli
from bert_jax.runs import pretrain as pretrain_runs
from bert_jax.runs import pretraining_records
from bert_jax.settings import defaults
from bert_jax.settings.typed import pretrain_config
from bert_jax.training.metrics import flops
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


def test_the_metrics_of_a_run(trained):
    lines = processes.metrics(trained)
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 1), ("train", 2), ("train", 4), ("train", 6), ("eval", 6),
    ]  # fmt: skip
    assert {
        "loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "grad_norm", "learning_rate",
        "sequences_per_second", "tokens_per_second", "skipped",
    } <= set(lines[0])  # fmt: skip
    assert lines[0]["loss"] == pytest.approx(np.log(100) + np.log(2), abs=0.3)
    assert {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"} <= set(lines[-1])


@pytest.mark.long
def test_what_it_says(pretrain, trained):
    code, output, error = pretrain(trained, steps=6, log_every=2)
    assert (code, error) == (0, "")
    assert "64 rows of 32 tokens in" in output and "6 steps of 8 rows: 0.75 epochs" in output
    assert "evaluating on 12 of 12 held-out rows" in output
    assert "23,782 parameters; 8 x cpu (cpu); mesh data=8 fsdp=1 tensor=1" in output
    assert "resumed from step 6" in output and "warning" not in output
    last = output.splitlines()[-1]
    assert last.startswith(
        f"saved in {trained}/checkpoints/6; try: bert-jax fill-mask --checkpoint={trained} "
    )


def test_moved_records_are_the_same(pretrain, trained, records, tmp_path):
    data = shutil.copytree(records, tmp_path / "elsewhere")
    code, output, _ = pretrain(trained, data, steps=6)
    assert code == 0 and "nothing to train" in output


def test_one_step_of_one_row_is_singular(records, tmp_path):
    config = defaults.pretrain("tiny")
    config.update(steps=1, batch_size=1)
    config.data.dir, said = str(records), []
    config = pretrain_config.pretraining(config)
    pretraining_records.open_records(config, tmp_path, said.append).describe(config, said.append)
    assert said[0] == f"64 rows of 32 tokens in {records}; 1 step of 1 row: 0.0156 epochs"


@pytest.mark.parametrize(
    "continued, steps, warns",
    [(True, 160, False), (True, 168, True), (False, 400, False), (False, 408, True)],
)
def test_many_epochs_of_little_data_are_told(records, tmp_path, continued, steps, warns):
    config = defaults.pretrain("tiny")
    config.update(steps=steps, batch_size=8, init_from="model" if continued else "")
    config.data.dir = str(records)
    said = []
    config = pretrain_config.pretraining(config)
    pretraining_records.open_records(config, tmp_path, said.append).describe(config, said.append)
    assert [line for line in said if "warning" in line] == warns * [
        f"warning: {steps / 8:.3g} epochs: the model will see every row {steps // 8} times; 3 epochs are 24 "
        "steps: --config.steps=24 --config.optimizer.warmup_steps=2"
    ]


@pytest.mark.long
def test_init_from_starts_with_its_weights(pretrain, trained, tmp_path):
    code, output, _ = pretrain(init_from=trained, steps=6)
    assert code == 0 and f"started from the weights of {trained}" in output
    assert re.search(f"loaded ([0-9]+) of \\1 tensors from {trained}/checkpoints/6\n", output)
    losses = [processes.metrics(path)[0]["loss"] for path in (trained, tmp_path / "run")]
    assert losses[1] < losses[0]  # of the first step


@pytest.mark.long
def test_going_on_from_another_run(pretrain, trained):
    code, output, _ = pretrain(steps=7, resume_from=trained)
    assert code == 0 and f"resumed from {trained}/checkpoints/6 at step 6" in output


@pytest.mark.long
def test_records_without_an_evaluation_split(pretrain):
    code, output, _ = pretrain(steps=6, **{"data.eval_split": ""})
    assert code == 0 and "no evaluation: the records have no split for it" in output


@pytest.fixture
def masked_records(tmp_path):
    """A directory of records of another tool, with the newer names, and their vocabulary."""
    rng = np.random.default_rng(0)
    made = [
        google_records.example(
            first=rng.integers(5, 100, 3).tolist(),
            masks=((1, int(rng.integers(5, 100))),),
            label=i % 2,
            newer=True,
        )
        for i in range(16)
    ]
    google_records.write(tmp_path / "others" / "tf_examples.tfrecord-00000-of-00001", made)
    return tmp_path / "others", google_records.write_vocabulary(tmp_path / "others.txt", 100)


@pytest.mark.long
def test_records_of_others_with_masks(pretrain, masked_records, tmp_path):
    data, vocab = masked_records
    fields = {"data.vocab": vocab, "steps": 6}
    code, output, error = pretrain(data=data, **fields)
    assert (code, error) == (0, "")
    line = "the records come with their masks, at most 3 a row"
    assert output.count(line) == 1 and "no evaluation: the records have no split for it" in output
    run = run_directory.read_run(tmp_path / "run")
    assert run["config"]["masking"]["max_predictions"] == 3 and run["records"]["max_seq_length"] == 12
    assert (tmp_path / "run" / "vocab.txt").exists()
    lines = processes.metrics(tmp_path / "run")
    assert lines[0]["loss"] == pytest.approx(np.log(100) + np.log(2), abs=0.3)
    code, output, _ = pretrain(data=data, **fields)
    assert code == 0 and "nothing to train" in output
    for name, value in {"masking.strategy": "ngram", "masking.copies": 1, "eval_masking.prob": 0.3}.items():
        error = error_of(pretrain(data=data, **fields | {name: value}))
        assert f"{name}={value}: the records {data} come with their masks; leave it at" in error


def test_records_of_others_and_what_cannot_be(pretrain, masked_records, records, tmp_path):
    data, vocab = masked_records
    assert "name their vocabulary in data.vocab" in error_of(pretrain(data=data))
    small = google_records.write_vocabulary(tmp_path / "small.txt", 60)
    error = error_of(pretrain(data=data, **{"data.vocab": small}))
    assert "is outside the vocabulary of 60; give the vocabulary that the records were made with" in error
    assert "have a vocabulary of their own: leave data.vocab empty" in error_of(
        pretrain(**{"data.vocab": vocab})
    )
    error = error_of(pretrain(data=f"{data},{records}", **{"data.vocab": vocab}))
    assert "holds packed records and" in error and "one run reads one schema" in error


def test_help_has_the_flags(capsys):
    assert cli.main(["pretrain", "--help"]) == 0
    output = capsys.readouterr().out
    assert "--workdir" in output and "--[no]allow_changes" in output


@pytest.mark.slow
def test_rows_of_several_lengths(pretrain, records, tmp_path, monkeypatch):
    """Rows, predictions, FLOPs and held-out rows are those of the length of each step."""
    given, fit = {}, pretrain_runs.train.fit
    monkeypatch.setattr(pretrain_runs.train, "fit", lambda **more: given.update(more) or fit(**more))
    both = f"{processes.write_records(tmp_path / 'short', length=16, eval_rows=8)},{records}"
    ramp = {"length_ramp": "0=16, 1=32, 3=16", "constant_tokens": True, "steps": 4, "eval.every": 2}
    ramp |= {"optimizer.warmup_steps": 1}
    code, output, error = pretrain(data=both, **ramp)
    assert (code, error) == (0, "")
    assert "2 steps of 16 rows: 0.5 epochs" in output and "2 steps of 8 rows: 0.25 epochs" in output
    assert "evaluating on 8 of 8 held-out rows" in output and "on 12 of 12 held-out rows" in output
    assert re.findall(r"for another shape, (\d) by now", output) == ["2"]
    of_steps = [given["flops_per_step"](step) for step in (1, 2, 3, 4)]
    own = flops.row_flops(given["objective"])

    def of_row(length, predictions, directory):
        split = json.loads((directory / "manifest.json").read_text())["splits"]["train"]
        return own(length, predictions, -(-split["sequences"] // split["rows"]))

    short, long = 16 * of_row(16, 4, tmp_path / "short"), 8 * of_row(32, 8, records)
    assert of_steps == [short, long, long, short]
    assert [line["step"] for line in processes.metrics(tmp_path / "run", "eval")] == [2, 4]
    assert run_directory.read_run(tmp_path / "run")["records"] == {
        "fingerprint": "random-95-64-0+random-95-64-0", "max_seq_length": 32,
    }  # fmt: skip


def test_rows_longer_than_the_positions_are_refused(pretrain, records, tmp_path):
    both = f"{processes.write_records(tmp_path / 'short', length=16)},{records}"
    fields = {"length_ramp": "0=16, 100=32", "model.max_position_embeddings": 16}
    assert "rows of 32 tokens and the model has 16 positions" in error_of(pretrain(data=both, **fields))
