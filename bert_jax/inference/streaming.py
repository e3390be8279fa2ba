"""Predicts the examples of a stream, such as standard input, as they arrive."""

from __future__ import annotations

import functools
import json
import queue
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from bert_jax.errors import file_error
from bert_jax.inference.predictor import Predictor
from bert_jax.tasks.lines import SOURCE, LineReader
from bert_jax.tasks.table import Malformed, parse_object

_PATIENCE = 0.5  # seconds; lines that come within them are read before the model is prepared
ADAPTER = "adapter"  # the field of a JSON object that names an adapter


def serve(
    model: Predictor,
    reader: LineReader,
    source: IO[bytes],
    out: IO[bytes],
    adapters: Mapping[str, tuple[Predictor, LineReader]] = types.MappingProxyType({}),
    prepare: Callable[[], None] = lambda: None,
) -> tuple[int, int]:
    """Answers every line of a stream with one line of JSON, in order, until the stream ends.

    All lines that are waiting when the model becomes idle form the next batch. A malformed line is answered
    with an object that has its number, `line`, and a description of the problem, `error`.

    Args:
        model: the predictor, whose batch size limits the lines of a batch.
        reader: parses the lines.
        source: the stream in UTF-8, with one example per line.
        out: the stream that the answers are written to. It is flushed after each batch.
        adapters: {name: predictor and reader} of other models. If there are any, the field `adapter` of a
            JSON object names the one that answers it; lines without the field are for `model`.
        prepare: called once, before the first valid line is answered, or while there is no line to read. The
            errors of a stream without a valid line are thus reported at once, however long this takes.

    Returns:
        (number of lines, number of malformed lines).

    Raises:
        StorageError: the source breaks off.
    """
    served = {"": (model, reader), **adapters}
    prepare = functools.cache(prepare)
    count = bad = 0
    for lines in _waiting(source, model.batch_size, prepare):
        rows: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        answers: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(lines, count + 1):
            try:
                name = _adapter_of(line, adapters) if adapters else ""
                row = served[name][1].parse(line)
                rows.setdefault(name, []).append((number, row))
            except Malformed as error:
                answers[number] = {"line": number, "error": str(error)}
        count, bad = count + len(lines), bad + len(answers)
        if rows:
            prepare()
        for name, parsed in rows.items():
            predictor, reader = served[name]
            records = predictor.predict(reader.examples(parsed)).records()
            answers.update(zip((number for number, _ in parsed), records, strict=True))
        text = "".join(json.dumps(answers[n], ensure_ascii=False) + "\n" for n in sorted(answers))
        out.write(text.encode("utf-8", "replace"))
        out.flush()
    return count, bad


def _adapter_of(line: bytes, adapters: Mapping[str, Any]) -> str:
    """Returns the name of the adapter in a line of JSON; "" for any other line."""
    text = line.decode("utf-8-sig", "replace").strip()
    name = parse_object(text).get(ADAPTER, "") if text.startswith("{") else ""
    if name not in ("", *adapters):
        raise Malformed(f"{ADAPTER} {name!r:.60}: expected one of {', '.join(adapters)}")
    return name


def _waiting(source: IO[bytes], most: int, on_idle: Callable[[], None]) -> Iterator[list[bytes]]:
    """Yields the lines that are waiting, from 1 to `most` at a time; blocks while there are none.

    Args:
        source: the stream.
        most: the largest number of lines at a time.
        on_idle: called when there has been no line for a while, before it blocks.
    """
    lines: queue.Queue[bytes | OSError | None] = queue.Queue(2 * most)

    def read():
        try:
            for line in source:
                lines.put(line)
            lines.put(None)
        except OSError as error:
            lines.put(error)

    # The source is read in a thread, because there is no way to test whether a file has a whole line to read.
    threading.Thread(target=read, daemon=True).start()
    end: bytes | OSError | None = b""
    while isinstance(end, bytes):
        try:
            found = [lines.get(timeout=_PATIENCE)]
        except queue.Empty:
            on_idle()
            found = [lines.get()]
        # Nothing else takes lines from the queue, so `get` does not block if the queue is not empty.
        while isinstance(found[-1], bytes) and len(found) < most and not lines.empty():
            found.append(lines.get())
        end = found[-1]
        if chunk := [line for line in found if isinstance(line, bytes)]:
            yield chunk
    if end is not None:
        raise file_error(f"{SOURCE}: cannot be read ({end.strerror or end})", end)
