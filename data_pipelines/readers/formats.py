"""Defines the formats of a corpus."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from bert_jax.errors import UserError
from bert_jax.io import columnar, compression, files, json_files, tfds
from bert_jax.io.wording import counted
from data_pipelines.readers import books, tables, text, wikipedia
from data_pipelines.readers.documents import HEAD_BYTES, Controls, Document, Range, check_head

_HIGH_SKIPPED_FRACTION = 0.01  # of the records; some corpora have a few without text
AUTO = "auto"
TEXT_FIELD = "text"
_BY_SUFFIX = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".xml": "wikipedia_xml",
    **dict.fromkeys(json_files.LINES_SUFFIXES, "jsonl"),
}

# The counts of `read_documents` in addition to "documents" and "bytes".
COUNTS: tuple[str, ...] = (
    *"undecodable control_characters long_lines long_documents unclosed outside other_namespaces".split(),
    *"redirects disambiguations broken_pages latin_1_books boilerplate headings".split(),
    *"bad_lines without_text".split(),
)


def _check_text(path: str, text_field: str) -> None:
    if files.size(path):
        with compression.opened(path) as file:
            check_head(file.read(HEAD_BYTES), path)


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of a corpus.

    Attributes:
        read: yields the documents that start in a range, and updates the counts.
        check: raises UserError if the beginning of a file shows that it has another format.
        splits: the unit at which a file can be split: "bytes", "records", or "" for none.
        bzip2_streams: whether a .bz2 file of several streams may be split where a stream begins.
        has_fields: whether a text field is read.
        sentence_lines: whether a line is a sentence; in other formats, lines are split into sentences.
    """

    read: Callable[[Range, collections.Counter[str], str, Controls], Iterator[Document]]
    check: Callable[[str, str], None] = _check_text
    splits: str = "bytes"
    bzip2_streams: bool = False
    has_fields: bool = False
    sentence_lines: bool = False


# By the value of --input_format.
FORMATS: dict[str, Format] = {
    "text": Format(text.read, sentence_lines=True),
    "paragraphs": Format(functools.partial(text.read, presplit=False)),
    "wikiextractor": Format(wikipedia.read_extracted),
    "wikipedia_xml": Format(wikipedia.read_xml, bzip2_streams=True),
    "books": Format(books.read, splits=""),
    "jsonl": Format(tables.read_jsonl, tables.check_jsonl, has_fields=True),
    "csv": Format(tables.read_csv, splits="", has_fields=True),
}
_COLUMNS = Format(tables.read_columns, tables.check_columns, "records", has_fields=True)
_TFDS = Format(tables.read_tfds, tables.check_tfds, "records", has_fields=True)


def format_of(path: str, name: str) -> Format:
    """Returns the format of a path: `name`, unless the path is a Parquet or Arrow file or a TFDS data set.

    Raises:
        UserError: the name is unknown.
    """
    if path.startswith(tfds.PREFIX):
        return _TFDS
    if columnar.is_columnar(path):
        return _COLUMNS
    if name not in FORMATS:
        raise UserError(f"--input_format={name}: expected {AUTO} or one of {', '.join(FORMATS)}")
    return FORMATS[name]


def has_fields(paths: Sequence[str], name: str) -> bool:
    """Returns True if a text field of any of the inputs is read."""
    return any(format_of(path, name).has_fields for path in paths)


def presplit(paths: Sequence[str], name: str) -> bool:
    """Returns True if all lines of the inputs are sentences, so that nothing is split."""
    return FORMATS[name].sentence_lines and not has_fields(paths, name)


def resolve_format(paths: Sequence[str], name: str, text_field: str) -> str:
    """Returns the format in which the inputs are read: `name`, or for AUTO the one that the suffixes imply.

    Raises:
        UserError: the suffixes do not imply one format, or a text field is given and has no effect.
    """
    if name == AUTO:
        others = [path for path in paths if not (path.startswith(tfds.PREFIX) or columnar.is_columnar(path))]
        suffixes = {files.suffix(compression.strip_suffix(path)): path for path in others}
        names = {_BY_SUFFIX.get(suffix) for suffix in suffixes} or {"text"}
        if len(names) > 1 or None in names:
            raise UserError(
                f"the suffixes of {', '.join(list(suffixes.values())[:5])} do not imply one format; give "
                f"--input_format={'|'.join(FORMATS)}"
            )
        name = str(names.pop())
    format_of("", name)
    if text_field != TEXT_FIELD and not has_fields(paths, name):
        raise UserError(f"--text_field={text_field} has no effect with --input_format={name}")
    return name


def no_text(paths: Sequence[str], name: str) -> str:
    """Returns the error message for files without text in their format."""
    return f"no text in {counted(len(paths), 'file')}, {paths[0]} first: is --input_format={name} right?"


def read_documents(
    range_: Range,
    format: str,
    counts: collections.Counter[str] | None = None,
    text_field: str = TEXT_FIELD,
    controls: Controls = Controls(),  # noqa: B008 (frozen)
) -> Iterator[Document]:
    """Yields the documents that start in a range, in file order.

    The memory is at most that of one document, of at most MAX_DOCUMENT_BYTES, and one line, page or record.

    Args:
        range_: a range that `split_ranges` returned for the same format.
        format: one of FORMATS; it is ignored for Parquet and Arrow files and TFDS data sets.
        counts: updated with "documents", "bytes" and COUNTS: "undecodable" (bytes, or sequences of them, that
            became U+FFFD); "control_characters" that were dropped or replaced; "long_lines" and
            "long_documents" that were split or truncated; "unclosed" <doc> and <page> elements; "outside",
            lines outside <doc> elements (a lower bound: the split into ranges can hide some); and the pages,
            lines and paragraphs that were dropped.
        text_field: the field of records that has the text.
        controls: how control characters are treated.

    Raises:
        UserError: the format is unknown, or a file does not have the type or the format that it should have.
        OSError: the file cannot be read.
    """
    counts = collections.Counter() if counts is None else counts
    for document in format_of(range_.path, format).read(range_, counts, text_field, controls):
        counts["documents"] += document.part == 0
        yield document


def skipped(counts: Mapping[str, int]) -> list[str]:
    """Returns a message if over 1% of the records (lines of JSON, rows of a table) were skipped."""
    bad, without = (counts.get(name, 0) for name in ("bad_lines", "without_text"))
    records = counts.get("documents", 0) + bad + without
    if bad + without <= _HIGH_SKIPPED_FRACTION * records:
        return []
    return [
        f"{(bad + without) / records:.1%} of the {counted(records, 'record')} were skipped: {bad:,} are "
        f"damaged or too long, and {without:,} have no text in --text_field"
    ]
