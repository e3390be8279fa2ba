import json
from collections.abc import Iterator

import numpy as np
import pytest
from support import processes

from bert_jax import cli
from bert_jax.commands import bench
from bert_jax.data import packed
from bert_jax.runs import benchmark
from bert_jax.training import flops


@pytest.fixture(autouse=True)
def known_peak(monkeypatch):
    """Measuring what the machine can reach takes seconds on a busy one."""
    monkeypatch.setattr(flops, "measured_matrix_rate", lambda platform, dtype: 8e11)


@pytest.mark.parametrize("length", [64, 128, 512])
@pytest.mark.parametrize("rows", ["full", "padded", "packed"])
def test_synthetic_batches_are_valid_rows(rows, length):
    batch = benchmark.synthetic_batch(rows, 16, length, 1000)
    assert batch["input_ids"].shape == (16, length) and all(x.dtype == np.int32 for x in batch.values())
    assert packed._valid_sequences(
        batch["lengths"], batch["starts"], batch["first_lengths"], batch["next_sentence_labels"]
    ).all()
    real = np.arange(length) < batch["lengths"][:, None]
    assert (batch["input_ids"][~real] == 0).all() and (batch["input_ids"][real] >= 500).all()
    assert batch["row_ids"].tolist() == list(range(16))
    ends = np.append(batch["starts"][:, 1:], np.full((16, 1), length), axis=1)
    lengths = (np.minimum(ends, batch["lengths"][:, None]) - batch["starts"])[batch["first_lengths"] > 0]
    assert lengths.sum() == batch["lengths"].sum() and lengths.min() >= 8
    if rows == "full":
        assert lengths.tolist() == [length] * 16
    elif rows == "padded":
        assert len(lengths) == 16 and len(set(lengths.tolist())) > 4
    else:
        assert len(lengths) > 20 and batch["lengths"].sum() > 0.95 * 16 * length


@pytest.mark.long
@pytest.mark.parametrize("copies", [0, 1])
def test_the_command_times_synthetic_rows_and_records(tmp_path, capsys, monkeypatch, copies):
    timed = []

    def time_train_step(task, program, batches, *, steps, **settings):
        assert flops.row_flops(settings["objective"])(16, 2, 1) > 0
        batch = next(batches) if isinstance(batches, Iterator) else batches
        assert ("mask_keys" in batch) == bool(copies)
        timed.append((task.config.vocab_size, task.masking.max_predictions, batch["input_ids"].shape, steps))
        rate = dict(best=2.0, median=1.0)
        names = ("sequences", "rows", "tokens", "model_flops")
        return {f"{name}_per_second": rate for name in names} | dict(
            share_of_peak=rate, peak_flops_per_second=8e11,
            rows=8, length=16, sequences_per_row=1.5, fill=0.9,
            compile_seconds=1.0, memory_bytes=2**20, seconds=[0.5, 1.0],
        )  # fmt: skip

    monkeypatch.setattr(benchmark, "time_train_step", time_train_step)
    records = processes.write_records(tmp_path / "records")
    fields = processes.TINY | {"data.dir": records, "masking.copies": copies}
    flags = (f"--config.{name}={value}" for name, value in fields.items())
    command = ["bench", f"--config={processes.CONFIG}", *flags, "--rows=packed"]
    assert cli.main([*command, "--seq_length=16", "--steps=2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["loader"]["tokens_per_second"] > result["loader"]["rows_per_second"] > 0
    assert result["config"]["model"]["hidden_size"] == 32 and result["device"]["platform"] == "cpu"
    assert "tokens_per_second" in bench.report(result)
    assert timed == [(100, 4, (8, 16), 2), (100, 8, (8, 32), 2)]
