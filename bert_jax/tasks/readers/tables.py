"""Labelled examples from TSV, CSV and JSON-lines files, with the file and line of everything that is wrong.

TSV is read as GLUE writes it: a tab separates, a newline ends the row, and a quote is a character like any
other. CSV follows RFC 4180: a quoted field may hold commas and newlines. JSON-lines holds one object a line.
"""

import dataclasses
from collections.abc import Callable, Mapping

from bert_jax.errors import UserError
from bert_jax.io import checks, compression
from bert_jax.tasks.readers.file_rows import (
    CHOICE,
    TRAINING_FLAGS,
    JsonRows,
    LineRows,
    Lines,
    TableRows,
)
from bert_jax.tasks.readers.report import MAX_MALFORMED, FileReport, Malformed

FORMATS = ("tsv", "csv", "jsonl")
PREDICT_FLAGS = "--"  # begins the names of `bert-jax predict`'s own flags
LINES = "lines"  # of single texts, which predictions alone are made of


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where a file keeps what an example needs: column names, or numbers from 0. Empty: there is no such
    column.
    """

    text_a: str
    text_b: str = ""
    label: str = ""
    id: str = ""
    header: bool = True
    choices: str = ""  # of each possible answer, with commas between; or one of JSON lists


@dataclasses.dataclass
class Examples(FileReport):
    """The rows of one file, column by column: entry i of every list belongs to the same row.

    Attributes:
        labels: None when labels were not asked for, or when the file has no such column and may lack it.
        lines: the line of the file in which each row begins, from 1.
        choices: the possible answers of each row; None where there are none.
    """

    path: str
    ids: list[str]
    texts_a: list[str]
    texts_b: list[str] | None
    labels: list | None
    lines: list[int]
    choices: list[list[str]] | None = None

    def __len__(self) -> int:
        return len(self.ids)


def detect_format(path: str, file_format: str = "auto", flags: str = TRAINING_FLAGS) -> str:
    """The format by name, or by the file's suffix (before that of a compression) when it is "auto".

    `flags` begins the names of the flags in an error message.
    """
    if file_format in FORMATS:
        return file_format
    if file_format != "auto":
        raise UserError(f"data.format={file_format}: expected auto, {', '.join(FORMATS)}")
    name = compression.strip_suffix(str(path))
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
        f"{path}: the name ends in none of .tsv, .csv, .jsonl; say which it is with {flags}format"
    )


def check_header(path: str, file_format: str, columns: Mapping[str, object]) -> None:
    """Raises UserError where `columns`, as `bert-jax predict` was given them, say whether objects have a
    header.
    """
    if "header" in columns and detect_format(path, file_format, PREDICT_FLAGS) == "jsonl":
        raise UserError(f"--header is for TSV and CSV, and {path} is JSON-lines")


def check_columns(path: str, columns: Columns, flags: str = TRAINING_FLAGS) -> None:
    """Raises UserError if the columns do not say where the text is."""
    if not columns.text_a:
        raise UserError(f"{path}: which column holds the text? give {flags}text_a=COLUMN")


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
    flags: str = TRAINING_FLAGS,
) -> Examples:
    """Reads a whole file of examples.

    Args:
        path: a TSV, CSV or JSON-lines file in UTF-8, with or without a byte-order mark, possibly compressed
            (.gz, .bz2, .xz, .zst).
        columns: which columns to read.
        file_format: "tsv", "csv", "jsonl", "auto" for the suffix, or LINES: every line is a text, blank lines
            included.
        quoting: "none", "csv", or "auto": off in TSV, on in CSV.
        parse_label: turns a label's text into a value, with choices into the number of one; a ValueError
            makes the row malformed. None: no labels are read.
        label_may_be_empty: an empty label is a label, and no malformed row.
        label_optional: a file without the label column is read as unlabelled, not refused.
        max_malformed: the share of malformed rows above which the file is refused.
        flags: begins the names of the flags in error messages.

    Returns:
        The examples in file order. An id is the id column's value, or the row's number from 0, malformed rows
        counted.

    Raises:
        UserError: a missing or empty file, a missing column, or too many malformed rows; with file and line.
    """
    check_columns(path, columns, flags)
    if file_format != LINES:
        file_format = detect_format(path, file_format, flags)
    rows = _open_rows(str(path), columns, file_format, quoting, flags)
    wants_label = parse_label is not None and bool(columns.label)
    wanted = {"text_a": columns.text_a, "text_b": columns.text_b, "id": columns.id}
    wanted = {field: column for field, column in wanted.items() if column}
    choices = [column.strip() for column in columns.choices.split(",") if column.strip()]
    wanted |= {f"{CHOICE}{number}": column for number, column in enumerate(choices)}
    optional = set()
    if wants_label:
        wanted["label"] = columns.label
        if label_optional:
            optional.add("label")
    select = rows.selector(wanted, optional)

    second, answers_of_rows = [] if columns.text_b else None, [] if choices else None
    out = Examples(str(path), [], [], second, None, [], answers_of_rows)
    labels = []
    unlabelled = 0
    for line, row in rows:
        out.rows += 1
        try:
            if isinstance(row, Malformed):
                raise row
            values = select(row)
            if choices:
                answers = _choices(values, len(choices), len(out.choices[0]) if out.choices else 0)
            label = None
            if wants_label and values.get("label") is None and label_optional:
                unlabelled += 1
            elif wants_label:
                label = _parse(values["label"], parse_label, columns.label, label_may_be_empty)
                if choices and not 0 <= label < len(answers):
                    raise Malformed(f"the right choice is {label} of {len(answers)}, counted from 0")
        except Malformed as error:
            out.leave_out(f"{path}:{line}: {error}")
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
    out.check(max_malformed)
    if wants_label and not unlabelled:
        out.labels = labels
    return out


def _choices(values, count, expected):
    """The answers of a row, as many as the first row has."""
    answers = [values[f"{CHOICE}{number}"] for number in range(count)]
    if isinstance(answers[0], list):
        answers = answers[0]
    if len(answers) < 2 or (expected and len(answers) != expected):
        found = f"{expected} in the first row" if expected else "expected 2 or more"
        raise Malformed(f"{len(answers)} choices, {found}")
    return answers


def _parse(text, parse_label, column, may_be_empty):
    if text is None or (text.strip() == "" and not may_be_empty):
        raise Malformed(f"an empty label in column {column!r}")
    try:
        return parse_label(text)
    except ValueError as error:
        raise Malformed(str(error)) from None


def _open_rows(path: str, columns: Columns, file_format: str, quoting: str, flags: str):
    if quoting not in ("auto", "none", "csv"):
        raise UserError(f"data.quoting={quoting}: expected auto, none or csv")
    checks.check_input(path, file_format)
    lines = Lines(path)
    if file_format == "jsonl":
        return JsonRows(path, lines)
    if file_format == LINES:
        return LineRows(lines)
    quoted = quoting == "csv" or (quoting == "auto" and file_format == "csv")
    return TableRows(path, lines, columns.header, "," if file_format == "csv" else "\t", quoted, flags)
