"""Reads corpora as streams of documents, from files of several formats, plain or compressed, by byte ranges.

A file is split into byte ranges for several workers. A range contains the documents that start in it, and its
reader reads the last of them to its end, so the documents of a file do not depend on how it is split. Text is
cleaned while it is read: undecodable bytes become U+FFFD, and control characters are dropped; the `counts` of
`read_documents` say how many.
"""

import collections
import itertools
from collections.abc import Iterator, Sequence

from bert_jax.errors import UserError
from bert_jax.io import tfds
from data_pipelines.readers.documents import (
    MAX_DOCUMENT_BYTES,
    MAX_LINE_BYTES,
    Beginnings,
    Controls,
    Document,
    Fields,
    Range,
    short_parts,
    utf8_size,
)
from data_pipelines.readers.formats import (
    AUTO,
    FORMATS,
    count_signs,
    left_out,
    named,
    resolve,
    suspicions,
)
from data_pipelines.readers.inputs import (
    checked_digest,
    file_digest,
    file_size,
    group_ranges,
    identity,
    list_inputs,
    pattern_for,
    place,
    short_names,
    split_patterns,
    split_ranges,
)
from data_pipelines.readers.sources import source_of

__all__ = [
    "AUTO",
    "COUNTS",
    "FORMATS",
    "MAX_DOCUMENT_BYTES",
    "MAX_LINE_BYTES",
    "Beginnings",
    "Controls",
    "Document",
    "Fields",
    "Range",
    "check_flags",
    "checked_digest",
    "early_suspicions",
    "file_digest",
    "file_size",
    "group_ranges",
    "has_fields",
    "identity",
    "left_out",
    "list_inputs",
    "no_text",
    "pattern_for",
    "place",
    "presplit",
    "read_documents",
    "short_names",
    "short_parts",
    "split_patterns",
    "split_ranges",
    "suspicions",
    "utf8_size",
]

_SAMPLE_FILES, _SAMPLE_BYTES = 3, 1 << 20  # the limits of what `early_suspicions` reads

# The counts of `read_documents` besides "documents" and "bytes".
COUNTS: tuple[str, ...] = (
    *"undecodable control_characters long_lines long_documents unclosed outside doc_lines".split(),
    *"page_lines json_lines text_lines".split(),
    *"sentence_lines sentence_line_words inner_sentence_ends other_namespaces redirects".split(),
    *"disambiguations broken_pages latin_1_books boilerplate headings bad_lines without_text".split(),
)


def has_fields(paths: Sequence[str], format: str) -> bool:
    """Returns whether the documents of any of the inputs depend on `Fields`."""
    return any(source_of(path).has_fields(named(format)) for path in paths)


def check_flags(paths: Sequence[str], format: str, fields: Fields, tfds_data_dir: str) -> str:
    """Returns the format in which the inputs are read.

    Args:
        paths: as `list_inputs` returns them.
        format: one of FORMATS, or AUTO, with which the suffixes of the text files determine it.
        fields: the values of --text_field and --id_field.
        tfds_data_dir: the value of --tfds_data_dir.

    Raises:
        UserError: the suffixes do not determine the format, or a flag has no effect on how inputs are read.
    """
    format = resolve(format, [path for path in paths if source_of(path).has_signs])
    for name, value, default in (
        ("text_field", fields.text, Fields.text),
        ("id_field", fields.id, Fields.id),
    ):
        if value != default and not has_fields(paths, format):
            raise UserError(
                f"--{name}={value}: the text has no fields with --input_format={format}; leave the flag out, "
                "or give --input_format=jsonl or csv"
            )
    if tfds_data_dir and not any(path.startswith(tfds.PREFIX) for path in paths):
        raise UserError(f"--tfds_data_dir={tfds_data_dir}: no input is tfds:NAME; leave the flag out")
    return format


def presplit(paths: Sequence[str], format: str) -> bool:
    """Returns whether all lines of the inputs are sentences, so that there is nothing to split."""
    return FORMATS[format].sentence_lines and not has_fields(paths, format)


def no_text(paths: Sequence[str], format: str) -> str:
    """Returns the error message for files without text in their format."""
    where = f"the {len(paths)} input files, {paths[0]} first" if len(paths) > 1 else paths[0]
    return f"no text in {where}: is --input_format={format} right?"


def read_documents(
    range_: Range,
    format: str,
    counts: collections.Counter[str] | None = None,
    fields: Fields = Fields(),  # noqa: B008 (frozen)
    controls: Controls = Controls(),  # noqa: B008 (frozen)
) -> Iterator[Document]:
    """Yields the documents that start in a range, in file order.

    The memory is at most that of one document, of at most MAX_DOCUMENT_BYTES, and one line, page or record.

    Args:
        range_: a range that `split_ranges` returned for the same format.
        format: one of FORMATS; see their modules for what they read. It is ignored for a TFDS data set.
        counts: updated with "documents", "bytes" and COUNTS: "undecodable" (bytes, or sequences of them, that
            became U+FFFD); "control_characters" that were dropped or replaced; "long_lines" and
            "long_documents" that were split or truncated; "unclosed" <doc> and <page> elements; "outside",
            lines outside <doc> elements (a lower bound: the split into ranges can hide some); the pages,
            lines and paragraphs that were dropped; and what `suspicions` uses: "doc_lines", the lines that
            begin a <doc> element in another format; "text_lines", and the "page_lines" and "json_lines" of
            them, which begin a <page> element or a JSON object; and "sentence_lines", with the words and the
            ends of sentences in them.
        fields: the fields to read of the records of "jsonl" and of TFDS data sets.
        controls: what becomes of control characters.

    Raises:
        UserError: the format is unknown, or a file does not have the type or the format that it should have.
        OSError: the file cannot be read.
    """
    counts = collections.Counter() if counts is None else counts
    kind = named(format)
    source = source_of(range_.path)
    for document in source.read(range_, kind, counts, fields, controls):
        count_signs(document, kind, counts, source.has_signs)
        counts["documents"] += document.part == 0
        yield document


def early_suspicions(paths: Sequence[str], format: str) -> list[str]:
    """Returns the `suspicions` about the beginnings of the first files, before all of them are read.

    Args:
        paths: as `list_inputs` returns them.
        format: one of FORMATS.
    """
    counts: collections.Counter[str] = collections.Counter()
    firsts = paths[:_SAMPLE_FILES] if named(format).blank_line_ends else []  # others have no such signs
    for path in firsts:
        if not source_of(path).has_signs:
            continue
        before = counts["characters"]
        for range_ in itertools.islice(split_ranges([path], _SAMPLE_BYTES, format), 1):
            for document in read_documents(range_, format, counts):
                counts["characters"] += sum(map(len, document.passages))
                if counts["characters"] - before > _SAMPLE_BYTES:  # a compressed file is one range
                    break
    return suspicions(counts)
