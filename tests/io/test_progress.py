"""What is said about a long job, on a terminal and elsewhere."""

import io
import os
import pty
import re
import select
import time
import types

from bert_jax.io import progress
from bert_jax.training.metrics.metrics_writer import MetricsWriter


def test_a_line_has_the_rate_and_the_time_left():
    bar = progress.Progress(io.StringIO())
    bar.start("tokenizing", 20e9, "MB", 1e-6)
    bar.advance(5e9)
    assert bar.line(elapsed=1250.0) == "tokenizing: 5,000 of 20,000 MB, 4 MB/s, 1:02:30 left"
    assert bar.line(elapsed=0.5) == "tokenizing: 5,000 of 20,000 MB, 10,000 MB/s, 0:01 left"
    bar.start("writing files", 4, "files")
    assert bar.line(elapsed=0.0) == "writing files: 0 of 4 files, 0 files/s, time left unknown"


def test_small_amounts_have_a_digit_more():
    assert progress.amount("reading", 0.21, 0.734, "MB") == "reading: 0.2 of 0.7 MB"
    assert progress.amount("reading", 5.21, 10.2, "MB") == "reading: 5 of 10 MB"
    assert progress.amount("evaluation", 1, 8, "batches") == "evaluation: 1 of 8 batches"
    assert progress.amount("evaluation", 1200, None, "batches") == "evaluation: 1,200 batches"


def test_lines_are_rare_where_there_is_no_terminal(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with progress.Progress(stream) as bar:
        bar.start("making rows", 100, "buckets")
        for _ in range(100):
            now[0] += 1.0
            bar.advance(1)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10 and lines[2] == "making rows: 30 of 100 buckets, 1 buckets/s, 1:10 left"


def test_a_terminal_gets_a_bar():
    parent, child = pty.openpty()
    with open(child, "w") as terminal:
        with progress.Progress(terminal) as bar:
            bar.start("tokenizing", 10e6, "MB", 1e-6)
            bar.advance(10e6)
        shown = b""
        while select.select([parent], [], [], 0.5)[0]:  # a read gives what there is, and no more
            shown += os.read(parent, 1 << 16)
    os.close(parent)
    shown = shown.decode()
    assert "tokenizing" in shown and "10 of 10 MB" in shown


def task(done, total, first=0, started=100.0):
    fields = {"first": first, "started": started}
    return types.SimpleNamespace(completed=done, total=total, fields=fields)


def test_the_time_left_is_what_remains_and_not_what_has_gone_by():
    assert progress.time_left(task(25, 100), now=150.0) == "left 2:30"
    assert progress.time_left(task(100, 100), now=150.0) == ""
    assert progress.time_left(task(0, 100), now=150.0) == "" == progress.time_left(task(5, None), now=150.0)
    # What an earlier process did says nothing of the rate.
    assert progress.time_left(task(60, 100, first=50), now=110.0) == "left 0:40"


def shown_on_a_terminal(use):
    """What appears on a terminal, of 80 columns, while `use` writes to it."""
    parent, child = pty.openpty()
    with open(child, "w") as terminal:
        use(terminal)
        shown = b""
        while select.select([parent], [], [], 0.5)[0]:
            shown += os.read(parent, 1 << 16)
    os.close(parent)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_a_stage_of_unknown_length_shows_the_seconds_that_go_by():
    def use(terminal):
        with progress.Progress(terminal) as bar:
            bar.start("learning tokens")
            time.sleep(1.5)  # the caller is in C

    shown = shown_on_a_terminal(use)
    assert "0:00:00" in shown and "0:00:01" in shown and "left" not in shown


def test_two_bars_fit_into_a_terminal(tmp_path, monkeypatch):
    """A run's steps move with each, an evaluation has a bar while it lasts, and messages stand above."""

    def use(terminal):
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        writer = MetricsWriter(tmp_path, total_steps=1_000_000)
        writer.rewind(0)
        for step in range(4):
            writer.at_step(step)
            writer._bars.refresh()
        with writer.stage("evaluation", 64, "batches") as at:
            for done in range(3):
                at(done)
                writer._bars.refresh()
        writer.message("eval 3  loss 1.0")
        writer.close()

    shown = shown_on_a_terminal(use)
    for part in ("1 of 1,000,000", "2 of 1,000,000", "2 of 64 batches", "eval 3  loss 1.0\r\n"):
        assert part in shown, part
    assert re.search(r"0:00:0\d left \d+:\d\d", shown)
    assert max(map(len, re.split("[\r\n]+", shown))) <= 80 and "…" not in shown


def test_no_bar_where_there_is_no_terminal(capsys):
    with MetricsWriter(None, terminal=False).stage("evaluation", None, "batches") as at:
        at(1)
        at(1, 4)
    with progress.of_batches("predicting") as on_batch:
        for done in range(5):
            on_batch(done, 4)
    assert capsys.readouterr() == ("", "")
