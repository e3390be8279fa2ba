"""Corpora as documents: files of several formats, plain or compressed, by ranges, streamed.

A file is cut into byte ranges for several workers. A range owns the documents that start in it and reads
the last of them to its end, so the documents of a file are the same however it is cut. Text is cleaned on
the way: undecodable bytes become U+FFFD, control characters are dropped; `counts` of `read_documents` says
how many.
"""

import collections
import itertools
from collections.abc import Iterator, Sequence

from data_pipelines.readers import inputs
from data_pipelines.readers.documents import MAX_DOCUMENT_BYTES, MAX_LINE_BYTES, Document, Fields, Range
from data_pipelines.readers.formats import FORMATS, count_signs, named, suspicions
from data_pipelines.readers.inputs import file_digest, file_size, list_inputs, place, short_names
from data_pipelines.readers.sources import source_of

__all__ = [
    "COUNTS",
    "FORMATS",
    "MAX_DOCUMENT_BYTES",
    "MAX_LINE_BYTES",
    "Document",
    "Fields",
    "Range",
    "early_suspicions",
    "file_digest",
    "file_size",
    "has_fields",
    "list_inputs",
    "no_text",
    "place",
    "read_documents",
    "short_names",
    "split_ranges",
    "suspicions",
]

_SAMPLE_FILES, _SAMPLE_BYTES = 3, 1 << 20  # what `early_suspicions` reads

# What `read_documents` counts besides documents and bytes.
COUNTS = (
    "undecodable",
    "control_characters",
    "long_lines",
    "long_documents",
    "unclosed",
    "outside",
    "doc_lines",
    "sentence_lines",
    "sentence_line_words",
    "inner_sentence_ends",
    "other_namespaces",
    "redirects",
    "disambiguations",
    "broken_pages",
    "latin_1_books",
    "boilerplate",
    "headings",
    "bad_lines",
    "without_text",
)


def has_fields(paths: Sequence[str], format: str) -> bool:
    """Whether the documents of inputs depend on `Fields`."""
    return any(source_of(path).has_fields(FORMATS[format]) for path in paths)


def no_text(paths: Sequence[str], format: str) -> str:
    """The message of an error: the files hold nothing of their format."""
    where = f"the {len(paths)} input files, {paths[0]} first" if len(paths) > 1 else paths[0]
    return f"no text in {where}: is --input_format={format} right?"


def split_ranges(paths: Sequence[str], target_bytes: int, format: str = "text") -> list[Range]:
    """Cuts the files of a format into ranges of about `target_bytes`, as `inputs.split_ranges` says."""
    return inputs.split_ranges(paths, target_bytes, named(format))


def read_documents(
    range_: Range,
    format: str,
    counts: collections.Counter[str] | None = None,
    fields: Fields = Fields(),  # noqa: B008 (frozen)
) -> Iterator[Document]:
    """Yields the documents that start in a range, in file order.

    Memory: at most one document, of at most MAX_DOCUMENT_BYTES, and one line, page or record.

    Args:
        range_: A range of `split_ranges` of the same format.
        format: One of FORMATS, whose modules say what they read; a prepared data set is read as such.
        counts: What was met is added to it: "documents", "bytes", and COUNTS: "undecodable" (bytes or runs of
            them that became U+FFFD), "control_characters" dropped, "long_lines" and "long_documents" cut,
            "unclosed" <doc> and <page> elements, "outside" lines outside of <doc> elements (at least: a cut
            can hide some), pages, lines and paragraphs left out, and what `suspicions` judges: "doc_lines"
            where such elements begin and the format has none, "sentence_lines" with the words and the ends of
            sentences within them.
        fields: What to read of the records of "jsonl" and of data sets.

    Raises:
        UserError: An unknown format, or a file that is not what its name or the format says.
        OSError: The file can't be read.
    """
    counts = collections.Counter() if counts is None else counts
    kind = named(format)
    for document in source_of(range_.path).read(range_, kind, counts, fields):
        count_signs(document, kind, counts)
        counts["documents"] += document.part == 0
        yield document


def early_suspicions(paths: Sequence[str], format: str) -> list[str]:
    """`suspicions` of the beginning of the first files, before all of them are read.

    Args:
        paths: As `list_inputs` returns them.
        format: One of FORMATS.
    """
    counts: collections.Counter[str] = collections.Counter()
    firsts = paths[:_SAMPLE_FILES] if named(format).blank_line_ends else []  # others have no such signs
    for path in firsts:
        if not source_of(path).has_signs():
            continue
        before = counts["characters"]
        for range_ in itertools.islice(split_ranges([path], _SAMPLE_BYTES, format), 1):
            for document in read_documents(range_, format, counts):
                counts["characters"] += sum(map(len, document.passages))
                if counts["characters"] - before > _SAMPLE_BYTES:  # a range of a compressed file is all of it
                    break
    return suspicions(counts)
