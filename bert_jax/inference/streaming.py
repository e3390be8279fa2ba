"""Rows that come one by one, such as those of standard input, predicted as they come."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from typing import IO

from bert_jax.errors import UserError
from bert_jax.inference.predictor import Predictor
from bert_jax.tasks.readers.lines import SOURCE, LineReader
from bert_jax.tasks.readers.report import Malformed


def serve(model: Predictor, reader: LineReader, source: IO[bytes], out: IO[bytes]) -> tuple[int, int]:
    """Answers every line of a stream by one line of JSON, in order and at once, until the stream ends.

    What waits when the model is free goes into one batch. A line that cannot be read is answered by an object
    of its number, `line`, and what is wrong with it, `error`.

    Args:
        source: UTF-8, a line an example.
        out: gets the answers, and is flushed after each batch.

    Returns:
        (lines, those that could not be read).

    Raises:
        UserError: the source cannot be read on.
    """
    count = bad = 0
    for lines in _waiting(source, model.batch_size):
        rows, answers = [], {}
        for number, line in enumerate(lines, count + 1):
            try:
                rows.append((number, reader.parse(line)))
            except Malformed as error:
                answers[number] = {"line": number, "error": str(error)}
        count, bad = count + len(lines), bad + len(answers)
        if rows:
            examples = reader.examples(rows)
            records = model.predict(examples).records()
            answers.update(zip((number for number, _ in rows), records, strict=True))
        text = "".join(json.dumps(answers[n], ensure_ascii=False) + "\n" for n in sorted(answers))
        out.write(text.encode("utf-8", "replace"))
        out.flush()
    return count, bad


def _waiting(source: IO[bytes], most: int) -> Iterator[list[bytes]]:
    """The lines that are there, at least one and at most so many at a time."""
    lines: queue.Queue[bytes | OSError | None] = queue.Queue(2 * most)

    def read():
        try:
            for line in source:
                lines.put(line)
            lines.put(None)
        except OSError as error:
            lines.put(error)

    # A thread, because no file can be asked whether a whole line waits in it.
    threading.Thread(target=read, daemon=True).start()
    end: bytes | OSError | None = b""
    while isinstance(end, bytes):
        found = [lines.get()]
        while isinstance(found[-1], bytes) and len(found) < most:
            try:
                found.append(lines.get_nowait())
            except queue.Empty:
                break
        end = found[-1]
        if chunk := [line for line in found if isinstance(line, bytes)]:
            yield chunk
    if end is not None:
        raise UserError(f"{SOURCE}: cannot be read: {end.strerror or end}")
