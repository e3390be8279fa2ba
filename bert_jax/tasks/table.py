"""Reads examples from TSV, CSV, JSON lines, Parquet and Arrow files, and from the lines of a stream.

TSV follows the rules of CSV (RFC 4180) with tabs, as written by pandas, except that quotes are ordinary
characters in benchmarks' TSV files (`Columns.quotes`). Malformed rows are skipped and counted. More than 5%
malformed rows are an error that names the file and the line.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from bert_jax import hub
from bert_jax.errors import UserError, reading
from bert_jax.io import checks, columnar, comma_lists, compression, files
from bert_jax.io.wording import alternatives, counted

MAX_MALFORMED = 0.05  # fraction of malformed rows above which a file is rejected
LABEL_SEPARATOR = ","  # separates the labels of a multi-label column
STSB = "sentence1,sentence2,score"  # the columns of GLUE's STS-B
# Formats: Parquet and Arrow; one text per line, for prediction only.
COLUMNAR, LINES = "columnar", "lines"
FOLDER = ".."  # as the language column: the name of the file's folder is the language
FORMATS: Mapping[str, str] = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl",
    **dict.fromkeys(columnar.SUFFIXES, COLUMNAR),
}  # fmt: skip
_MAX_DISTINCT = 0.5  # with more distinct labels per row, the column is probably not the label
_MAX_SHOWN = 10  # labels in a message


class Malformed(Exception):
    """Raised for a row that cannot be parsed; the message gives the reason."""


@dataclasses.dataclass(kw_only=True)
class FileReport:
    """Base class of the examples read from one file.

    Attributes:
        columns: the names of the lists with one entry per example; they may be empty.
        rows: the number of rows of the file, including malformed rows, which are not examples.
        notes: other warnings about the file.
    """

    unit: ClassVar[str] = "row"
    columns: ClassVar[tuple[str, ...]] = ()
    path: str

    rows: int = 0
    malformed: int = 0
    first_malformed: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)

    def fill(self, rows: Iterable[tuple[str, Any]], add: Callable[[Any], None]) -> None:
        """Calls `add`, which may raise `Malformed`, with each valid row, and counts malformed rows.

        `rows` yields (file and line, row); a `Malformed` stands for a row that cannot be parsed.
        """
        for place, row in rows:
            self.rows += 1
            try:
                if isinstance(row, Malformed):
                    raise row
                add(row)
            except Malformed as error:
                self.malformed += 1
                self.first_malformed = self.first_malformed or f"{place}: {error}"

    def check(self, max_malformed: float = MAX_MALFORMED) -> None:
        """Raises UserError if there are no rows or too many malformed rows."""
        if not self.rows:
            raise UserError(f"{self.path} has no {self.unit}s")
        if self.malformed > max_malformed * self.rows:
            what = f"{self.malformed} of {counted(self.rows, self.unit)} malformed"
            raise UserError(f"{self.first_malformed} ({what}, more than {max_malformed:.0%})")

    def note_unknown(self, problems: Iterable[str]) -> None:
        """Adds a note about examples with labels that training lacks, which count as errors.

        `problems` has one entry per example, a description, or "". If half of the rows or more have a
        problem, the file is probably not one of this task: UserError.
        """
        if problems := list(filter(None, problems)):
            what = f"{len(problems)} of {counted(self.rows, self.unit)} with a label that training lacks"
            if 2 * len(problems) >= self.rows:
                raise UserError(f"{self.path}: {what}, such as {problems[0]}")
            self.notes.append(f"{what}, counted as errors (first: {problems[0]})")

    def first(self, count: int) -> Self:
        """Returns the first `count` examples, or all if `count` is 0."""
        values: dict[str, Any] = {name: getattr(self, name)[: count or None] for name in self.columns}
        return dataclasses.replace(self, **values)

    def warn(self, log: Callable[[str], None]) -> None:
        """Logs a line about the skipped rows and the notes, if there are any."""
        parts = list(self.notes)
        if self.malformed:
            skipped = f"{self.malformed} of {counted(self.rows, self.unit)} skipped"
            parts.insert(0, f"{skipped} (first: {self.first_malformed})")
        if parts:
            log(f"warning: {self.path}: {'; '.join(parts)}")


# Files


def parts(path: str) -> list[str]:
    """Returns the files in a directory, in a comma-separated list, or of a training set on the hub."""
    if str(path).startswith(hub.DATA):
        return hub.data_files(str(path), "train")
    if files.is_directory(path):
        return columnar.files_in(str(path)) or [path]
    return comma_lists.paths(str(path)) or [path]


def digest(path: str) -> str:
    """Returns the SHA-256 checksum of the files of a path, in hexadecimal digits."""
    result = hashlib.sha256()
    for part in parts(path):
        with files.open_read(part) as file:
            while content := file.read(1 << 20):
                result.update(content)
    return result.hexdigest()


def detect_format(formats: Mapping[str, str], path: str, given: str = "auto") -> str:
    """Returns the format of a file: `given`, or the format of the suffix if `given` is "auto".

    `formats` maps the suffixes that the task reads to formats; the suffix "" matches any name.
    """
    name = compression.strip_suffix(str(path)).lower()
    known = next((formats[suffix] for suffix in formats if name.endswith(suffix)), "")
    kind = known if given == "auto" or known == COLUMNAR else given
    if not kind or kind not in formats.values():
        suffixes, kinds = (alternatives(dict.fromkeys(filter(None, x))) for x in (formats, formats.values()))
        raise UserError(f"{path}, format={given}: expected a name ending in {suffixes}, or format={kinds}")
    return kind


def text_lines(path: str) -> Iterator[str]:
    """Yields the decompressed lines of a file, or of standard input for "-", with their newlines."""
    of_file = contextlib.nullcontext(sys.stdin.buffer) if path == "-" else compression.opened(path)
    with reading(path), of_file as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number}: not UTF-8 ({error.reason})") from None


# JSON values


def parse_object(line: str) -> dict[str, Any]:
    """Returns the JSON object in a line. Raises Malformed for any other content."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise Malformed("not JSON: expected one object on each line")
    return row


def records(
    path: str, kind: str, columns: Sequence[str] = ()
) -> Iterator[tuple[int, Mapping[str, Any] | Malformed]]:
    """Yields (line or row number, {column: value}) for a file in the format `kind`.

    `columns` are the needed columns, which saves reads of Parquet files; () for all.
    """
    if kind == COLUMNAR:
        yield from enumerate(columnar.Table(path).rows(columns), 1)
        return
    if kind != "jsonl":
        yield from _named(path, _split(path, "," if kind == "csv" else "\t", True, kind == "tsv"), None)
        return
    for number, line in enumerate(text_lines(path), 1):
        if line.strip():
            try:
                yield number, parse_object(line)
            except Malformed as error:
                yield number, error


def find_key(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns the first name for which a JSON object has a value, or raises Malformed."""
    for name in names:
        if row.get(name) is not None:
            return name
    fields = ", ".join(map(repr, list(row)[:20])) or "no fields"
    raise Malformed(f"no field {names[0]!r}; the fields are {fields}")


def encodable(text: str) -> str:
    """Replaces each lone surrogate in a JSON string, which UTF-8 cannot encode, by a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def json_text(value: Any, field: str, key: str) -> Any:
    """Converts the JSON value of a key to the text of a field, or raises Malformed for another type.

    Choices and negatives may be a list of texts. A label may also be a finite number, a boolean or a list of
    labels, and an id a number or a boolean.
    """
    if isinstance(value, str):
        return encodable(value)
    if field in ("choices", "negatives") and isinstance(value, list):
        return [json_text(one, field[:-1], key) for one in value]
    if field == "label" and isinstance(value, list):
        labels = [json_text(one, field, key) for one in value]
        if several := next((label for label in labels if LABEL_SEPARATOR in label), ""):
            raise Malformed(f"{several!r} in {key!r} has a {LABEL_SEPARATOR!r}, which separates labels")
        return LABEL_SEPARATOR.join(labels)
    # Not `math.isfinite`, which raises OverflowError for an integer of hundreds of digits.
    if field in ("label", "id") and isinstance(value, (bool, int, float)) and value - value == 0:
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise Malformed(
        f"{key!r} is {type(value).__name__}, expected a {field if field == 'label' else 'string'}"
    )


# Tables


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a file, by name or by number from 0; empty for a column that the file lacks.

    Attributes:
        text_a, text_b, label, id: the columns of both texts, the label and the id.
        header: whether the first row names the columns.
        choices: the comma-separated columns of the choices, or a single column of lists of choices.
        language: the column of the language of the row, or FOLDER.
        negatives: the comma-separated columns of hard negatives, or a single column of lists of them.
        quotes: whether quotes delimit fields of TSV files. In benchmarks' files they are ordinary characters.
    """

    text_a: str
    text_b: str = ""
    label: str = ""
    id: str = ""
    header: bool = True
    choices: str = ""
    language: str = dataclasses.field(default="", compare=False)
    negatives: str = ""
    quotes: bool = dataclasses.field(default=True, compare=False)

    def names(self, field: str) -> list[str]:
        """Returns the columns of a field; `choices` and `negatives` may have several."""
        text = getattr(self, field)
        if field in ("choices", "negatives"):
            return comma_lists.names(text)
        return [text] if text not in ("", FOLDER) else []


@dataclasses.dataclass
class Examples(FileReport):
    """The rows of one file by column: entry i of every list belongs to the same row.

    Attributes:
        ids: the id of each row; without an id column, its number from 0, counting malformed rows.
        texts_a, texts_b, languages: the texts and the language of each row; empty if the file has none. In a
            stream with pairs and single texts, the second text of a single text is None.
        labels: the parsed label of each row; empty if labels were not requested.
        choices, negatives: a list of texts for each row; empty if the task has none.
    """

    columns = ("ids", "texts_a", "texts_b", "labels", "choices", "languages", "negatives")

    path: str
    ids: list[str] = dataclasses.field(default_factory=list)
    texts_a: list[str] = dataclasses.field(default_factory=list)
    texts_b: list[Any] = dataclasses.field(default_factory=list)
    labels: list[Any] = dataclasses.field(default_factory=list)
    choices: list[list[str]] = dataclasses.field(default_factory=list)
    languages: list[str] = dataclasses.field(default_factory=list)
    negatives: list[list[str]] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


FIELDS = {  # field: the list of `Examples` with its values
    "text_a": "texts_a", "text_b": "texts_b", "id": "ids", "language": "languages", "choices": "choices",
    "negatives": "negatives", "label": "labels",
}  # fmt: skip


def read_examples(
    path: str,
    columns: Columns,
    *,
    file_format: str = "auto",
    quoting: str = "auto",
    parse_label: Callable[[str], Any] | None = str,
    label_may_be_empty: bool = False,
) -> Examples:
    """Reads all rows of a file, a directory of Parquet or Arrow files, or a comma-separated list of files.

    The format LINES makes every line a text. `parse_label` converts the text of a label, for multiple choice
    to the number of the right choice; after a ValueError the row is malformed. With None, no labels are read.
    """
    path = str(path)
    wanted = {field: names for field in FIELDS if (names := columns.names(field))}
    if parse_label is None:
        wanted.pop("label", None)
    out = Examples(path)

    def label_of(text: str, choices: Sequence[str] | None) -> Any:
        if not (text.strip() or label_may_be_empty):
            raise Malformed("the label is empty")
        try:
            label: Any = (parse_label or str)(text)
        except ValueError as error:
            raise Malformed(str(error)) from None
        if choices is not None and not 0 <= label < len(choices):
            raise Malformed(f"label {label}: expected 0 to {len(choices) - 1}, or a letter")
        return label

    def add(row: Mapping[str, Any]) -> None:
        values: dict[str, Any] = {"id": str(out.rows - 1)}
        for field, names in wanted.items():
            found = [json_text(row[find_key(row, [name])], field, name) for name in names]
            is_list = field in ("choices", "negatives")
            values[field] = _listed(found, field, getattr(out, field)) if is_list else found[0]
        if "label" in wanted:
            values["label"] = label_of(values["label"], values.get("choices"))
        for field, value in values.items():
            getattr(out, FIELDS[field]).append(value)

    for part in parts(path):
        checks.check_input(part)
        kind = file_format if file_format == LINES else detect_format(FORMATS, part, file_format)
        rows = _rows(part, kind, columns, wanted, quoting)
        before = len(out)
        out.fill(((f"{part}:{line}", row) for line, row in rows), add)
        if columns.language == FOLDER:
            out.languages += [part.split("/")[-2]] * (len(out) - before)
    out.check()
    return out


def _listed(texts: list[Any], field: str, before: Sequence[Sequence[str]]) -> list[str]:
    texts = texts[0] if len(texts) == 1 and isinstance(texts[0], list) else texts
    expected = len(before[0]) if before else max(len(texts), 2 if field == "choices" else 1)
    if len(texts) != expected or not all(isinstance(text, str) for text in texts):
        raise Malformed(f"{counted(len(texts), field[:-1])}, expected {counted(expected, 'text')}")
    return texts


def _rows(
    path: str, kind: str, columns: Columns, wanted: Mapping[str, list[str]], quoting: str
) -> Iterator[tuple[int, Mapping[str, Any] | Malformed]]:
    if kind == LINES:
        lines = (line.rstrip("\r\n") for line in text_lines(path))
        return enumerate(({columns.text_a: line} for line in lines), 1)
    if kind in ("jsonl", COLUMNAR) and (quoting != "auto" or not columns.header):
        raise UserError(f"{path}: data.header and data.quoting have no effect, they are for TSV and CSV")
    if kind == "jsonl":
        return records(path, kind)
    if kind == COLUMNAR:
        table = columnar.Table(path)
        places(path, wanted, table.columns)
        return enumerate(table.rows(list(dict.fromkeys(itertools.chain(*wanted.values())))), 1)
    quotes = quoting == "csv" or (quoting == "auto" and (kind == "csv" or columns.quotes))
    fields = _split(path, "," if kind == "csv" else "\t", quotes, quoting == "auto" and kind == "tsv")
    return _named(path, fields, wanted, columns.header)


def _named(
    path: str,
    rows: Iterator[tuple[int, list[str]]],
    wanted: Mapping[str, Sequence[str]] | None,
    header: bool = True,
) -> Iterator[tuple[int, Mapping[str, str] | Malformed]]:
    """Yields (line, {column: text}) for each row, with all columns by default. Blank lines are skipped."""
    names: list[str] = []
    chosen: dict[str, int] = {}
    for line, row in rows:
        if row and not names:
            names = [name.strip() for name in row] if header else list(map(str, range(len(row))))
            every = {name: place for place, name in enumerate(names)}
            chosen = every if wanted is None else places(path, wanted, names)
            if header:
                continue
        if row and len(row) != len(names):
            yield line, Malformed(f"{counted(len(row), 'column')}, expected {len(names)}")
        elif row:
            yield line, {column: row[place] for column, place in chosen.items()}


def places(path: str, wanted: Mapping[str, Sequence[str]], names: Sequence[str]) -> dict[str, int]:
    """Returns {column: its position in `names`} for the columns of the fields in `wanted`.

    Raises UserError if there is no such column, or there are several.
    """
    result = {}
    for field, columns in wanted.items():
        for column in columns:
            found = [place for place, name in enumerate(names) if name == column]
            if not found and column.isdecimal() and int(column) < len(names):
                found = [int(column)]
            if len(found) != 1:
                known = ", ".join(repr(name[:40]) for name in names[:20])
                what = f"{field}={column} matches {len(found) or 'none'} of the columns"
                raise UserError(f"{path}: {what} {known}")
            result[column] = found[0]
    return result


def _split(path: str, delimiter: str, quotes: bool, may_be_text: bool) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, fields) for each row; with `may_be_text`, a field with tab and newline is an error."""
    lines = text_lines(path)
    if not quotes:
        for number, line in enumerate(lines, 1):
            line = line.removesuffix("\n").removesuffix("\r")
            yield number, line.split(delimiter) if line else []
        return
    # Texts may exceed the csv module's limit of 128 KiB, which is global and is therefore never lowered.
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    start = 1
    try:
        for row in reader:
            if may_be_text and any("\t" in field and "\n" in field for field in row):
                raise csv.Error("a quoted field with a tab and a newline")
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:  # it is not known where the next rows begin
        hint = "set data.quoting=none if quotes are text, else csv"
        raise UserError(f"{path}:{start}: {error} in the row that starts here; {hint}") from None


# Labels


def label_index(numbers: Mapping[str, int], label: str) -> int:
    """Returns the number of a label. Raises ValueError with a list of the labels for an unknown label."""
    if label.strip() not in numbers:
        raise ValueError(unknown_label(list(numbers), label.strip()))
    return numbers[label.strip()]


def unknown_label(names: Sequence[str], label: str) -> str:
    """Returns a message about a label that is not in `names`."""
    return f"label {label!r} is none of {_shown(map(repr, names))}"


def list_counts(counts: Mapping[str, int]) -> str:
    """Returns the first labels with their counts, for a log line."""
    return _shown(f"{name}: {count:,}" for name, count in counts.items())


def _shown(texts: Iterable[str]) -> str:
    first = list(itertools.islice(texts, _MAX_SHOWN + 1))
    return ", ".join([*first[:_MAX_SHOWN], "..."] if len(first) > _MAX_SHOWN else first)


def infer_labels(labels: Sequence[str], path: str) -> tuple[str, ...]:
    """Returns the sorted distinct labels of the training rows; integers are sorted by value."""
    counts = Counter(label.strip() for label in labels)
    check_counts(counts, path)

    def key(name: str) -> tuple[int, int, str]:  # int() raises errors for numbers of thousands of digits
        is_number = name.removeprefix("-").isdecimal() and len(name) < 20
        return (0, int(name), name) if is_number else (1, 0, name)

    return tuple(sorted(counts, key=key))


def check_counts(counts: Counter[str], path: str, may_differ: bool = False) -> None:
    """Raises UserError if the labels of a training file are not classes: only one label, or too many.

    `counts` maps labels to their counts. With `may_differ`, any number of labels from two on is valid.
    """
    total = counts.total()
    if len(counts) < 2 or (not may_differ and total >= 20 and len(counts) > _MAX_DISTINCT * total):
        found = f"{counted(total, 'label')} with {counted(len(counts), 'value')} in data.label"
        raise UserError(f"{path}: {found}; expected 2 or more classes with several rows each")


def parse_number(text: str) -> float:
    """Parses a regression target. Raises ValueError unless it is a finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"label {text.strip()[:40]!r} is not a finite number")
    return value


# Lines of a stream


SOURCE = "standard input"
LINE_FIELDS = ("text_a", "text_b", "id")


class LineReader:
    """Parses the lines of a stream into examples of a task, here rows of texts as in a table.

    A line that begins with a brace is a JSON object; its keys are the names in the training file, in
    `own_names` or in `LINE_FIELDS`. Any other line is plain text, and tabs separate the texts of the example.
    `names` are the names of the fields in the training file; empty for missing fields. `choices` are the
    columns of the choices, or the single column of lists with `count` choices each.
    """

    own_names: ClassVar[Mapping[str, str]] = dict(zip(LINE_FIELDS, LINE_FIELDS, strict=True))
    may_be_single: ClassVar[bool] = False  # the second text may be missing in a row

    def __init__(self, names: Mapping[str, str], choices: Sequence[str] = (), count: int = 0):
        if self.may_be_single:
            names = {**names, "text_b": names["text_b"] or "text_b"}
        self._texts = [field for field in ("text_a", "text_b") if names[field]]
        # A number is a column position, and JSON objects have no positions.
        self._names = {
            field: [
                name
                for name in (names[field], self.own_names[field], field)
                if name and not name.lstrip("-").isdecimal()
            ]
            for field in LINE_FIELDS
        }
        several = len(choices) > 1
        self._choices = choices if several else [f"choice {number}" for number in range(count)]
        self._lists = ["choices"] if several else [*choices, "choices"]
        self.columns = [*(self._names[field][0] for field in self._texts), *self._choices]

    @property
    def expected(self) -> str:
        """Returns a description of a line of plain text, for messages."""
        if self.may_be_single:
            return "a text, or two texts with a tab between"
        return " TAB ".join(self.columns) if len(self.columns) > 1 else "a text without tabs"

    def parse(self, line: bytes) -> dict[str, Any]:
        """Returns the values of one line by field, or raises Malformed."""
        try:
            text = line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise Malformed("not UTF-8") from None
        if not text.strip():
            raise Malformed("the line is empty")
        is_object = text.lstrip().startswith("{")
        return self.from_object(parse_object(text)) if is_object else self.from_text(text)

    def from_text(self, text: str) -> dict[str, Any]:
        """Returns the values of a line of plain text by field."""
        values = text.split("\t")
        columns = self.columns[: len(values)] if self.may_be_single else self.columns
        if len(values) != len(columns):
            what = counted(len(values), "column")
            raise Malformed(f"{what}, expected {self.expected}, or a JSON object")
        return self.from_object(dict(zip(columns, values, strict=True)))

    def from_object(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a JSON object by field; choices are in their columns or in a list."""
        values = {}
        for field in self._texts:
            names = self._names[field]
            has_value = any(row.get(name) is not None for name in names)
            if has_value or field == "text_a" or not self.may_be_single:
                key = find_key(row, names)
                values[field] = self.value(row, field, key)
        if self._choices:
            in_columns = all(name in row for name in self._choices)
            found = [row[n] for n in self._choices] if in_columns else row[find_key(row, self._lists)]
            if not isinstance(found, list) or len(found) != len(self._choices):
                raise Malformed(f"expected {len(self._choices)} choices, as the model was trained with")
            values["choices"] = json_text(found, "choices", "choices")
        if id_key := next((key for key in self._names["id"] if row.get(key) is not None), ""):
            values["id"] = json_text(row[id_key], "id", id_key)
        return values

    def value(self, row: Mapping[str, Any], field: str, key: str) -> Any:
        """Returns the value of a text field of a JSON object."""
        return json_text(row[key], field, key)

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Any:
        """Returns the examples of (line number from 1, result of `parse`), of the type of the task's `read`.

        The id of a line without an id is its number from 0.
        """
        return self.collect([{"id": str(line - 1), **row} for line, row in rows])

    def collect(self, rows: Sequence[dict[str, Any]]) -> Any:
        """Returns the examples of parsed lines with ids."""
        out = Examples(SOURCE, [row["id"] for row in rows], [row["text_a"] for row in rows], rows=len(rows))
        if any("text_b" in row for row in rows):
            out.texts_b = [row.get("text_b") for row in rows]
        if self._choices:
            out.choices = [row["choices"] for row in rows]
        return out


class OptionalPairs(LineReader):
    """Reads single texts and pairs of texts; `text_b` may be missing in a row."""

    may_be_single = True
