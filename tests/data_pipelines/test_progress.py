"""What is said about a long job, on a terminal and elsewhere."""

import io
import os
import pty
import select

from data_pipelines import progress


def test_a_line_has_the_rate_and_the_time_left():
    bar = progress.Progress(io.StringIO())
    bar.start("tokenizing", 20e9, "MB", 1e-6)
    bar.advance(5e9)
    assert bar.line(elapsed=1250.0) == "tokenizing: 5000 of 20000 MB, 4 MB/s, 1:02:30 left"
    bar.start("writing files", 4, "files")
    assert bar.line(elapsed=0.0) == "writing files: 0 of 4 files, 0 files/s, time left unknown"


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
