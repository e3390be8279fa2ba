"""Reads examples from TSV, CSV, JSON lines, Parquet and Arrow files, and from tensorflow-datasets' GLUE.

CSV follows RFC 4180, and TSV follows the same rules with tabs, as pandas writes it. In the TSV files of
benchmarks quotes are text (`Columns.quotes`). JSON lines has one object per line. A row that cannot be read
is skipped and counted; more than 5% of them are an error that names the file and the line.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, Self

from bert_jax.errors import UserError, reading
from bert_jax.io import checks, columnar, comma_lists, compression, files, tfds
from bert_jax.io.wording import alternatives, counted

TRAINING_FLAGS, PREDICT_FLAGS = "--config.data.", "--"  # the prefixes of flags that describe a file
MAX_MALFORMED = 0.05  # fraction of malformed rows above which a file is rejected
LABEL_SEPARATOR = ","  # separates the labels of a multi-label column
STSB = "sentence1,sentence2,score"  # the columns of GLUE's STS-B
# Formats: Parquet and Arrow; one text per line, for prediction only; prepared by tensorflow-datasets.
COLUMNAR, LINES, PREPARED = "columnar", "lines", "a prepared data set"
FORMATS: Mapping[str, str] = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl",
    **dict.fromkeys(columnar.SUFFIXES, COLUMNAR),
}  # fmt: skip
_MAX_DISTINCT = 0.5  # with more distinct labels per row, the column is probably not the label
_MAX_SHOWN = 10  # labels in a message


class Malformed(Exception):
    """Raised for a row that cannot be parsed; the message says why."""


@dataclasses.dataclass(kw_only=True)
class FileReport:
    """Base class of the examples read from one file. Subclasses define `path`.

    Attributes:
        unit: what a row is called in messages, in the singular.
        columns: the names of the lists that have an entry for each example, or are empty.
        path: the path of the file.
        rows: the number of rows of the file, including the malformed ones, which are not examples.
        malformed: the number of malformed rows.
        first_malformed: a description of the first one, with file and line.
        notes: further warnings about the file.
    """

    unit: ClassVar[str] = "row"
    columns: ClassVar[tuple[str, ...]] = ()
    path: str

    rows: int = 0
    malformed: int = 0
    first_malformed: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)

    def fill(self, rows: Iterable[tuple[str, Any]], add: Callable[[Any], None]) -> None:
        """Adds all rows, and skips and counts the malformed ones.

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
                self.skip(f"{place}: {error}")

    def skip(self, description: str) -> None:
        """Counts one malformed row."""
        self.malformed += 1
        self.first_malformed = self.first_malformed or description

    def check(self, max_malformed: float = MAX_MALFORMED) -> None:
        """Raises UserError if there are no rows, or too many of them are malformed."""
        if not self.rows:
            raise UserError(f"{self.path}: no {self.unit}s in it")
        if self.malformed > max_malformed * self.rows:
            what = f"{self.malformed} of {counted(self.rows, self.unit)} malformed"
            raise UserError(f"{self.first_malformed} ({what}, more than {max_malformed:.0%})")

    def note_unknown(self, problems: Iterable[str]) -> None:
        """Notes the examples with a label that training lacks, which count as errors.

        Each has a problem, the label with file and line; the others have "". Raises UserError if they are
        half of the rows or more: the file is probably not one of this task.
        """
        if problems := list(filter(None, problems)):
            what = f"{len(problems)} of {counted(self.rows, self.unit)} with a label that training lacks"
            if 2 * len(problems) >= self.rows:
                raise UserError(
                    f"{problems[0]} ({what}); is this a file with the labels of the training file?"
                )
            self.notes.append(f"{what}, counted as errors (first: {problems[0]})")

    def where(self, chosen: Sequence[bool]) -> Self:
        """Returns the examples that are chosen; `chosen` may be shorter than the examples."""
        values: dict[str, Any] = {
            name: list(itertools.compress(getattr(self, name), chosen)) for name in self.columns
        }
        return dataclasses.replace(self, **values)

    def first(self, count: int) -> Self:
        """Returns the first examples, or all if `count` is 0."""
        return self.where([True] * count) if count else self

    def warning(self) -> str:
        """Returns one line about the skipped rows and the notes, or ""."""
        parts = list(self.notes)
        if self.malformed:
            skipped = f"{self.malformed} of {counted(self.rows, self.unit)} skipped"
            parts.insert(0, f"{skipped} (first: {self.first_malformed})")
        return f"{self.path}: {'; '.join(parts)}" if parts else ""

    def warn(self, log: Callable[[str], None]) -> None:
        """Logs `warning`, if there is one."""
        if warning := self.warning():
            log(f"warning: {warning}")


# Files


def is_prepared(path: str) -> bool:
    """Returns whether a path or `data_dir` refers to a data set prepared by tensorflow-datasets."""
    return str(path).startswith(tfds.PREFIX)


def parts(path: str) -> list[str]:
    """Returns the files of a path: of a prepared data set, of a directory, or of a list with commas."""
    if is_prepared(path):
        folder, _, split = path.rpartition("/")
        return tfds.files(folder, split)
    if files.is_directory(path):
        return columnar.files_in(str(path))
    return comma_lists.paths(str(path)) or [path]


def exists(path: str) -> bool:
    """Returns whether a path exists that the user gave or `TaskSpec.file` returned."""
    return is_prepared(path) or all(map(files.exists, parts(path)))


def digest(path: str) -> str:
    """Returns the SHA-256 checksum of the files of a path, as 64 hexadecimal digits."""
    result = hashlib.sha256()
    for part in parts(path):
        with files.open_read(part) as file:
            while content := file.read(1 << 20):
                result.update(content)
    return result.hexdigest()


def detect_format(
    formats: Mapping[str, str], path: str, given: str = "auto", flags: str = TRAINING_FLAGS
) -> str:
    """Returns the format of a file: `given`, or the one that the suffix implies if that is "auto".

    A prepared data set and a directory of Parquet or Arrow files have their own format, whatever is given.

    Args:
        formats: the format of each suffix that the task reads; the suffix "" stands for any other.
        path: a file, or a directory of Parquet or Arrow files. The suffix of a compression is ignored.
        given: one of the formats, or "auto".
        flags: the prefix of flags in messages.

    Raises:
        UserError: the format is unknown, or the suffix does not determine it.
    """
    names = list(dict.fromkeys(formats.values()))
    if is_prepared(path):
        return PREPARED
    in_folder = columnar.files_in(str(path)) if files.is_directory(path) else []
    if in_folder and COLUMNAR in names:
        return COLUMNAR
    if given in names:
        return given
    if given != "auto":
        raise UserError(f"{flags}format={given}: expected auto, {', '.join(names)}")
    name = compression.strip_suffix(str(path)).lower()
    if in_folder:
        name = in_folder[0].lower()
    known = next((formats[suffix] for suffix in formats if name.endswith(suffix)), "")
    if not known or (columnar.is_columnar(name) and COLUMNAR not in names):
        raise UserError(
            f"{path}: expected a name that ends in {alternatives(filter(None, formats))}, or {flags}format="
        )
    return known


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading bytes. Raises the errors of `errors.reading` if it cannot be opened."""
    with reading(path):
        return files.open_read(path)


def read_lines(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of an open file, decompressed, with their newlines.

    Raises:
        UserError: the file cannot be decompressed.
        StorageError: the disk or the bucket failed.
    """
    with reading(path), compression.decompressed(file, path) as content:
        yield from content


def text_lines(path: str) -> Iterator[str]:
    """Yields the lines of a file with their newlines; bytes that are not UTF-8 become surrogates."""
    with open_file(path) as file:
        for number, line in enumerate(read_lines(path, file)):
            if number == 0 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise UserError(f"{path}: UTF-16, expected UTF-8; try iconv -f UTF-16 -t UTF-8")
            yield line.decode("utf-8-sig" if number == 0 else "utf-8", "surrogateescape")


def check_utf8(text: str) -> str:
    """Returns a text of `text_lines`. Raises Malformed if it was not UTF-8."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Malformed("not UTF-8") from None
    return text


# Values of JSON, in a line or in a cell of a table


def parse_object(line: str) -> dict[str, Any]:
    """Returns the JSON object in a line. Raises Malformed if the line holds anything else."""
    try:
        row = json.loads(check_utf8(line))
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise Malformed(f"not JSON: {reason} (expected one object on each line)") from None
    if not isinstance(row, dict):
        raise Malformed("a JSON value that is not an object (expected one object on each line)")
    return row


def json_rows(path: str) -> Iterator[tuple[int, dict[str, Any] | Malformed]]:
    """Yields (line, object) for each line of a JSON lines file that is not blank."""
    for number, line in enumerate(text_lines(path), 1):
        if line.strip():
            try:
                yield number, parse_object(line)
            except Malformed as error:
                yield number, error


def find_key(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns the first of some names for which a JSON object has a value, or raises Malformed."""
    for name in names:
        if row.get(name) is not None:
            return name
    fields = ", ".join(map(repr, list(row)[:20])) or "no fields"
    raise Malformed(f"{names[0]!r} is null" if names[0] in row else f"no {names[0]!r} in it; it has {fields}")


def encodable(text: str, errors: str = "replace") -> str:
    """Returns a text of JSON, which may have lone surrogates, as it can be written in UTF-8.

    Args:
        text: the text.
        errors: what becomes of a lone surrogate, as in `str.encode`. By default it is a question mark, which
            keeps the positions of answers in the text.
    """
    return text if text.isascii() else text.encode("utf-8", errors).decode("utf-8")


def encodable_id(text: str) -> str:
    """Returns an id of JSON as `encodable` does, with lone surrogates escaped, so that ids stay distinct."""
    return encodable(text, "backslashreplace")


def list_in_cell(text: str, field: str) -> list[str] | None:
    """Returns the list of texts, or of labels, that a cell holds as JSON; None for any other text."""
    try:
        values = json.loads(text) if text.lstrip().startswith("[") else None
        return [json_text(one, field, field) for one in values] if isinstance(values, list) else None
    except (ValueError, RecursionError, Malformed):
        return None


def json_text(value: Any, field: str, key: str) -> Any:
    """Returns a JSON value as the text of a field; a list of choices or negatives as a list of texts.

    Args:
        value: the value.
        field: the field. A label may also be a finite number, a boolean or a list of labels, and an id a
            number or a boolean.
        key: the key of the value in the JSON object, for messages.

    Raises:
        Malformed: the value has a type that the field does not allow.
    """
    if isinstance(value, str):
        return encodable_id(value) if field == "id" else encodable(value)
    if field in ("choices", "negatives") and isinstance(value, list):
        return [json_text(one, field[:-1], key) for one in value]
    if field == "label" and isinstance(value, list):
        labels = [json_text(one, field, key) for one in value]
        if several := next((label for label in labels if LABEL_SEPARATOR in label), ""):
            raise Malformed(f"{several!r} in {key!r} has a {LABEL_SEPARATOR!r}, which separates labels")
        joined = LABEL_SEPARATOR.join(labels)
        return json.dumps(labels) if joined.startswith("[") else joined  # a bracket would begin a JSON list
    # Not `math.isfinite`, which raises OverflowError for an integer of hundreds of digits.
    if field in ("label", "id") and isinstance(value, (bool, int, float)) and value - value == 0:
        return str(value).lower() if isinstance(value, bool) else str(value)
    kind = value if isinstance(value, float) else type(value).__name__
    raise Malformed(f"{key!r} is {kind}, expected a {'label' if field == 'label' else 'string'}")


# Tables


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a file, by name or by number from 0; empty for a column that the file lacks.

    Attributes:
        text_a: the column of the first text.
        text_b: the column of the second text.
        label: the column of the label.
        id: the column of the id.
        header: whether the first row names the columns.
        choices: the columns of the choices, separated by commas, or the single column of JSON lists of them.
        language: the column of the language of the row.
        negatives: the columns of the hard negatives, separated by commas, or the single column of JSON lists.
        quotes: whether quotes delimit fields of TSV files. In those of benchmarks they are text.
    """

    text_a: str
    text_b: str = ""
    label: str = ""
    id: str = ""
    header: bool = True
    choices: str = ""
    language: str = ""
    negatives: str = ""
    quotes: bool = dataclasses.field(default=True, compare=False)

    def names(self, field: str) -> list[str]:
        """Returns the columns of a field, of which `choices` and `negatives` may have several."""
        text = getattr(self, field)
        several = field in ("choices", "negatives")
        return comma_lists.names(text, f"data.{field}") if several else [text] if text else []


@dataclasses.dataclass
class Examples(FileReport):
    """The rows of one file by column: entry i of every list belongs to the same row.

    Attributes:
        path: the path of the file.
        ids: the id of each row; without a column of ids, its number from 0, where malformed rows count.
        texts_a: the first text of each row.
        texts_b: the second text of each row; empty for single texts.
        labels: the parsed label of each row; empty if labels were not requested.
        lines: the line of the file in which each row begins, or the row of a Parquet or Arrow file, from 1.
        choices: the choices of each row; empty if the task has no choices.
        languages: the language of each row; empty if it is not known.
        negatives: the hard negatives of each row; empty if the task has none.
    """

    columns = ("ids", "texts_a", "texts_b", "labels", "lines", "choices", "languages", "negatives")

    path: str
    ids: list[str] = dataclasses.field(default_factory=list)
    texts_a: list[str] = dataclasses.field(default_factory=list)
    texts_b: list[str] = dataclasses.field(default_factory=list)
    labels: list[Any] = dataclasses.field(default_factory=list)
    lines: list[int] = dataclasses.field(default_factory=list)
    choices: list[list[str]] = dataclasses.field(default_factory=list)
    languages: list[str] = dataclasses.field(default_factory=list)
    negatives: list[list[str]] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, other: Examples) -> None:
        """Appends the examples of another file."""
        for name in (*self.columns, "notes"):
            getattr(self, name).extend(getattr(other, name))
        self.rows += other.rows
        self.malformed += other.malformed
        self.first_malformed = self.first_malformed or other.first_malformed


def read_examples(
    path: str,
    columns: Columns,
    *,
    file_format: str = "auto",
    quoting: str = "auto",
    parse_label: Callable[[str], Any] | None = str,
    label_may_be_empty: bool = False,
    flags: str = TRAINING_FLAGS,
) -> Examples:
    """Reads a whole file of examples.

    Args:
        path: a TSV, CSV or JSON lines file in UTF-8, possibly compressed (.gz, .bz2, .xz, .zst); a Parquet or
            Arrow file, or a directory of such files; or a prepared data set of GLUE.
        columns: the columns to read.
        file_format: "tsv", "csv", "jsonl", "auto" to use the suffix, or LINES, where every line is a text,
            including blank lines.
        quoting: "csv" if quotes delimit fields, "none" if they do not, or "auto": "none" for TSV files of
            benchmarks (`columns.quotes`), and else "csv".
        parse_label: converts the text of a label to a value, which for questions with choices is the number
            of the right choice. A ValueError makes the row malformed. None to read no labels.
        label_may_be_empty: whether an empty label is valid; otherwise the row is malformed.
        flags: the prefix of flags in messages; "" for a file whose columns no such flag chooses.

    Raises:
        UserError: the file is missing or empty, a column is missing, or too many rows are malformed.
    """
    path = str(path)
    if not columns.text_a:
        raise UserError(f"{path}: which column holds the text? give {flags}text_a=COLUMN")
    if is_prepared(path):
        return _read_prepared(path, columns, parse_label)
    fields = ["text_a", "text_b", "id", "language", "choices", "negatives"]
    wanted = {field: columns.names(field) for field in [*fields, *(["label"] if parse_label else [])]}
    wanted = {field: names for field, names in wanted.items() if names}
    parse = functools.partial(_parse_label, parse_label, label_may_be_empty)
    out = Examples(path)
    parts = [path]
    if files.is_directory(path):
        file_format = "auto"
        if not (parts := columnar.files_in(path)):
            raise UserError(f"{path}: a directory without Parquet or Arrow files; expected a file of rows")
    for part in parts:
        checks.check_input(part, "rows")
        kind = file_format if file_format == LINES else detect_format(FORMATS, part, file_format, flags)
        rows, before = _rows(part, kind, columns, wanted, quoting, flags), out.rows
        out.fill(
            (
                (f"{part}:{line}", row if isinstance(row, Malformed) else (before + line, row))
                for line, row in rows
            ),
            functools.partial(_add_row, out, wanted, parse),
        )
    out.check()
    return out


_LISTS = {"text_a": "texts_a", "text_b": "texts_b", "label": "labels", "id": "ids", "language": "languages"}


def _add_row(
    out: Examples, wanted: Mapping[str, list[str]], parse: Callable, numbered: tuple[int, Any]
) -> None:
    line, row = numbered
    values: dict[str, Any] = {"id": str(out.rows - 1)}
    for field, names in wanted.items():
        texts = [json_text(row[find_key(row, [name])], field, name) for name in names]
        is_list = field in ("choices", "negatives")
        values[field] = _listed(texts, field, getattr(out, field)) if is_list else texts[0]
    if "label" in wanted:
        values["label"] = parse(values["label"])
        if "choices" in wanted and not 0 <= values["label"] < len(values["choices"]):
            raise Malformed(
                f"label {values['label']}: expected 0 to {len(values['choices']) - 1}, or a letter"
            )
    for field, value in values.items():
        getattr(out, _LISTS.get(field, field)).append(value)
    out.lines.append(line)


def _listed(texts: list[Any], field: str, before: Sequence[Sequence[str]]) -> list[str]:
    if len(texts) == 1:
        in_cell = list_in_cell(texts[0], field) if isinstance(texts[0], str) else texts[0]
        texts = texts if in_cell is None else in_cell
    expected = len(before[0]) if before else max(len(texts), 2 if field == "choices" else 1)
    if len(texts) != expected or not all(isinstance(text, str) for text in texts):
        raise Malformed(f"{counted(len(texts), field[:-1])}, expected {counted(expected, 'text')}")
    return texts


def _parse_label(parse_label: Any, may_be_empty: bool, text: str) -> Any:
    if not (text.strip() or may_be_empty):
        raise Malformed("an empty label")
    try:
        return parse_label(text)
    except ValueError as error:
        raise Malformed(str(error)) from None


def _rows(
    path: str, kind: str, columns: Columns, wanted: Mapping[str, list[str]], quoting: str, flags: str
) -> Iterator[tuple[int, Mapping[str, Any] | Malformed]]:
    if kind == LINES:
        (column,) = wanted["text_a"]
        return (
            (line, _utf8_row({column: text.rstrip("\r\n")})) for line, text in enumerate(text_lines(path), 1)
        )
    if kind == "jsonl":
        return json_rows(path)
    if kind == COLUMNAR:
        table = columnar.Table(path)
        _places(path, wanted, table.columns, flags, numbers=False)
        return enumerate(table.rows(list(dict.fromkeys(itertools.chain(*wanted.values())))), 1)
    quotes = quoting == "csv" or (quoting == "auto" and (kind == "csv" or columns.quotes))
    may_be_text = quoting == "auto" and kind == "tsv"
    rows = _split(path, "," if kind == "csv" else "\t", quotes, may_be_text)
    return _delimited(path, rows, wanted, columns.header, flags)


def _delimited(
    path: str,
    rows: Iterator[tuple[int, list[str]]],
    wanted: Mapping[str, list[str]],
    has_header: bool,
    flags: str,
) -> Iterator[tuple[int, Mapping[str, Any] | Malformed]]:
    header = None
    if has_header:
        header = next((row for _, row in rows if row), None)
        if header is None:
            raise UserError(f"{path}: the file is empty")
        header = [name.strip() for name in header]
    places = _places(path, wanted, header, flags)
    width, leading = len(header or ()), []  # the first row tells the width, and whether blank lines are rows
    for line, row in rows:
        if not row:
            leading += [line] * (not width)
            # In a file of one column, a blank line is an empty text, and predictions have a row for each.
            if flags == TRAINING_FLAGS or width != 1:
                continue
            row = [""]
        if not width:
            width = len(row)
            blank = leading if width == 1 and flags != TRAINING_FLAGS else []
            yield from ((number, dict.fromkeys(places, "")) for number in blank)
        if len(row) != width or max(places.values()) >= width:
            expected = max(width, 1 + max(places.values()))
            yield line, Malformed(f"{counted(len(row), 'column')}, expected {expected}")
        else:
            yield line, _utf8_row({column: row[place] for column, place in places.items()})


def _utf8_row(row: Mapping[str, str]) -> Mapping[str, str] | Malformed:
    try:
        for value in row.values():
            check_utf8(value)
    except Malformed as error:
        return error
    return row


def _places(
    path: str,
    wanted: Mapping[str, list[str]],
    header: Sequence[str] | None,
    flags: str,
    numbers: bool = True,
) -> dict[str, int]:
    places = {}
    for field, names in wanted.items():
        for name in names:
            count = 0 if header is None else header.count(name)
            if header is not None and count == 1:
                places[name] = header.index(name)
            elif numbers and count == 0 and name.isdecimal() and (header is None or int(name) < len(header)):
                places[name] = int(name)
            else:
                known = "numbers from 0, since it has no header"
                if header is not None:
                    known = ", ".join(repr(each[:40]) for each in header[:20])
                what = f"{count} columns {name!r}" if count else f"no column {name!r}"
                setting = f" for {flags}{field}" if flags else ""
                raise UserError(f"{path}: {what}{setting}; its columns are {known}")
    return places


def _split(path: str, delimiter: str, quotes: bool, may_be_text: bool) -> Iterator[tuple[int, list[str]]]:
    """Yields the line and the fields of each row of a file; a blank line has no fields.

    Args:
        path: the path of the file.
        delimiter: the character between two fields.
        quotes: whether quotes delimit fields; otherwise they are text.
        may_be_text: whether a quoted field with a tab and a newline is an error: it may be two rows.
    """
    lines = text_lines(path)
    if not quotes:
        for number, line in enumerate(lines, 1):
            line = line.removesuffix("\n").removesuffix("\r")
            yield number, line.split(delimiter) if line else []
        return
    # A text may be longer than the csv module's limit of 128 KiB, which is global and so is never lowered.
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    start = 1
    try:
        for row in reader:
            if may_be_text and any("\t" in field and "\n" in field for field in row):
                raise csv.Error("a quoted field with a tab and a newline")
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:  # the beginnings of the following rows are not known
        hint = f"if quotes are text, give {TRAINING_FLAGS}quoting=none, else csv"
        raise UserError(f"{path}:{start}: {error} in the row that starts here; {hint}") from None


def read_strictly(path: str, columns: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields (path and line, {column: text}) of each row of a TSV file with a header.

    Raises:
        UserError: a column is missing, or a row is malformed.
    """
    rows = _split(path, "\t", quotes=True, may_be_text=True)
    for line, row in _delimited(path, rows, {name: [name] for name in columns}, True, ""):
        if isinstance(row, Malformed):
            raise UserError(f"{path}:{line}: {row}")
        yield f"{path}:{line}", row


# Labels


def label_numbers(names: Sequence[str]) -> dict[str, int]:
    """Returns {label: its number}, for `label_index`; the first number of a label that occurs twice."""
    return {name: number for number, name in reversed([*enumerate(names)])}


def label_index(numbers: Mapping[str, int], label: str) -> int:
    """Returns the number of a label. Raises ValueError, which lists the labels, for an unknown one."""
    try:
        return numbers[label.strip()]
    except KeyError:
        raise ValueError(unknown_label(sorted(numbers, key=numbers.__getitem__), label.strip())) from None


def unknown_label(names: Sequence[str], label: str, what: str = "label") -> str:
    """Returns a message about a label that is not in `names`."""
    shown = ", ".join(map(repr, names[:_MAX_SHOWN])) + (", ..." if len(names) > _MAX_SHOWN else "")
    return f"{what} {label!r} is none of {shown}"


def infer_labels(labels: Sequence[str], path: str) -> tuple[str, ...]:
    """Returns the sorted distinct labels of the training rows; integers are sorted by value."""
    counts = Counter(label.strip() for label in labels)
    check_counts(counts, path)

    def key(name: str) -> tuple[int, int, str]:  # int() raises errors for numbers of thousands of digits
        is_number = name.removeprefix("-").isdecimal() and len(name) < 20
        return (0, int(name), name) if is_number else (1, 0, name)

    return tuple(sorted(counts, key=key))


def check_counts(counts: Counter[str], path: str, what: str = "label", may_differ: bool = False) -> None:
    """Checks that the labels of a training file can be classes.

    Args:
        counts: the number of occurrences of each label.
        path: the path of the training file, for messages.
        what: what a label is called in messages.
        may_differ: whether any number of labels is plausible.

    Raises:
        UserError: there is only one class, or there are so many that the column cannot hold class labels.
    """
    first, total = next(iter(counts)), counts.total()
    if len(counts) < 2 or (not may_differ and total >= 20 and len(counts) > _MAX_DISTINCT * total):
        raise UserError(
            f"{path}: {total:,} {what}s have {counted(len(counts), 'value')}, such as {first[:40]!r}; "
            "expected 2 or more classes in data.label (numbers are for --config.task=regression)"
        )


def parse_number(text: str) -> float:
    """Parses a regression target. Raises ValueError unless it is a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"label {text.strip()[:40]!r} is not a finite number")
    return value


def list_counts(counts: Mapping[str, int]) -> str:
    """Returns a list of the first labels with the count of each, for a log line."""
    shown = [f"{name}: {count:,}" for name, count in counts.items()]
    return ", ".join(shown[:_MAX_SHOWN]) + (", ..." if len(shown) > _MAX_SHOWN else "")


# GLUE as prepared by tensorflow-datasets, with the rows, the labels and the order of GLUE's own files

_TEXTS = (  # the names of the text features, in the order in which the model reads the texts
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("question", "sentence"), ("sentence",),
)  # fmt: skip


def find_prepared(task: str, data_dir: str, split: str) -> str:
    """Returns the path of a prepared split for `read_examples`: its folder, / and the name of the split.

    Args:
        task: the GLUE task, by the name of its configuration in tensorflow-datasets.
        data_dir: `tfds:glue`, or `tfds:` with the folder of that data set or of its parent.
        split: the split by the name of GLUE's file, such as dev_matched.

    Raises:
        UserError: the split is not prepared. The message gives the command that prepares it.
    """
    # The diagnostic set is one of MNLI's files, but a separate data set in tensorflow-datasets.
    config, split = ("ax", "test") if split == "diagnostic" else (task, split.replace("dev", "validation"))
    given = data_dir.removeprefix(tfds.PREFIX).rstrip("/") or "glue"
    for name in (f"{given}/{config}", f"{given}/glue/{config}"):
        if tfds.locate(tfds.PREFIX + name):
            return f"{tfds.find(tfds.PREFIX + name, split=split)}/{split}"
    raise UserError(
        f"data_dir={data_dir}: glue/{config} is not prepared in {tfds.root() / given}; prepare it with "
        f"tfds.builder('glue/{config}', file_format='array_record').download_and_prepare()"
    )


def _read_prepared(path: str, columns: Columns, parse_label: Callable[[str], Any] | None) -> Examples:
    folder, _, split = path.rpartition("/")
    features = tfds.builder(folder).info.features
    texts = next((names for names in _TEXTS if all(name in features for name in names)), ())
    if len(texts) != 1 + bool(columns.text_b) or "idx" not in features:
        raise UserError(f"{path}: expected texts of GLUE and idx; it has {', '.join(sorted(features))}")
    source = tfds.open_split(folder, split)
    rows = [tfds.record(source, number, folder) for number in range(len(source))]
    rows.sort(key=lambda row: int(row["idx"]))
    out = Examples(path, [str(int(row["idx"])) for row in rows], rows=len(rows))
    out.lines = [int(row["idx"]) + 1 for row in rows]
    for target, name in zip((out.texts_a, out.texts_b), texts, strict=False):
        target += [tfds.as_text(row[name]) for row in rows]
    if parse_label and columns.label:
        names = getattr(features["label"], "names", None) or ()
        if max(row["label"] for row in rows) < 0:  # test sets have the label -1 in each row
            raise UserError(f"{path}: a split without labels is one for `bert-jax predict`")
        try:
            out.labels = [_prepared_label(parse_label, names, row["label"]) for row in rows]
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
    out.check()
    return out


def _prepared_label(parse_label: Callable[[str], Any], names: Sequence[str], value: Any) -> Any:
    try:
        return parse_label(names[int(value)] if names else str(value))
    except ValueError:
        return parse_label(str(value))
