"""What was left out of a file because it is malformed, and when that is too much."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bert_jax.errors import UserError

MAX_MALFORMED = 0.05  # share of a file's rows above which the file is refused
_MAX_DESCRIBED = 5


class Malformed(Exception):
    """What is wrong with one row."""


@dataclasses.dataclass(kw_only=True)
class FileReport:
    """The base of everything that is read from one file; a subclass has the `path`.

    Attributes:
        rows: the rows of the file, including the malformed ones, which are left out of the examples.
        malformed_count: the number of malformed rows.
        malformed: descriptions of the first few of them, with file and line.
        notes: what was corrected while reading.
    """

    unit: ClassVar[str] = "rows"
    path: str

    rows: int = 0
    malformed_count: int = 0
    malformed: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def leave_out(self, description: str) -> None:
        """Counts one malformed row."""
        self.malformed_count += 1
        if len(self.malformed) < _MAX_DESCRIBED:
            self.malformed.append(description)

    def check(self, max_malformed: float = MAX_MALFORMED) -> None:
        """Raises UserError if the share of malformed rows is above `max_malformed`."""
        if self.malformed_count > max_malformed * self.rows:
            raise UserError(
                f"{self.malformed[0]} ({self.malformed_count} of {self.rows} {self.unit} are malformed, more "
                f"than {max_malformed:.0%}: nothing was read)"
            )

    def warning(self) -> str:
        """Returns one line on what was left out or corrected; an empty text if nothing was."""
        parts = list(self.notes)
        if self.malformed_count:
            parts.insert(
                0,
                f"{self.malformed_count} of {self.rows} {self.unit} are malformed and were left out "
                f"(first: {self.malformed[0]})",
            )
        return f"{self.path}: {'; '.join(parts)}" if parts else ""
