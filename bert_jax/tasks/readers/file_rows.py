"""Rows of TSV, CSV and JSON-lines files, with the line that each begins in."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from bert_jax.errors import UserError
from bert_jax.io import compression, files
from bert_jax.tasks.readers.report import Malformed

LABEL_SEPARATOR = ","  # of several labels in one column
LONGEST_LINE = 32 << 20  # bytes, decompressed; so that one line cannot fill the memory
TRAINING_FLAGS = "--config.data."  # begins the names of the flags by which a training reads a table
CHOICE = "choice "  # and its number: the field of a possible answer


def read_lines(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of an open file, with their newlines.

    Raises:
        UserError: A line is longer than LONGEST_LINE, or the file cannot be read or decompressed.
    """
    number = 0
    try:
        with compression.decompressed(file, path) as content:
            while line := content.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise UserError(
                        f"{path}:{number}: the line is longer than {LONGEST_LINE >> 20} MiB; expected one "
                        "row on each line"
                    )
                yield line
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


class Lines:
    """The decoded lines of a file, newline kept; a line that is not UTF-8 is decoded with U+FFFD and
    remembered.
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
    """Opens a file of rows. Raises UserError if it cannot be opened."""
    try:
        return files.open_read(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


class TableRows:
    """Rows of a TSV or CSV file as (line, list of fields); the header, if any, is read on construction."""

    tabular = True

    def __init__(
        self,
        path: str,
        lines: Lines,
        header: bool,
        delimiter: str,
        quoted: bool,
        flags: str = TRAINING_FLAGS,
    ):
        self._path = path
        self._flags = flags
        self._lines = lines
        self._rows = self._quoted(delimiter) if quoted else self._plain(delimiter)
        self._delimiter = delimiter
        self._header: list[str] | None = None
        self._width = 0
        if header:
            first = next(self._rows, None)
            if first is None:
                raise UserError(f"{path}: the file is empty")
            if isinstance(first[1], Malformed):
                raise UserError(f"{path}:{first[0]}: {first[1]}")
            self._header = [name.strip() for name in first[1]]
            self._width = len(self._header)

    def _plain(self, delimiter):
        for number, line in enumerate(self._lines, 1):
            line = line.removesuffix("\n").removesuffix("\r")
            if line:
                bad = number in self._lines.undecodable
                yield number, Malformed("not UTF-8") if bad else line.split(delimiter)

    def _quoted(self, delimiter):
        # A text may be longer than the module's default of 128 KiB; the limit is global, so it is only ever
        # raised.
        csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
        reader = csv.reader(iter(self._lines), delimiter=delimiter, strict=True)
        while True:
            start = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # Past a broken quote, where rows begin is a guess.
                what = f"{error} in the row that starts here; is a quote left open?"
                if "new-line character" in str(error):
                    what = "a carriage return inside a row; is it a text file, with a row a line?"
                raise UserError(f"{self._path}:{start}: {what}") from None
            if not fields:
                continue
            if not self._lines.undecodable.isdisjoint(range(start, reader.line_num + 1)):
                yield start, Malformed("not UTF-8")
            else:
                yield start, fields

    def __iter__(self):
        return self._rows

    def selector(
        self, wanted: dict[str, str], optional: set[str]
    ) -> Callable[[Sequence[str]], dict[str, str]]:
        """A function from a row to the wanted fields; the columns are looked up once."""
        places = {}
        for field, column in wanted.items():
            place = self._find(field, column, field in optional)
            if place is not None:
                places[field] = place

        def select(row):
            if not self._width:
                self._width = len(row)
            if len(row) != self._width:
                expected = "in the header" if self._header else "in the first row"
                raise Malformed(f"{len(row)} columns, {self._width} {expected}")
            for field, place in places.items():
                if place >= len(row):
                    raise Malformed(f"no column {place} for {field}: the row has {len(row)}")
            return {field: row[place] for field, place in places.items()}

        return select

    def _find(self, field, column, optional):
        header = self._header
        if header is None:
            if not _is_number(column):
                raise UserError(
                    f"{self._name(field)}={column}: {self._path} is read without a header, so columns are "
                    f"numbers from 0 (or set {self._flags}header=true)"
                )
            return int(column)
        if header.count(column) > 1:
            raise UserError(
                f"{self._path}: {header.count(column)} columns are called {column!r}; give its number from 0"
            )
        if column in header:
            return header.index(column)
        if _is_number(column) and int(column) < len(header):
            return int(column)
        if optional:
            return None
        hint = "; a file without labels is one for `bert-jax predict`" if field == "label" else ""
        other = {"\t": ",", ",": "\t"}[self._delimiter]
        if len(header) == 1 and other in header[0]:
            hint += f"; is it {'CSV' if other == ',' else 'TSV'}? ({self._flags}format)"
        if self._flags != TRAINING_FLAGS and field == "text_a":
            hint += (
                f"; if the first line is no header, give --noheader --{field}=0, or the text's other place"
            )
        shown = ", ".join(repr(name[:40]) for name in header[:20])
        raise UserError(
            f"{self._path}:1: no column {column!r} for {self._name(field)}; the header has {shown}{hint}"
        )

    def _name(self, field: str) -> str:
        """What the user calls a field: a training's by its place in the configuration."""
        return f"data.{field}" if self._flags == TRAINING_FLAGS else f"{self._flags}{field}"


def _is_number(column: str) -> bool:
    return column.isdecimal() and len(column) < 10


class LineRows:
    """Lines that are one text each, blank ones included, as (line, text)."""

    tabular = False

    def __init__(self, lines: Lines):
        self._lines = lines

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(self._lines, 1):
            # A malformed row would be left out, and the lines of the output no longer be those of the input.
            yield number, line.removesuffix("\n").removesuffix("\r")

    def selector(self, wanted: dict[str, str], optional: set[str]) -> Callable[[str], dict[str, str]]:
        return lambda text: {"text_a": text}


class JsonRows:
    """Rows of a JSON-lines file as (line, dict)."""

    tabular = False

    def __init__(self, path: str, lines: Lines):
        self._path = path
        self._lines = lines

    def __iter__(self):
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

    def selector(self, wanted: dict[str, str], optional: set[str]) -> Callable[[dict], dict[str, str]]:
        def select(row):
            values = {}
            for field, key in wanted.items():
                if key not in row or row[key] is None:
                    if field in optional:
                        values[field] = None
                        continue
                    raise Malformed(
                        f"no {key!r} in the object; it has {', '.join(map(repr, list(row)[:20]))}"
                    )
                values[field] = json_text(row[key], field, key)
            return values

        return select


def parse_object(line):
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise Malformed(f"not JSON: {reason} (one object a line is expected)") from None
    if not isinstance(row, dict):
        raise Malformed("a JSON value that is no object")
    return row


def json_text(value, field, key):
    if isinstance(value, str):
        # json.loads lets a lone surrogate through, which no encoder takes.
        return value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    if field.startswith(CHOICE) and isinstance(value, list):
        return [json_text(one, "choice", key) for one in value]
    if field == "label" and isinstance(value, list):
        return LABEL_SEPARATOR.join(json_text(one, field, key) for one in value)
    if field in ("label", "id") and isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise Malformed(f"{key!r} is {type(value).__name__}, expected a string")
