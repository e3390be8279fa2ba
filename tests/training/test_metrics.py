"""The writer: the file over resumes, TensorBoard events, terminal and plain lines."""

import json
import math
import struct
import threading
import time
import uuid
from pathlib import Path

import jax
import pytest
from tensorboardX.proto import event_pb2

from bert_jax.io import files
from bert_jax.training import metrics
from bert_jax.training.metrics import MetricsWriter, read_metrics


def lines_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def write_run(directory, steps, start=0):
    writer = MetricsWriter(directory, total_steps=100, terminal=False)
    writer.rewind(start)
    for step in steps:
        writer.write(step, {"loss": step / 2})
        if step % 2 == 0:
            writer.write(step, {"mlm_loss": step / 4}, kind="eval")
    writer.close()


def read_events(directory):
    """[(tag, step, number)] in the order of the files, without what a resumed run hides."""
    found = []
    for path in sorted(directory.iterdir()):
        for event in map(event_pb2.Event.FromString, _records(path.read_bytes())):
            if event.session_log.status == event_pb2.SessionLog.START:
                found = [each for each in found if each[1] < event.step]
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def _records(content):
    while content:
        (length,) = struct.unpack("<Q", content[:8])  # and 4 bytes of a checksum, after the record too
        yield content[12 : 12 + length]
        content = content[16 + length :]


def steps(directory, tag):
    """The steps of a tag, in the order of the files."""
    return [step for name, step, _ in read_events(directory) if name == tag]


def test_a_resumed_run_has_one_line_a_step(tmp_path):
    write_run(tmp_path, range(1, 8))
    write_run(tmp_path, range(5, 11), start=4)
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 11))
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [2, 4, 6, 8, 10]


def test_a_line_cut_short_by_a_kill_goes(tmp_path):
    write_run(tmp_path, range(1, 4))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "kind": "tr')
    assert len(read_metrics(tmp_path)) == 4
    write_run(tmp_path, [4], start=3)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 2, 3, 4, 4]


def test_values_that_are_not_finite_are_null(tmp_path):
    writer = MetricsWriter(tmp_path, terminal=False)
    writer.rewind(0)
    writer.write(1, {"loss": math.nan, "grad_norm": math.inf})
    writer.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert lines_of(tmp_path) == [{"step": 1, "kind": "train", "loss": None, "grad_norm": None}]


def test_tensorboard_events(tmp_path):
    write_run(tmp_path, range(1, 5))
    write_run(tmp_path, [3, 4], start=2)  # its event file hides later steps of the first run
    found = read_events(tmp_path / "tensorboard")
    assert ("train/loss", 3, 1.5) in found and ("eval/mlm_loss", 2, 0.5) in found
    assert steps(tmp_path / "tensorboard", "train/loss") == [1, 2, 3, 4]


@pytest.fixture
def remote():
    """The URL of an empty directory."""
    return f"memory://{uuid.uuid4().hex}"


def write_lines(writer, steps):
    for step in steps:
        writer.write(step, {"loss": float(step)})


def steps_of(url):
    return [line["step"] for line in read_metrics(url)]


def test_a_run_does_not_wait_for_uploads(remote, monkeypatch):
    url = remote
    upload, threads = files.upload, set()

    def slow(source, path):
        threads.add(threading.current_thread().name)
        time.sleep(1)
        upload(source, path)

    writer = MetricsWriter(url, terminal=False)
    writer.rewind(0)
    monkeypatch.setattr(files, "upload", slow)
    monkeypatch.setattr(metrics, "_FLUSH_SECONDS", 0.0)
    began = time.monotonic()
    write_lines(writer, range(1, 41))
    writer.flush()
    assert time.monotonic() - began < 1 and "MainThread" not in threads
    monkeypatch.setattr(files, "upload", upload)
    writer.close()
    assert steps_of(url) == list(range(1, 41))
    with files.local_copy(f"{url}/tensorboard") as folder:
        assert steps(Path(folder), "train/loss") == list(range(1, 41))


def test_other_processes_write_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    writer = MetricsWriter(tmp_path)
    writer.rewind(0)
    writer.write(1, {"loss": 1.0})
    writer.message("x")
    writer.close()
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""
