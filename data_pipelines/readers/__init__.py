"""Corpora as documents: files of several formats, plain or compressed, by ranges, streamed.

A file is cut into byte ranges for several workers. A range owns the documents that start in it and reads
the last of them to its end, so the documents of a file are the same however it is cut. Text is cleaned on
the way: undecodable bytes become U+FFFD, control characters are dropped; `counts` of `read_documents` says
how many.
"""

import collections
from collections.abc import Callable, Iterator, Sequence

from bert_jax.errors import UserError
from data_pipelines.readers import books, inputs, jsonl, prepared, text, wikiextractor, wikipedia_xml
from data_pipelines.readers.documents import MAX_DOCUMENT_BYTES, MAX_LINE_BYTES, Document, Fields
from data_pipelines.readers.inputs import Range, file_digest, file_size, list_inputs, short_names

__all__ = [
    "COUNTS",
    "FORMATS",
    "MAX_DOCUMENT_BYTES",
    "MAX_LINE_BYTES",
    "Document",
    "Fields",
    "Range",
    "file_digest",
    "file_size",
    "has_fields",
    "list_inputs",
    "no_text",
    "read_documents",
    "short_names",
    "split_ranges",
]

FORMATS: dict[str, Callable[[Range, collections.Counter[str], Fields], Iterator[Document]]] = {
    "text": text.read,
    "wikiextractor": wikiextractor.read,
    "wikipedia_xml": wikipedia_xml.read,
    "books": books.read,
    "jsonl": jsonl.read,
}

# What `read_documents` counts besides documents and bytes.
COUNTS = (
    "undecodable",
    "control_characters",
    "long_lines",
    "long_documents",
    "unclosed",
    "outside",
    "doc_lines",
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
    return format == "jsonl" or any(path.startswith(prepared.PREFIX) for path in paths)


def no_text(paths: Sequence[str], format: str) -> str:
    """The message of an error: the files hold nothing of their format."""
    where = f"the {len(paths)} input files, {paths[0]} first" if len(paths) > 1 else paths[0]
    return f"no text in {where}: is --input_format={format} right?"


def split_ranges(paths: Sequence[str], target_bytes: int, format: str = "text") -> list[Range]:
    """Cuts the files of a format into ranges of about `target_bytes`, as `inputs.split_ranges` says."""
    return inputs.split_ranges(
        paths, target_bytes, whole=format == "books", streams=format == "wikipedia_xml"
    )


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
            can hide some), "doc_lines" where such elements begin and the format has none, pages, lines and
            paragraphs left out.
        fields: What to read of the records of "jsonl" and of data sets.

    Raises:
        UserError: An unknown format, or a file that is not what its name or the format says.
        OSError: The file can't be read.
    """
    if format not in FORMATS:
        raise UserError(f"unknown input format {format!r}; expected one of {', '.join(FORMATS)}")
    counts = collections.Counter() if counts is None else counts
    read = prepared.read if range_.path.startswith(prepared.PREFIX) else FORMATS[format]
    for document in read(range_, counts, fields):
        if format != "wikiextractor":
            counts["doc_lines"] += sum(passage.startswith("<doc ") for passage in document.passages)
        counts["documents"] += document.part == 0
        yield document
