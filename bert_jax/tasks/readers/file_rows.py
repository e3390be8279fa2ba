"""Readers of the rows of TSV, CSV and JSON lines files, with the line number of each row."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from bert_jax.errors import UserError, reading
from bert_jax.io import columnar, compression, files
from bert_jax.io.wording import counted
from bert_jax.tasks.readers.file_formats import PREDICT_FLAGS, TRAINING_FLAGS
from bert_jax.tasks.readers.json_values import CHOICE, NEGATIVE, find_key, json_text, parse_object
from bert_jax.tasks.readers.report import Malformed

LONGEST_LINE = 32 << 20  # bytes, decompressed; so that one line cannot fill the memory
_LISTS = {CHOICE: "data.choices", NEGATIVE: "data.negatives"}  # the settings that name their columns


def read_lines(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of an open file, with their newlines.

    Raises:
        UserError: a line is longer than LONGEST_LINE, or the file cannot be decompressed.
        StorageError: the disk or the bucket failed.
    """
    number = 0
    with reading(path), compression.decompressed(file, path) as content:
        while line := content.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise UserError(
                    f"{path}:{number}: the line is longer than {LONGEST_LINE >> 20} MiB; expected one "
                    "row on each line"
                )
            yield line


class Lines:
    """Iterates over the decoded lines of a file, with their newlines.

    Invalid bytes of a line that is not UTF-8 are decoded as U+FFFD.

    Attributes:
        undecodable: the numbers, from 1, of the lines so far that are not UTF-8.
    """

    def __init__(self, path: str):
        self.undecodable: set[int] = set()
        self._path = path

    def __iter__(self) -> Iterator[str]:
        with open_file(self._path) as file:
            for number, raw in enumerate(read_lines(self._path, file), 1):
                if number == 1:
                    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                        raise UserError(f"{self._path}: UTF-16, expected UTF-8; try iconv -f UTF-16 -t UTF-8")
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                try:
                    yield raw.decode("utf-8")
                except UnicodeDecodeError:
                    self.undecodable.add(number)
                    yield raw.decode("utf-8", "replace")


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading bytes. Raises the errors of `errors.reading` if it cannot be opened."""
    with reading(path):
        return files.open_read(path)


Selector = Callable[[Any], dict[str, Any]]


class TableRows:
    """Iterates over the rows of a TSV or CSV file as (line, list of fields).

    A malformed row is yielded as (line, Malformed). The header, if any, is read on construction.

    Args:
        path: the path of the file, for messages.
        lines: the lines of the file.
        header: whether the first row names the columns.
        delimiter: the character between two fields.
        quoting: "csv" or "auto" if quotes delimit fields, as in CSV, and "none" if they are text. With
            "auto", a quoted field of a TSV file with a tab and a newline is an error: it may be two rows.
        flags: the prefix of flags in messages; "" for a file whose format and columns no flag chooses.
    """

    def __init__(
        self,
        path: str,
        lines: Lines,
        header: bool,
        delimiter: str,
        quoting: str = "auto",
        flags: str = TRAINING_FLAGS,
    ):
        self._path, self._lines, self._delimiter, self._flags = path, lines, delimiter, flags
        rows = self._plain() if quoting == "none" else self._quoted(quoting == "auto" and delimiter == "\t")
        self._header: list[str] | None = None
        self._width = 0
        if header:
            first = next(filter(lambda numbered: numbered[1], rows), None)
            if first is None:
                raise UserError(f"{path}: the file is empty")
            if isinstance(first[1], Malformed):
                raise UserError(f"{path}:{first[0]}: {first[1]}")
            self._header = [name.strip() for name in first[1]]
            self._width = len(self._header)
        self._rows = self._with_blank_texts(rows)

    def _plain(self) -> Iterator[tuple[int, list[str] | Malformed]]:
        """Yields the rows of a file without quotes; a blank line has no fields."""
        for number, line in enumerate(self._lines, 1):
            line = line.removesuffix("\n").removesuffix("\r")
            fields = line.split(self._delimiter) if line else []
            yield number, Malformed("not UTF-8") if number in self._lines.undecodable else fields

    def _quoted(self, may_be_plain: bool) -> Iterator[tuple[int, list[str] | Malformed]]:
        """Yields the rows of a file with quotes; a blank line has no fields."""
        plain = f"; if quotes are text, give {TRAINING_FLAGS}quoting=none" * (self._flags == TRAINING_FLAGS)
        # A text may be longer than the csv module's default limit of 128 KiB. The limit is global to the
        # process, so it is never lowered.
        csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
        reader = csv.reader(iter(self._lines), delimiter=self._delimiter, strict=True)
        while True:
            start = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # After an unbalanced quote, the beginnings of the following rows cannot be determined.
                what = f"{error} in the row that starts here; is a quote left open?"
                if "new-line character" in str(error):
                    what = "a carriage return inside a row; is it a text file, with a row a line?"
                raise UserError(f"{self._path}:{start}: {what}{plain}") from None
            if may_be_plain and any("\t" in field and "\n" in field for field in fields):
                raise UserError(
                    f"{self._path}:{start}: a quoted field with a tab and a newline{plain}, else csv"
                )
            if not self._lines.undecodable.isdisjoint(range(start, reader.line_num + 1)):
                yield start, Malformed("not UTF-8")
            else:
                yield start, fields

    def _with_blank_texts(
        self, rows: Iterator[tuple[int, list[str] | Malformed]]
    ) -> Iterator[tuple[int, list[str] | Malformed]]:
        """Yields the rows, and blank lines where they are rows with an empty text.

        They are in a file of one column, unless it is for training, so that predictions have a row for each.
        """
        keep = self._flags != TRAINING_FLAGS
        leading: list[int] = []  # without a header, the first row has the number of columns
        for number, row in rows:
            if row:
                if not isinstance(row, Malformed) and len(row) == 1:
                    yield from ((line, [""]) for line in leading)
                leading.clear()
                yield number, row
            elif keep and not self._width:
                leading.append(number)
            elif keep and self._width == 1:
                yield number, [""]

    def __iter__(self) -> Iterator[tuple[int, list[str] | Malformed]]:
        return self._rows

    def selector(self, wanted: Mapping[str, str]) -> Selector:
        """Returns a function that returns the values of the wanted fields of a row, or raises `Malformed`.

        Args:
            wanted: the name or number of the column of each field.

        Raises:
            UserError: columns are missing, or one is ambiguous.
        """
        header = self._header
        if header is not None and (missing := {x: y for x, y in wanted.items() if not _has(header, y)}):
            shown = ", ".join(repr(name[:40]) for name in header[:20])
            what = f"{_no_columns(missing, self._flags)}; the header has {shown}"
            raise UserError(f"{self._path}:1: {what}{self._hint(header, missing)}")
        places = {field: self._find(field, column) for field, column in wanted.items()}

        def select(row: list[str]) -> dict[str, str]:
            self._width = self._width or len(row)
            if len(row) != self._width:
                expected = "in the header" if self._header else "in the first row"
                raise Malformed(f"{counted(len(row), 'column')}, {self._width} {expected}")
            for field, place in places.items():
                if place >= len(row):
                    where = _setting(field, self._flags)
                    raise Malformed(
                        f"no column {place} for {where}: the row has {len(row)}{self._separator(row)}"
                    )
            return {field: row[place] for field, place in places.items()}

        return select

    def _find(self, field: str, column: str) -> int:
        header = self._header
        if header is None:
            if not _is_number(column):
                raise UserError(
                    f"{_setting(field, self._flags)}={column}: {self._path} is read without a header, so "
                    f"columns are numbers from 0 (or set {self._flags}header=true)"
                )
            return int(column)
        if header.count(column) > 1:
            raise UserError(
                f"{self._path}: {header.count(column)} columns are called {column!r}; give its number from 0"
            )
        return header.index(column) if column in header else int(column)

    def _hint(self, header: Sequence[str], missing: Mapping[str, str]) -> str:
        """Returns what may help if the columns of these fields are missing, to end a message; or ""."""
        training = self._flags == TRAINING_FLAGS
        unlabeled = training and [*missing] == ["label"]
        hint = "; a file without labels is one for `bert-jax predict`" if unlabeled else ""
        hint += self._separator(header)
        if self._flags == PREDICT_FLAGS and "text_a" in missing:
            hint += "; if the first line is not a header, give --noheader and numbers, such as --text_a=0"
        return hint

    def _separator(self, row: Sequence[str]) -> str:
        """Returns a hint at another separator if a row has a single column, else ""."""
        given, other = ("tsv", "csv") if self._delimiter == "\t" else ("csv", "tsv")
        if len(row) > 1 or not row:
            return ""
        if {"csv": ",", "tsv": "\t"}[other] in row[0]:
            what = f"({self._flags}format={other})" if self._flags else f"expected {given.upper()}"
            return f"; is it {other.upper()}? {what}"
        if ";" not in row[0]:
            return ""
        return "; are its columns separated by semicolons? write it with commas or tabs between them"


def _setting(field: str, flags: str) -> str:
    """Returns the name of a field for messages: of the configuration in training, else of the flag."""
    for kind, setting in _LISTS.items():  # which predictions have no flags for
        if field.startswith(kind):
            return setting
    return f"data.{field}" if flags == TRAINING_FLAGS else f"{flags}{field}"


def read_strictly(path: str, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the place and {column: text} of each row of a TSV file with a header.

    The place is the path and the line, for messages.

    Raises:
        UserError: a column is missing, or a row is malformed.
    """
    rows = TableRows(path, Lines(path), header=True, delimiter="\t", flags="")
    select = rows.selector({name: name for name in columns})
    for number, row in rows:
        try:
            if isinstance(row, Malformed):
                raise row
            found = select(row)
        except Malformed as error:
            raise UserError(f"{path}:{number}: {error}") from None
        yield f"{path}:{number}", found


def _no_columns(missing: Mapping[str, str], flags: str) -> str:
    """Returns the beginning of a message that names the missing columns and their fields."""
    named = [
        f"{column!r} for {_setting(field, flags)}" if flags else repr(column)
        for field, column in missing.items()
    ]
    return f"no column{'s' if len(named) > 1 else ''} {', '.join(named)}"


def _has(header: Sequence[str], column: str) -> bool:
    return column in header or (_is_number(column) and int(column) < len(header))


def _is_number(column: str) -> bool:
    return column.isdecimal() and len(column) < 10


class LineRows:
    """Iterates over the texts of a file with one text per line, including blank lines.

    They are yielded as (line, text), or (line, Malformed).
    """

    def __init__(self, lines: Lines):
        self._lines = lines

    def __iter__(self) -> Iterator[tuple[int, str | Malformed]]:
        for number, line in enumerate(self._lines, 1):
            bad = number in self._lines.undecodable
            yield number, Malformed("not UTF-8") if bad else line.removesuffix("\n").removesuffix("\r")

    def selector(self, wanted: Mapping[str, str]) -> Selector:
        """Returns a function that returns a line as `text_a`."""
        return lambda text: {"text_a": text}


class JsonRows:
    """Iterates over the rows of a JSON lines file as (line, dict), or (line, Malformed)."""

    def __init__(self, path: str, lines: Lines):
        self._path = path
        self._lines = lines

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any] | Malformed]]:
        for number, line in enumerate(self._lines, 1):
            if not line.strip():
                continue
            if number in self._lines.undecodable:
                yield number, Malformed("not UTF-8")
                continue
            try:
                yield number, parse_object(line)
            except Malformed as error:
                yield number, error

    def selector(self, wanted: Mapping[str, str]) -> Selector:
        """Returns a function that selects the values of an object as texts."""

        def select(row: dict[str, Any]) -> dict[str, Any]:
            return {field: json_text(row[find_key(row, [key])], field, key) for field, key in wanted.items()}

        return select


class ColumnRows:
    """Iterates over the rows of a Parquet or Arrow file as (row from 1, dict).

    Args:
        path: the path of the file.
        flags: the prefix of flags in messages.
    """

    def __init__(self, path: str, flags: str = TRAINING_FLAGS):
        self._table, self._flags = columnar.Table(path), flags
        self._wanted: list[str] = []

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return enumerate(self._table.rows(self._wanted), 1)

    def selector(self, wanted: Mapping[str, str]) -> Selector:
        """Returns a function that selects the values of a row as texts.

        Raises:
            UserError: columns are missing.
        """
        names = self._table.columns
        if missing := {field: column for field, column in wanted.items() if column not in names}:
            shown = ", ".join(map(repr, names[:20]))
            raise UserError(f"{self._table.path}: {_no_columns(missing, self._flags)}; there are {shown}")
        self._wanted = list(dict.fromkeys(wanted.values()))

        def select(row: dict[str, Any]) -> dict[str, Any]:
            return {field: json_text(row[key], field, key) for field, key in wanted.items()}

        return select


Rows = TableRows | LineRows | JsonRows | ColumnRows
