"""Readers of examples from the lines of a stream."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bert_jax.io.wording import counted
from bert_jax.tasks.table import Examples, Malformed, add_row, find_key, json_text, parse_object

SOURCE = "standard input"
FIELDS = ("text_a", "text_b", "id")


class LineReader(abc.ABC):
    """Base class of the readers that parse a line into an example of a task.

    A line that begins with a brace is a JSON object, whose fields have the names of the training file, of
    `own_names` or of `FIELDS`. Any other line is plain text, in which tabs separate the texts of the example.

    Args:
        names: the names of `text_a`, `text_b` and `id` in the training file; empty for a field that it lacks.

    Attributes:
        columns: the names of the columns of a line of plain text.
    """

    own_names: ClassVar[Mapping[str, str]] = dict(zip(FIELDS, FIELDS, strict=True))

    def __init__(self, names: Mapping[str, str]):
        self._texts = [field for field in ("text_a", "text_b") if names[field]]
        # A number is the position of a column, which a JSON object does not have.
        self._names = {
            field: [
                name
                for name in (names[field], self.own_names[field], field)
                if name and not name.lstrip("-").isdecimal()
            ]
            for field in FIELDS
        }
        self.columns = [self._names[field][0] for field in self._texts]

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
        is_object = text.lstrip().startswith("{")
        return self.from_object(parse_object(text)) if is_object else self.from_text(text)

    def from_text(self, text: str) -> dict[str, Any]:
        """Returns the values of a line of plain text by field."""
        values = text.split("\t")
        if len(values) != len(self.columns):
            what = counted(len(values), "column")
            raise Malformed(f"{what}, expected {self.expected}, or an object of JSON")
        return self.from_object(dict(zip(self.columns, values, strict=True)))

    def from_object(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a JSON object by field."""
        keys = {field: find_key(row, self._names[field]) for field in self._texts}
        values = {field: self.value(row, field, key) for field, key in keys.items()}
        if id_key := next((key for key in self._names["id"] if row.get(key) is not None), ""):
            values["id"] = json_text(row[id_key], "id", id_key)
        return values

    def value(self, row: Mapping[str, Any], field: str, key: str) -> Any:
        """Returns the value of a text field of a JSON object."""
        return json_text(row[key], field, key)

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Any:
        """Returns the examples of parsed lines, of the same type as those of `FinetuneTask.read`.

        Args:
            rows: (line number from 1, values that `parse` returned) for each line. The id of a line without
                one is its number from 0.
        """
        return self.collect([{"id": str(line - 1), **row} for line, row in rows])

    @abc.abstractmethod
    def collect(self, rows: Sequence[dict[str, Any]]) -> Any:
        """Returns the examples of parsed lines with ids."""


class TableLines(LineReader):
    """Reads rows of texts, as in a table.

    Args:
        names: as in `LineReader`.
        choices: the columns of the choices, or the single column of lists of them; empty for tasks without.
        count: the number of choices of a row.
    """

    def __init__(self, names: Mapping[str, str], choices: Sequence[str] = (), count: int = 0):
        super().__init__(names)
        several = len(choices) > 1
        self._choices = choices if several else [f"choice {number}" for number in range(count)]
        self._lists = ["choices"] if several else [*choices, "choices"]
        self.columns += self._choices

    def from_object(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a JSON object, whose choices are in their columns or in a list `choices`."""
        values = super().from_object(row)
        if self._choices:
            in_columns = all(name in row for name in self._choices)
            found = [row[n] for n in self._choices] if in_columns else row[find_key(row, self._lists)]
            if not isinstance(found, list) or len(found) != len(self._choices):
                raise Malformed(f"expected {len(self._choices)} choices, as the model was trained with")
            values["choices"] = json_text(found, "choices", "choices")
        return values

    def collect(self, rows: Sequence[dict[str, Any]]) -> Examples:
        """Returns the rows of parsed lines, without labels."""
        out = Examples(SOURCE, rows=len(rows))
        for row in rows:
            add_row(out, row, {field: [field] for field in row})
        return out
