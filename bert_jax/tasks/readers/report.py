"""Counts the malformed rows of a file, and rejects a file that has too many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import ClassVar, Self, TypeVar

from bert_jax.errors import UserError
from bert_jax.io.wording import counted

MAX_MALFORMED = 0.05  # fraction of malformed rows above which a file is rejected
_MAX_DESCRIBED = 5

Row = TypeVar("Row")


class Malformed(Exception):
    """Raised for a row that cannot be parsed; the message says why."""


@dataclasses.dataclass(kw_only=True)
class FileReport:
    """Base class of the examples read from one file. Subclasses define `path`.

    Attributes:
        unit: what a row is called in messages, in the singular.
        columns: the names of the lists that have an entry for each example, or are empty.
        path: the path of the file.
        rows: the number of rows of the file, including the malformed ones, which are left out of the
            examples.
        malformed_count: the number of malformed rows.
        malformed: descriptions of the first few malformed rows, with file and line.
        notes: descriptions of what was corrected while reading.
    """

    unit: ClassVar[str] = "row"
    columns: ClassVar[tuple[str, ...]] = ()
    path: str

    rows: int = 0
    malformed_count: int = 0
    malformed: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def fill(self, rows: Iterable[tuple[str, Row | Malformed]], add: Callable[[Row], None]) -> None:
        """Reads all rows, and leaves out and counts the malformed ones.

        Args:
            rows: (file and line, row) for each row; a row that cannot be parsed is a `Malformed`.
            add: adds a row to the examples; may raise `Malformed`.
        """
        for place, row in rows:
            self.rows += 1
            try:
                if isinstance(row, Malformed):
                    raise row
                add(row)
            except Malformed as error:
                self.leave_out(f"{place}: {error}")

    def leave_out(self, description: str) -> None:
        """Counts one malformed row, with a description for messages."""
        self.malformed_count += 1
        if len(self.malformed) < _MAX_DESCRIBED:
            self.malformed.append(description)

    def check(self, max_malformed: float = MAX_MALFORMED) -> None:
        """Raises UserError if the fraction of malformed rows exceeds `max_malformed`."""
        if self.malformed_count > max_malformed * self.rows:
            limit = f"more than {max_malformed:.0%}" if max_malformed else "and none may be"
            raise UserError(
                f"{self.malformed[0]} ({self._malformed('is', 'are')} malformed, {limit}: nothing was read)"
            )

    def note_unknown(self, problems: Iterable[str]) -> None:
        """Notes the examples with a label that training lacks, which count as errors.

        Each has a problem, the label with file and line; the others have "". Raises UserError if they are
        half of the rows or more: the file is probably not one of this task.
        """
        if found := list(filter(None, problems)):
            what = f"{len(found)} of {counted(self.rows, self.unit)} with a label that training lacks"
            if 2 * len(found) >= self.rows:
                raise UserError(f"{found[0]} ({what}); is this a file with the labels of the training file?")
            self.notes.append(f"{what}, counted as errors (first: {found[0]})")

    def first(self, count: int) -> Self:
        """Returns the first examples, or all if `count` is 0."""
        if not count:
            return self
        return dataclasses.replace(self, **{name: getattr(self, name)[:count] for name in self.columns})

    def warning(self) -> str:
        """Returns a one-line warning about what was left out or corrected; empty if nothing was."""
        parts = list(self.notes)
        if self.malformed_count:
            parts.insert(
                0,
                f"{self._malformed('is malformed and was', 'are malformed and were')} left out "
                f"(first: {self.malformed[0]})",
            )
        return f"{self.path}: {'; '.join(parts)}" if parts else ""

    def warn(self, log: Callable[[str], None]) -> None:
        """Logs `warning`, if there is one."""
        if warning := self.warning():
            log(f"warning: {warning}")

    def _malformed(self, one: str, several: str) -> str:
        """Returns the numbers of malformed rows and of all rows, and the verb for the former."""
        verb = one if self.malformed_count == 1 else several
        return f"{self.malformed_count} of {counted(self.rows, self.unit)} {verb}"
