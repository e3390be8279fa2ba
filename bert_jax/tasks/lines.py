"""Readers of examples from the lines of a stream."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.tasks.table import Examples, Malformed, add_row, find_key, json_text, parse_object

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

    Attributes:
        columns: the names of the columns of a line of plain text.

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
        # A number is the position of a column, which a JSON object does not have.
        self._names = {
            field: [
                name
                for name in (names[field], self.own_names[field], field)
                if name and not name.lstrip("-").isdecimal()
            ]
            for field in FIELDS
        }
        self.columns = [self._names[field][0] for field in self.texts]

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
        values = text.split("\t")
        if len(values) != len(self.columns):
            what = counted(len(values), "column")
            raise Malformed(f"{what}, expected {self.expected}, or an object of JSON")
        return {field: self.checked(value, field) for field, value in zip(self.texts, values, strict=False)}

    def checked(self, value: Any, name: str) -> Any:
        """Returns a text or a list of words, or raises Malformed if it is empty and the task needs one."""
        if self.needs_text and not (value.strip() if isinstance(value, str) else value):
            raise Malformed(f"an empty {name!r}")
        return value

    def from_object(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a JSON object by field."""
        values = {}
        for field in self.texts:
            key = find_key(row, self._names[field])
            values[field] = self.checked(self.value(row, field, key), key)
        if id_key := next((key for key in self._names["id"] if row.get(key) is not None), ""):
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
    """Reads rows of texts, as in a table.

    Args:
        file_format: as in `LineReader`.
        names: as in `LineReader`.
        choices: the columns of the choices, or the single column of lists of them; empty for tasks without.
        count: the number of choices of a row.
    """

    def __init__(
        self, file_format: str, names: Mapping[str, str], choices: Sequence[str] = (), count: int = 0
    ):
        super().__init__(file_format, names)
        self._choices, self._count = choices, count
        self.columns += [f"choice {number}" for number in range(count)]

    def from_text(self, text: str) -> dict[str, Any]:
        """Returns the values of a line of plain text by field; choices come last."""
        values = super().from_text(text)
        return values | ({"choices": text.split("\t")[len(self.texts) :]} if self._count else {})

    def from_object(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a JSON object, whose choices are in their columns or in a list `choices`."""
        values = super().from_object(row)
        if self._count:
            if len(self._choices) > 1 and all(name in row for name in self._choices):
                found = [row[name] for name in self._choices]
            else:
                found = row[find_key(row, [*(() if len(self._choices) > 1 else self._choices), "choices"])]
            if not isinstance(found, list) or len(found) != self._count:
                raise Malformed(f"expected {self._count} choices, as the model was trained with")
            values["choices"] = json_text(found, "choices", "choices")
        return values

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Examples:
        """Returns the rows of parsed lines, without labels."""
        out = Examples(SOURCE)
        for line, row in rows:
            out.rows = line  # the number of a row without an id
            add_row(out, row, {field: [field] for field in row})
        out.rows = len(rows)
        return out
