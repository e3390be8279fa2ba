"""Reads corpora as streams of documents, from files of several formats, plain or compressed, by byte ranges.

A file is split into byte ranges for several workers. A range contains the documents that start in it, and its
reader reads the last of them to its end, so the documents of a file do not depend on how it is split. Text is
cleaned while it is read: undecodable bytes become U+FFFD, and control characters are dropped; the `counts` of
`read_documents` say how many.
"""

from data_pipelines.readers.documents import (
    MAX_DOCUMENT_BYTES,
    MAX_LINE_BYTES,
    Controls,
    Document,
    Range,
    split_long,
    utf8_size,
)
from data_pipelines.readers.formats import (
    AUTO,
    COUNTS,
    FORMATS,
    TEXT_FIELD,
    has_fields,
    no_text,
    presplit,
    read_documents,
    resolve_format,
    skipped,
)
from data_pipelines.readers.inputs import (
    file_digest,
    file_size,
    group_ranges,
    identity,
    list_inputs,
    short_names,
    split_ranges,
)

__all__ = [
    "AUTO",
    "COUNTS",
    "FORMATS",
    "MAX_DOCUMENT_BYTES",
    "MAX_LINE_BYTES",
    "TEXT_FIELD",
    "Controls",
    "Document",
    "Range",
    "file_digest",
    "file_size",
    "group_ranges",
    "has_fields",
    "identity",
    "list_inputs",
    "no_text",
    "presplit",
    "read_documents",
    "resolve_format",
    "short_names",
    "skipped",
    "split_long",
    "split_ranges",
    "utf8_size",
]
