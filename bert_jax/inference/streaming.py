"""Rows that come one by one, such as those of standard input, predicted as they come."""

from __future__ import annotations

import json
import queue
import re
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

from bert_jax.errors import UserError
from bert_jax.inference.predictor import Predictor
from bert_jax.tasks.base import Problem
from bert_jax.tasks.question_answering.question_files import UNKNOWN, Questions
from bert_jax.tasks.readers.file_rows import json_text, parse_object
from bert_jax.tasks.readers.report import Malformed
from bert_jax.tasks.readers.tables import Examples
from bert_jax.tasks.tagging.word_files import WORDS, TaggedSentences, json_list
from bert_jax.tasks.text.task import columns_of

FORMATS = ("auto", "jsonl", "tsv")
SOURCE = "standard input"

_FIELDS = ("text_a", "text_b", "id")
# What they are called by families of tasks that have names of their own for them.
_OWN_NAMES = {"question_answering": ("question", "context", "id"), "tagging": (WORDS, "", "id")}


class RowReader:
    """How a line becomes an example of a task.

    A line is an object of JSON, whose fields go by the training file's names or by `text_a`, `text_b`,
    `choices` and `id`; or plain text: the columns `text_a`, `text_b` and each of the choices, as far as the
    task has them, with a tab between. Of tags it is the words of a sentence: a list, or with spaces between.

    Args:
      problem: the task.
      file_format: "jsonl", "tsv" (plain text), or "auto": JSON where a line begins with a brace.
      columns: names of `text_a`, `text_b` and `id` that differ from the training file's.

    Raises:
      UserError: a format that no stream has, or a column that the task does not have.
    """

    def __init__(self, problem: Problem, file_format: str = "auto", **columns: str):
        if file_format not in FORMATS:
            raise UserError(f"--format={file_format}: expected of {SOURCE} one of {', '.join(FORMATS)}")
        self._format, self._kind = file_format, problem.spec.kind
        own = dict(zip(_FIELDS, _OWN_NAMES.get(self._kind, _FIELDS), strict=True))
        self._choices: tuple[str, ...] = ()
        if self._kind in _OWN_NAMES:
            names = {field: problem.config.data[field] or own[field] for field in _FIELDS}
        else:
            known = columns_of(problem.config, problem.spec)
            names = {field: getattr(known, field) for field in _FIELDS}
            if self._kind == "multiple_choice":
                self._choices = tuple(name.strip() for name in known.choices.split(",") if name.strip())
        names |= columns
        if self._kind == "tagging" and names["text_b"]:
            raise UserError(f"--text_b={names['text_b']}: tagging has no second text; leave it out")
        self._texts = tuple(field for field in ("text_a", "text_b") if names[field])
        # A number is the place of a column in a table; an object has none.
        names = {field: own[field] if re.fullmatch(r"-?\d+", name) else name for field, name in names.items()}
        self._names = {field: tuple(filter(None, (names[field], own[field], field))) for field in _FIELDS}
        self._count = len(problem.labels) if self._choices else 0

    @property
    def expected(self) -> str:
        """What a line of plain text has."""
        if self._kind == "tagging":
            return "the words of a sentence with spaces between"
        fields = [self._names[field][0] for field in self._texts]
        fields += [f"{self._count} choices"] if self._count else []
        return " TAB ".join(fields) if len(fields) > 1 else "a text without tabs"

    def parse(self, line: bytes) -> dict[str, Any]:
        """The values of one line by column.

        Raises:
          Malformed: what is wrong with it.
        """
        try:
            text = line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise Malformed("not UTF-8") from None
        if not text.strip():
            raise Malformed("an empty line")
        if self._format == "jsonl" or (self._format == "auto" and text.lstrip().startswith("{")):
            return self._from_object(parse_object(text))
        if self._kind == "tagging":
            return {"text_a": [word for word in re.split("[ \t]+", text) if word]}
        fields = text.split("\t")
        wanted = len(self._texts) + self._count
        if len(fields) != wanted:
            found = f"{len(fields)} column{'s' * (len(fields) > 1)}"
            raise Malformed(f"{found}, expected {self.expected}, or an object of JSON")
        values = dict(zip(self._texts, fields, strict=False))
        return values | {"choices": fields[len(self._texts) :]} if self._count else values

    def _from_object(self, row):
        values = {}
        for field in self._texts:
            key = _find(row, self._names[field])
            if self._kind == "tagging":
                values[field] = json_list(row, key)
            else:
                values[field] = json_text(row[key], field, key)
            needed = values[field].strip() if self._kind == "question_answering" else values[field]
            if self._kind in _OWN_NAMES and not needed:
                raise Malformed(f"an empty {key!r}")
        for key in self._names["id"]:
            if row.get(key) is not None:
                values["id"] = json_text(row[key], "id", key)
                break
        if self._count:
            values["choices"] = self._choices_of(row)
        return values

    def _choices_of(self, row):
        if len(self._choices) > 1 and all(isinstance(row.get(name), str) for name in self._choices):
            return [json_text(row[name], "choice", name) for name in self._choices]
        key = _find(row, ("choices",) if len(self._choices) > 1 else (*self._choices, "choices"))
        found = row[key]
        if not isinstance(found, list) or len(found) != self._count:
            raise Malformed(f"{key!r} is no list of {self._count} choices, as the model was trained with")
        return [json_text(choice, "choice", key) for choice in found]

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Any:
        """The examples of (number of the line from 1, what `parse` gave), as the task's files have them."""
        lines = [line for line, _ in rows]
        values = [row for _, row in rows]
        ids = [row.get("id", str(line - 1)) for line, row in rows]
        first = [row["text_a"] for row in values]
        second = [row["text_b"] for row in values] if "text_b" in self._texts else None
        if self._kind == "tagging":
            places = [[line] * len(words) for line, words in zip(lines, first, strict=True)]
            return TaggedSentences(SOURCE, first, None, lines, places, ids, rows=len(rows))
        if self._kind == "question_answering":
            contexts = {context: place for place, context in enumerate(dict.fromkeys(second))}
            places = [contexts[context] for context in second]
            nothing = [[] for _ in rows], [UNKNOWN] * len(rows)
            return Questions(SOURCE, ids, first, list(contexts), places, *nothing, rows=len(rows))
        choices = [row["choices"] for row in values] if self._count else None
        return Examples(SOURCE, ids, first, second, None, lines, choices, rows=len(rows))


def _find(row, names):
    for name in names:
        if row.get(name) is not None:
            return name
    raise Malformed(f"no {names[0]!r} in the object; it has {', '.join(map(repr, list(row)[:20]))}")


def serve(model: Predictor, reader: RowReader, source: IO[bytes], out: IO[bytes]) -> tuple[int, int]:
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
    problem = model.problem
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
            data = problem.encode(examples)
            records = problem.records(examples, data, model(data))
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
