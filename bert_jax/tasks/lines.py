"""Readers of examples from the lines of a stream."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.tasks.table import Examples, Malformed, find_key, json_text, parse_object

FORMATS = ("auto", "jsonl", "tsv")
SOURCE = "standard input"
FIELDS = ("text_a", "text_b", "id")


class LineReader(abc.ABC):
    """Base class of the readers that parse a line into an example of a task.

    A line is either a JSON object, whose fields have the names of the training file or of `own_names`, or
    plain text, in which the texts of the example are separated by tabs.

    Args:
        file_format: "jsonl", "tsv" (plain text), or "auto", which reads lines that begin with a brace as
            JSON.
        names: the names of `text_a`, `text_b` and `id` in the training file; empty for a field that it lacks.

    Raises:
        UserError: the format is not one of `FORMATS`.
    """

    own_names: ClassVar[Mapping[str, str]] = dict(zip(FIELDS, FIELDS, strict=True))
    needs_text: ClassVar[bool] = False  # whether an empty text is malformed

    def __init__(self, file_format: str, names: Mapping[str, str]):
        if file_format not in FORMATS:
            raise UserError(f"--format={file_format}: expected of {SOURCE} one of {', '.join(FORMATS)}")
        self._format = file_format
        self.texts = tuple(field for field in ("text_a", "text_b") if names[field])
        own = self.own_names
        # A number is the position of a column, which a JSON object does not have.
        names = {field: own[field] if name.lstrip("-").isdecimal() else name for field, name in names.items()}
        self.names = {field: tuple(filter(None, (names[field], own[field], field))) for field in FIELDS}

    @property
    def columns(self) -> list[str]:
        """Returns the names of the columns of a line of plain text."""
        return [self.names[field][0] for field in self.texts]

    @property
    def expected(self) -> str:
        """Returns a description of a line of plain text, for messages."""
        return " TAB ".join(self.columns) if len(self.columns) > 1 else "a text without tabs"

    def parse(self, line: bytes) -> dict[str, Any]:
        """Returns the values of one line by field, or raises Malformed."""
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
        """Returns the values of a line of plain text by field."""
        fields = text.split("\t")
        if len(fields) != self.width:
            raise Malformed(
                f"{counted(len(fields), 'column')}, expected {self.expected}, or an object of JSON"
            )
        return {field: self.checked(value, field) for field, value in zip(self.texts, fields, strict=False)}

    @property
    def width(self) -> int:
        """Returns the number of columns of a line of plain text."""
        return len(self.texts)

    def checked(self, value: Any, name: str) -> Any:
        """Returns a text or a list of words, or raises Malformed if it is empty and the task needs one."""
        if self.needs_text and not (value.strip() if isinstance(value, str) else value):
            raise Malformed(f"an empty {name!r}")
        return value

    def from_object(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a JSON object by field."""
        values = {}
        for field in self.texts:
            key = find_key(row, self.names[field])
            values[field] = self.checked(self.value(row, field, key), key)
        if id_key := next((key for key in self.names["id"] if row.get(key) is not None), ""):
            values["id"] = json_text(row[id_key], "id", id_key)
        return values

    def value(self, row: Mapping[str, Any], field: str, key: str) -> Any:
        """Returns the value of a text field of a JSON object."""
        return json_text(row[key], field, key)

    @abc.abstractmethod
    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Any:
        """Returns the examples of parsed lines, of the same type as those of `FinetuneTask.read`.

        Args:
            rows: (line number from 1, values that `parse` returned) for each line.
        """


def ids_of(rows: Sequence[tuple[int, dict[str, Any]]]) -> list[str]:
    """Returns the id of each row, or its line number counted from 0 if it has no id."""
    return [row.get("id", str(line - 1)) for line, row in rows]


class TableLines(LineReader):
    """Reads rows of texts, as in a table."""

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Examples:
        """Returns the rows of parsed lines, without labels."""
        first = [row["text_a"] for _, row in rows]
        second = [row["text_b"] for _, row in rows] if "text_b" in self.texts else []
        return Examples(SOURCE, ids_of(rows), first, second, [], [line for line, _ in rows], rows=len(rows))
