"""Reads labeled examples from TSV, CSV, JSON lines, Parquet and Arrow files; errors name the file and line.

CSV follows RFC 4180: a quoted field may contain commas and newlines. TSV follows the same rules with tabs, as
pandas writes it. In TSV files of benchmarks, such as GLUE, quotes are text; `Columns.quotes` is the one place
that says so. JSON lines has one object per line. The lines of Parquet and Arrow files are their rows, from 1,
and are counted through all files of a directory, which stands for them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import checks, columnar, comma_lists, files
from bert_jax.io.wording import counted
from bert_jax.tasks.readers.file_formats import COLUMNAR, TRAINING_FLAGS, FileFormats
from bert_jax.tasks.readers.file_rows import ColumnRows, JsonRows, LineRows, Lines, Rows, TableRows
from bert_jax.tasks.readers.json_values import CHOICE, NEGATIVE, list_in_cell
from bert_jax.tasks.readers.report import MAX_MALFORMED, FileReport, Malformed

FORMATS = FileFormats(
    {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl"}
    | dict.fromkeys(columnar.SUFFIXES, COLUMNAR)
)
STSB = "sentence1,sentence2,score"  # the columns of GLUE's STS-B
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

    def choice_names(self) -> list[str]:
        """Returns the columns of the choices."""
        return comma_lists.names(self.choices, "data.choices")

    def negative_names(self) -> list[str]:
        """Returns the columns of the hard negatives."""
        return comma_lists.names(self.negatives, "data.negatives")


_COLUMNS = ("ids", "texts_a", "texts_b", "labels", "lines", "choices", "languages", "negatives")


@dataclasses.dataclass
class Examples(FileReport):
    """The rows of one file by column: entry i of every list belongs to the same row.

    Attributes:
        path: the path of the file.
        ids: the id of each row.
        texts_a: the first text of each row.
        texts_b: the second text of each row; empty for single texts.
        labels: the parsed label of each row; empty if labels were not requested.
        lines: the line of the file in which each row begins, from 1.
        choices: the choices of each row; empty if the task has no choices.
        languages: the language of each row; empty if it is not known.
        negatives: the hard negatives of each row; empty if the task has none.
    """

    columns = _COLUMNS

    path: str
    ids: list[str]
    texts_a: list[str]
    texts_b: list[str]
    labels: list[Any]
    lines: list[int]
    choices: list[list[str]] = dataclasses.field(default_factory=list)
    languages: list[str] = dataclasses.field(default_factory=list)
    negatives: list[list[str]] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, kept: Sequence[bool]) -> Examples:
        """Returns the examples without those that are not kept."""
        columns: dict[str, Any] = {
            name: list(itertools.compress(getattr(self, name), kept)) for name in _COLUMNS
        }
        return dataclasses.replace(self, **columns)


def joined(path: str, parts: Sequence[Examples]) -> Examples:
    """Returns the examples of several files as those of `path`."""
    values: dict[str, Any] = {
        name: list(itertools.chain.from_iterable(getattr(part, name) for part in parts))
        for name in (*_COLUMNS, "malformed", "notes")
    }
    for name in ("rows", "malformed_count"):
        values[name] = sum(getattr(part, name) for part in parts)
    return Examples(path, **values)


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
    parse_label: Callable[[str], Any] | None = str,
    label_may_be_empty: bool = False,
    max_malformed: float = MAX_MALFORMED,
    flags: str = TRAINING_FLAGS,
) -> Examples:
    """Reads a whole file of examples.

    Args:
        path: a TSV, CSV or JSON lines file in UTF-8, with or without a byte-order mark, possibly compressed
            (.gz, .bz2, .xz, .zst); a Parquet or Arrow file, or a directory of such files.
        columns: the columns to read.
        file_format: "tsv", "csv", "jsonl", "auto" to use the suffix, or LINES, where every line is a text,
            including blank lines.
        quoting: "csv" if quotes delimit fields, "none" if they do not, or "auto": "none" for TSV files of
            benchmarks (`columns.quotes`), and else "csv".
        parse_label: converts the text of a label to a value, which for questions with choices is the number
            of the right choice. A ValueError makes the row malformed. None to read no labels.
        label_may_be_empty: whether an empty label is valid; otherwise the row is malformed.
        max_malformed: the fraction of malformed rows above which the file is rejected.
        flags: the prefix of flags in messages; "" for a file whose format and columns no such flag chooses.

    Returns:
        The examples in file order. The id of a row is the value of the id column, or the number of the row
        from 0, where malformed rows count.

    Raises:
        UserError: the file is missing or empty, a column is missing, or too many rows are malformed. The
            message gives the file and the line.
    """
    check_columns(path, columns, flags)
    path = str(path)
    if files.is_directory(path):
        parts = columnar.files_in(path)
        if not parts:
            raise UserError(f"{path}: a directory without Parquet or Arrow files; expected a file of rows")
        file_format = "auto"
    else:
        parts = [path]
    out = Examples(path, [], [], [], [], [])
    for part in parts:
        of_part = file_format if file_format == LINES else FORMATS.detect(part, file_format, flags)
        rows = _open_rows(part, columns, of_part, quoting, flags)
        _add_rows(out, part, rows, columns, parse_label, label_may_be_empty)
    if not out.rows:
        has_header = columns.header and isinstance(rows, TableRows)
        raise UserError(f"{path}: no rows{' after the header' if has_header else ''}")
    out.check(max_malformed)
    return out


def _no_such_choice(given: str, number: int, count: int) -> str:
    read = f"label {given.strip()!r} is read as a letter: " if given.strip().isalpha() else ""
    return f"{read}the right choice is {number} of {count}, counted from 0"


def _add_rows(out, path, rows, columns, parse_label, label_may_be_empty) -> None:
    """Adds the rows of a file to those of the files before it."""
    rows_before = out.rows
    choices, negatives = columns.choice_names(), columns.negative_names()
    wanted = {"text_a": columns.text_a, "text_b": columns.text_b, "id": columns.id}
    wanted |= {"language": columns.language}
    for kind, names in ((CHOICE, choices), (NEGATIVE, negatives)):
        wanted |= {f"{kind}{number}": column for number, column in enumerate(names)}
    wanted |= {"label": columns.label if parse_label else ""}
    select = rows.selector({field: column for field, column in wanted.items() if column})

    def add(numbered: tuple[int, Any]) -> None:
        line, row = numbered
        values = select(row)
        answers = _listed(values, CHOICE, len(choices), out.choices, least=2)
        hard = _listed(values, NEGATIVE, len(negatives), out.negatives)
        if parse_label and columns.label:
            label = _parse(values["label"], parse_label, columns.label, label_may_be_empty)
            if choices and not 0 <= label < len(answers):
                raise Malformed(_no_such_choice(values["label"], label, len(answers)))
            out.labels.append(label)
        if choices:
            out.choices.append(answers)
        if negatives:
            out.negatives.append(hard)
        if columns.language:
            out.languages.append(values["language"])
        if columns.text_b:
            out.texts_b.append(values["text_b"])
        out.texts_a.append(values["text_a"])
        out.ids.append(values.get("id", str(out.rows - 1)))
        out.lines.append(rows_before + line)

    out.fill(
        ((f"{path}:{line}", row if isinstance(row, Malformed) else (line, row)) for line, row in rows), add
    )


def _listed(
    values: Mapping[str, Any], kind: str, count: int, before: Sequence[Sequence[str]], least: int = 1
) -> list[str]:
    """Returns the texts of one kind in a row: of `count` columns, or of a column of JSON lists.

    Raises:
        Malformed: their number differs from that of the first row, `before[0]`, or is below `least`; or one
            of several columns has lists.
    """
    if not count:
        return []
    texts: list[Any] = [values[f"{kind}{number}"] for number in range(count)]
    if count == 1 and isinstance(texts[0], str) and (in_cell := list_in_cell(texts[0], kind)) is not None:
        texts = [in_cell]
    if any(isinstance(text, list) for text in texts):
        if count > 1:
            raise Malformed(f"a list, in one of {count} columns of a {kind.strip()} each")
        (texts,) = texts
    expected = len(before[0]) if before else 0
    if len(texts) < least or (expected and len(texts) != expected):
        found = f"{expected} in the first row" if expected else f"expected {least} or more"
        raise Malformed(f"{counted(len(texts), kind.strip())}, {found}")
    return texts


def _parse(text: str, parse_label: Callable[[str], Any], column: str, may_be_empty: bool) -> Any:
    if text.strip() == "" and not may_be_empty:
        raise Malformed(f"an empty label in column {column!r}")
    try:
        return parse_label(text)
    except ValueError as error:
        raise Malformed(str(error)) from None


def _open_rows(path: str, columns: Columns, file_format: str, quoting: str, flags: str) -> Rows:
    if quoting not in ("auto", "none", "csv"):
        raise UserError(f"data.quoting={quoting}: expected auto, none or csv")
    checks.check_input(path, file_format)
    if file_format == COLUMNAR:
        return ColumnRows(path, flags)
    lines = Lines(path)
    if file_format == "jsonl":
        return JsonRows(path, lines)
    if file_format == LINES:
        return LineRows(lines)
    if quoting == "auto" and file_format == "tsv" and not columns.quotes:
        quoting = "none"
    return TableRows(path, lines, columns.header, "," if file_format == "csv" else "\t", quoting, flags)
