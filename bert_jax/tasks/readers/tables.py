"""Reads labeled examples from TSV, CSV and JSON-lines files; every error names the file and the line.

TSV has the format of GLUE's files: a tab separates fields, a newline ends a row, and quotes have no special
meaning. CSV follows RFC 4180: a quoted field may contain commas and newlines. JSON-lines has one object per
line.
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
PREDICT_FLAGS = "--"  # prefix of the flags of `bert-jax predict`
LINES = "lines"  # the format with one text per line, used only for prediction


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
    """

    text_a: str
    text_b: str = ""
    label: str = ""
    id: str = ""
    header: bool = True
    choices: str = ""


@dataclasses.dataclass
class Examples(FileReport):
    """The rows of one file by column: entry i of every list belongs to the same row.

    Attributes:
        path: the path of the file.
        ids: the id of each row.
        texts_a: the first text of each row.
        texts_b: the second text of each row; None for single texts.
        labels: the parsed label of each row; None if labels were not requested, or the file lacks an optional
            label column.
        lines: the line of the file in which each row begins, from 1.
        choices: the choices of each row; None if the task has no choices.
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
    """Returns the format of a file: `file_format`, or, if that is "auto", the format of the file's suffix.

    Args:
        path: the path of the file. The suffix of a compression is ignored.
        file_format: one of `FORMATS`, or "auto".
        flags: the prefix of flags in messages.

    Raises:
        UserError: the format is unknown, or the suffix does not determine it.
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
    """Raises UserError if `columns` (options of `bert-jax predict`) set `header` for a JSON-lines file."""
    if "header" in columns and detect_format(path, file_format, PREDICT_FLAGS) == "jsonl":
        raise UserError(f"--header is for TSV and CSV, and {path} is JSON-lines")


def check_columns(path: str, columns: Columns, flags: str = TRAINING_FLAGS) -> None:
    """Raises UserError if `columns` do not name the column of the text; `flags` is the prefix of flags."""
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
        columns: the columns to read.
        file_format: "tsv", "csv", "jsonl", "auto" to use the suffix, or LINES, where every line is a text,
            including blank lines.
        quoting: "csv" if quotes delimit fields, "none" if they do not, or "auto": "csv" for CSV, "none" for
            TSV.
        parse_label: converts the text of a label to a value, which for questions with choices is the number
            of the right choice. A ValueError makes the row malformed. None to read no labels.
        label_may_be_empty: whether an empty label is valid; otherwise the row is malformed.
        label_optional: whether a file without the label column is read as unlabeled; otherwise it is
            rejected.
        max_malformed: the fraction of malformed rows above which the file is rejected.
        flags: the prefix of flags in messages.

    Returns:
        The examples in file order. The id of a row is the value of the id column, or the number of the row
        from 0, where malformed rows count.

    Raises:
        UserError: the file is missing or empty, a column is missing, or too many rows are malformed. The
            message gives the file and the line.
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
    """Returns the choices of a row. Raises Malformed if the first row has a different number of choices."""
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
