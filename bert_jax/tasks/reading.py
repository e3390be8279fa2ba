"""Labelled examples from TSV, CSV and JSON-lines files, with the file and line of everything that is wrong.

TSV is read as GLUE writes it: a tab separates, a newline ends the row, and a quote is a character like any
other. CSV follows RFC 4180: a quoted field may hold commas and newlines. JSON-lines holds one object a line.
"""

import csv
import dataclasses
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bert_jax.errors import UserError

FORMATS = ("tsv", "csv", "jsonl")
MAX_MALFORMED = 0.05
LABEL_SEPARATOR = ","  # of several labels in one column
PREPARED = "tfds:"  # begins the path of what tensorflow-datasets prepared
_CHOICE = "choice "  # and its number


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where a file keeps what an example needs: column names, or numbers from 0. Empty: there is no such
    column."""

    text_a: str
    text_b: str = ""
    label: str = ""
    id: str = ""
    header: bool = True
    choices: str = ""  # of each possible answer, with commas between; or one of JSON lists


@dataclasses.dataclass
class Examples:
    """The rows of one file, column by column: entry i of every list belongs to the same row.

    `labels` is None when labels were not asked for, or when the file has no such column and may lack it.
    `rows` counts the malformed rows too, which are left out of the lists; `malformed` describes the first
    few.
    """

    path: str
    ids: list[str]
    texts_a: list[str]
    texts_b: list[str] | None
    labels: list | None
    lines: list[int]
    rows: int
    malformed_count: int
    malformed: list[str]
    choices: list[list[str]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, i: int) -> str:
        """FILE:LINE of example i."""
        return f"{self.path}:{self.lines[i]}"

    def warning(self) -> str:
        """One line on the rows that were left out; empty when there were none."""
        if not self.malformed_count:
            return ""
        return (
            f"{self.path}: {self.malformed_count} of {self.rows} rows are malformed and were left out "
            f"(first: {self.malformed[0]})"
        )


class _Malformed(Exception):
    """What is wrong with one row."""


def detect_format(path: str, file_format: str = "auto") -> str:
    """The format by name, or by the file's suffix (before .gz) when it is "auto"."""
    if file_format in FORMATS:
        return file_format
    if file_format != "auto":
        raise UserError(f"data.format={file_format}: expected auto, {', '.join(FORMATS)}")
    name = str(path).removesuffix(".gz")
    for suffix, found in (
        (".tsv", "tsv"),
        (".csv", "csv"),
        (".jsonl", "jsonl"),
        (".json", "jsonl"),
        (".ndjson", "jsonl"),
    ):
        if name.lower().endswith(suffix):
            return found
    raise UserError(
        f"{path}: the name ends in none of .tsv, .csv, .jsonl; say which it is with --config.data.format"
    )


def read_examples(
    path: str,
    columns: Columns,
    *,
    file_format: str = "auto",
    quoting: str = "auto",
    parse_label: Callable[[str], object] | None = str,
    label_optional: bool = False,
    label_may_be_empty: bool = False,
    max_malformed: float = MAX_MALFORMED,
) -> Examples:
    """Reads a whole file of examples.

    Args:
      path: a TSV, CSV or JSON-lines file in UTF-8, with or without a byte-order mark, possibly gzipped; or
        what `glue_prepared.find` gave.
      columns: which columns to read.
      file_format: "tsv", "csv", "jsonl", or "auto" for the suffix.
      quoting: "none", "csv", or "auto": off in TSV, on in CSV.
      parse_label: turns a label's text into a value; a ValueError makes the row malformed. None: no labels
        are read.
      label_may_be_empty: an empty label is a label, and no malformed row.
      label_optional: a file without the label column is read as unlabelled, not refused.
      max_malformed: the share of malformed rows above which the file is refused.

    Returns:
      The examples in file order. An id is the id column's value, or the row's number from 0, malformed rows
      counted.

    Raises:
      UserError: a missing or empty file, a missing column, or too many malformed rows; with file and line.
    """
    if not columns.text_a:
        raise UserError(f"{path}: which column holds the text? give --config.data.text_a=COLUMN")
    if str(path).startswith(PREPARED):
        from bert_jax.tasks import glue_prepared  # which needs this module

        return glue_prepared.read(str(path), columns, parse_label)
    rows = _open_rows(str(path), columns, detect_format(path, file_format), quoting)
    wants_label = parse_label is not None and bool(columns.label)
    wanted = {"text_a": columns.text_a, "text_b": columns.text_b, "id": columns.id}
    wanted = {field: column for field, column in wanted.items() if column}
    choices = [column.strip() for column in columns.choices.split(",") if column.strip()]
    wanted |= {f"{_CHOICE}{number}": column for number, column in enumerate(choices)}
    optional = set()
    if wants_label:
        wanted["label"] = columns.label
        if label_optional:
            optional.add("label")
    select = rows.selector(wanted, optional)

    out = Examples(str(path), [], [], [] if columns.text_b else None, None, [], 0, 0, [])
    out.choices = [] if choices else None
    labels = []
    unlabelled = 0
    for line, row in rows:
        out.rows += 1
        try:
            if isinstance(row, _Malformed):
                raise row
            values = select(row)
            if choices:
                answers = _choices(values, len(choices), len(out.choices[0]) if out.choices else 0)
            label = None
            if wants_label and values.get("label") is None and label_optional:
                unlabelled += 1
            elif wants_label:
                label = _parse(values["label"], parse_label, columns.label, label_may_be_empty)
        except _Malformed as error:
            out.malformed_count += 1
            if len(out.malformed) < 5:
                out.malformed.append(f"{path}:{line}: {error}")
            continue
        out.ids.append(values.get("id", str(out.rows - 1)))
        out.texts_a.append(values["text_a"])
        if columns.text_b:
            out.texts_b.append(values["text_b"])
        if choices:
            out.choices.append(answers)
        labels.append(label)
        out.lines.append(line)

    if not out.rows:
        raise UserError(f"{path}: no rows{' after the header' if columns.header and rows.tabular else ''}")
    if 0 < unlabelled < len(labels):
        line = out.lines[labels.index(None)]
        raise UserError(
            f"{path}:{line}: no {columns.label!r} here, but other rows have it "
            f"({unlabelled} of {len(labels)} lack it)"
        )
    if out.malformed_count > max_malformed * out.rows:
        raise UserError(
            f"{out.malformed[0]} ({out.malformed_count} of {out.rows} rows are malformed, "
            f"more than {max_malformed:.0%}: nothing was read)"
        )
    if wants_label and not unlabelled:
        out.labels = labels
    return out


def _choices(values, count, expected):
    """The answers of a row, as many as the first row has."""
    answers = [values[f"{_CHOICE}{number}"] for number in range(count)]
    if isinstance(answers[0], list):
        answers = answers[0]
    if len(answers) < 2 or (expected and len(answers) != expected):
        found = f"{expected} in the first row" if expected else "expected 2 or more"
        raise _Malformed(f"{len(answers)} choices, {found}")
    return answers


def _parse(text, parse_label, column, may_be_empty):
    if text is None or (text.strip() == "" and not may_be_empty):
        raise _Malformed(f"an empty label in column {column!r}")
    try:
        return parse_label(text)
    except ValueError as error:
        raise _Malformed(str(error)) from None


def _open_rows(path: str, columns: Columns, file_format: str, quoting: str):
    if quoting not in ("auto", "none", "csv"):
        raise UserError(f"data.quoting={quoting}: expected auto, none or csv")
    check_file(path, file_format)
    lines = _Lines(path)
    if file_format == "jsonl":
        return _JsonRows(path, lines)
    quoted = quoting == "csv" or (quoting == "auto" and file_format == "csv")
    return _TableRows(path, lines, columns.header, "," if file_format == "csv" else "\t", quoted)


def check_file(path: str, expected: str) -> None:
    """Raises UserError unless a file is there; `expected` is what it should hold."""
    if not Path(path).exists():
        raise UserError(f"{path}: no such file")
    if Path(path).is_dir():
        raise UserError(f"{path}: is a directory, expected a {expected} file")


class _Lines:
    """The decoded lines of a file, newline kept; a line that is not UTF-8 is decoded with U+FFFD and
    remembered."""

    def __init__(self, path: str):
        self.undecodable: set[int] = set()
        self._path = path

    def __iter__(self) -> Iterator[str]:
        try:
            with (gzip.open if self._path.endswith(".gz") else open)(self._path, "rb") as file:
                for number, raw in enumerate(file, 1):
                    if number == 1:
                        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                            raise UserError(
                                f"{self._path}: UTF-16, expected UTF-8; try iconv -f UTF-16 -t UTF-8"
                            )
                        raw = raw.removeprefix(b"\xef\xbb\xbf")
                    try:
                        yield raw.decode("utf-8")
                    except UnicodeDecodeError:
                        self.undecodable.add(number)
                        yield raw.decode("utf-8", "replace")
        except (OSError, EOFError) as error:
            raise UserError(
                f"{self._path}: cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from None


class _TableRows:
    """Rows of a TSV or CSV file as (line, list of fields); the header, if any, is read on construction."""

    tabular = True

    def __init__(self, path: str, lines: _Lines, header: bool, delimiter: str, quoted: bool):
        self._path = path
        self._lines = lines
        self._rows = self._quoted(delimiter) if quoted else self._plain(delimiter)
        self._delimiter = delimiter
        self._header: list[str] | None = None
        self._width = 0
        if header:
            first = next(self._rows, None)
            if first is None:
                raise UserError(f"{path}: the file is empty")
            if isinstance(first[1], _Malformed):
                raise UserError(f"{path}:{first[0]}: {first[1]}")
            self._header = [name.strip() for name in first[1]]
            self._width = len(self._header)

    def _plain(self, delimiter):
        for number, line in enumerate(self._lines, 1):
            line = line.removesuffix("\n").removesuffix("\r")
            if line:
                bad = number in self._lines.undecodable
                yield number, _Malformed("not UTF-8") if bad else line.split(delimiter)

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
                raise UserError(
                    f"{self._path}:{start}: {error} in the row that starts here; is a quote left open?"
                ) from None
            if not fields:
                continue
            if not self._lines.undecodable.isdisjoint(range(start, reader.line_num + 1)):
                yield start, _Malformed("not UTF-8")
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
                raise _Malformed(f"{len(row)} columns, {self._width} {expected}")
            for field, place in places.items():
                if place >= len(row):
                    raise _Malformed(f"no column {place} for {field}: the row has {len(row)}")
            return {field: row[place] for field, place in places.items()}

        return select

    def _find(self, field, column, optional):
        header = self._header
        if header is None:
            if not column.isdecimal():
                raise UserError(
                    f"data.{field}={column}: {self._path} is read without a header, so columns are numbers "
                    "from 0 (or set --config.data.header=true)"
                )
            return int(column)
        if header.count(column) > 1:
            raise UserError(
                f"{self._path}: {header.count(column)} columns are called {column!r}; give its number from 0"
            )
        if column in header:
            return header.index(column)
        if column.isdecimal() and int(column) < len(header):
            return int(column)
        if optional:
            return None
        hint = "; a file without labels is one for `bert-jax predict`" if field == "label" else ""
        other = {"\t": ",", ",": "\t"}[self._delimiter]
        if len(header) == 1 and other in header[0]:
            hint += f"; is it {'CSV' if other == ',' else 'TSV'}? (--config.data.format)"
        shown = ", ".join(repr(name[:40]) for name in header[:20])
        raise UserError(
            f"{self._path}:1: no column {column!r} for data.{field}; the header has {shown}{hint}"
        )


class _JsonRows:
    """Rows of a JSON-lines file as (line, dict)."""

    tabular = False

    def __init__(self, path: str, lines: _Lines):
        self._path = path
        self._lines = lines

    def __iter__(self):
        for number, line in enumerate(self._lines, 1):
            if not line.strip():
                continue
            if number in self._lines.undecodable:
                yield number, _Malformed("not UTF-8")
                continue
            try:
                yield number, _parse_object(line)
            except _Malformed as error:
                yield number, error

    def selector(self, wanted: dict[str, str], optional: set[str]) -> Callable[[dict], dict[str, str]]:
        def select(row):
            values = {}
            for field, key in wanted.items():
                if key not in row or row[key] is None:
                    if field in optional:
                        values[field] = None
                        continue
                    raise _Malformed(
                        f"no {key!r} in the object; it has {', '.join(map(repr, list(row)[:20]))}"
                    )
                values[field] = _json_text(row[key], field, key)
            return values

        return select


def _parse_object(line):
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise _Malformed(f"not JSON: {reason} (one object a line is expected)") from None
    if not isinstance(row, dict):
        raise _Malformed("a JSON value that is no object")
    return row


def _json_text(value, field, key):
    if isinstance(value, str):
        # json.loads lets a lone surrogate through, which no encoder takes.
        return value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    if field.startswith(_CHOICE) and isinstance(value, list):
        return [_json_text(one, "choice", key) for one in value]
    if field == "label" and isinstance(value, list):
        return LABEL_SEPARATOR.join(_json_text(one, field, key) for one in value)
    if field in ("label", "id") and isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise _Malformed(f"{key!r} is {type(value).__name__}, expected a string")
