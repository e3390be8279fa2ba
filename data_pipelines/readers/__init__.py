"""Corpora as documents: `text` and `wikiextractor` files, plain or compressed, by byte ranges, streamed.

A plain file is cut into byte ranges for several workers. A range owns the documents that start in it and
reads the last of them to its end, so the documents of a file are the same however it is cut. Text is
cleaned on the way: undecodable bytes become U+FFFD, control characters are dropped; `counts` of
`read_documents` says how many.
"""

import collections
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator

from bert_jax.errors import UserError
from data_pipelines.readers import text, wikiextractor
from data_pipelines.readers.documents import MAX_DOCUMENT_BYTES, MAX_LINE_BYTES, Document
from data_pipelines.readers.inputs import OPENERS, Range, broken_archive, list_inputs, split_ranges
from data_pipelines.readers.lines import Lines

__all__ = [
    "FORMATS",
    "MAX_DOCUMENT_BYTES",
    "MAX_LINE_BYTES",
    "Document",
    "Range",
    "list_inputs",
    "read_documents",
    "split_ranges",
]

FORMATS: dict[str, Callable[[Lines, Range, collections.Counter[str]], Iterator[Document]]] = {
    "text": text.read,
    "wikiextractor": wikiextractor.read,
}


def read_documents(
    range_: Range, format: str, counts: collections.Counter[str] | None = None
) -> Iterator[Document]:
    """Yields the documents that start in a range, in file order.

    Memory: at most one document, of at most MAX_DOCUMENT_BYTES, and one line.

    Args:
        range_: A range of `split_ranges`.
        format: One of FORMATS: "text" has a sentence a line and a blank line between documents, as
            google-research/bert reads; "wikiextractor" has <doc ...> and </doc> lines around the paragraphs.
        counts: What was met is added to it: "documents", "bytes", "undecodable" (bytes or runs of them that
            became U+FFFD), "control_characters" dropped, "long_lines" and "long_documents" cut, "unclosed"
            <doc> elements, "outside" lines outside of <doc> elements (at least: a cut can hide some).

    Raises:
        UserError: An unknown format, or a file that is not UTF-8 text or not the archive its name says.
        OSError: The file can't be read.
    """
    if format not in FORMATS:
        raise UserError(f"unknown input format {format!r}; expected one of {', '.join(FORMATS)}")
    counts = collections.Counter() if counts is None else counts
    opener = OPENERS.get(os.path.splitext(range_.path)[1])
    try:
        with opener(range_.path) if opener else open(range_.path, "rb") as file:
            lines = Lines(file, range_, counts)
            for document in FORMATS[format](lines, range_, counts):
                counts["documents"] += document.part == 0
                yield document
            counts["bytes"] += lines.offset - lines.first
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise broken_archive(range_.path, error) from None
    except OSError as error:
        if opener and error.errno is None:  # how bz2 says that its data are not
            raise broken_archive(range_.path, error) from None
        raise
