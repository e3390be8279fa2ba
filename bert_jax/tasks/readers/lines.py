"""Examples that come one by one, as the lines of a stream."""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bert_jax.errors import UserError
from bert_jax.tasks.readers.file_rows import json_text, parse_object
from bert_jax.tasks.readers.report import Malformed
from bert_jax.tasks.readers.tables import Examples

FORMATS = ("auto", "jsonl", "tsv")
SOURCE = "standard input"
FIELDS = ("text_a", "text_b", "id")


class LineReader(abc.ABC):
    """How a line becomes an example of a task.

    A line is an object of JSON, whose fields have the training file's names or those of `own_names`; or plain
    text, with a tab between the texts that the task has.

    Args:
        file_format: "jsonl", "tsv" (plain text), or "auto": JSON where a line begins with a brace.
        names: what the training file calls `text_a`, `text_b` and `id`; empty for what there is not.

    Raises:
        UserError: a format that no stream has.
    """

    own_names: ClassVar[Mapping[str, str]] = dict(zip(FIELDS, FIELDS, strict=True))
    needs_text: ClassVar[bool] = False  # whether an empty text is malformed

    def __init__(self, file_format: str, names: Mapping[str, str]):
        if file_format not in FORMATS:
            raise UserError(f"--format={file_format}: expected of {SOURCE} one of {', '.join(FORMATS)}")
        self._format = file_format
        self.texts = tuple(field for field in ("text_a", "text_b") if names[field])
        own = self.own_names
        # A number is the place of a column in a table; an object has none.
        names = {field: own[field] if re.fullmatch(r"-?\d+", name) else name for field, name in names.items()}
        self.names = {field: tuple(filter(None, (names[field], own[field], field))) for field in FIELDS}

    @property
    def columns(self) -> list[str]:
        """Returns what the columns of plain text are called."""
        return [self.names[field][0] for field in self.texts]

    @property
    def expected(self) -> str:
        """Returns what a line of plain text has."""
        return " TAB ".join(self.columns) if len(self.columns) > 1 else "a text without tabs"

    def parse(self, line: bytes) -> dict[str, Any]:
        """Returns the values of one line by field.

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
            return self.from_object(parse_object(text))
        return self.from_text(text)

    def from_text(self, text: str) -> dict[str, Any]:
        """Returns the values of a line of plain text."""
        fields = text.split("\t")
        if len(fields) != self.width:
            found = f"{len(fields)} column{'s' * (len(fields) > 1)}"
            raise Malformed(f"{found}, expected {self.expected}, or an object of JSON")
        return dict(zip(self.texts, fields, strict=False))

    @property
    def width(self) -> int:
        """Returns how many columns a line of plain text has."""
        return len(self.texts)

    def from_object(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of an object."""
        values = {}
        for field in self.texts:
            key = find_key(row, self.names[field])
            values[field] = self.value(row, field, key)
            if self.needs_text and not (
                values[field].strip() if isinstance(values[field], str) else values[field]
            ):
                raise Malformed(f"an empty {key!r}")
        for key in self.names["id"]:
            if row.get(key) is not None:
                values["id"] = json_text(row[key], "id", key)
                break
        return values

    def value(self, row: Mapping[str, Any], field: str, key: str) -> Any:
        """Returns the value of a text's field."""
        return json_text(row[key], field, key)

    @abc.abstractmethod
    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Any:
        """Returns the examples of (number of the line from 1, what `parse` returned), as `FinetuneTask.read`
        does.
        """


def ids_of(rows: Sequence[tuple[int, dict[str, Any]]]) -> list[str]:
    """Returns the id of each row: its own, or its number from 0."""
    return [row.get("id", str(line - 1)) for line, row in rows]


class TableLines(LineReader):
    """Rows of texts, as a table has them."""

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Examples:
        first = [row["text_a"] for _, row in rows]
        second = [row["text_b"] for _, row in rows] if "text_b" in self.texts else None
        lines = [line for line, _ in rows]
        return Examples(SOURCE, ids_of(rows), first, second, None, lines, rows=len(rows))


def find_key(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns the first of some names that an object has.

    Raises:
        Malformed: it has none of them.
    """
    for name in names:
        if row.get(name) is not None:
            return name
    raise Malformed(f"no {names[0]!r} in the object; it has {', '.join(map(repr, list(row)[:20]))}")
