"""Reads the formats `text` and `paragraphs`: a passage on each line, a blank line between documents."""

import collections
from collections.abc import Iterator

from data_pipelines.readers.documents import Controls, Document, Passages, Range, decode_line, open_lines


def read(
    range_: Range,
    counts: collections.Counter[str],
    text_field: str,
    controls: Controls,
    presplit: bool = True,
) -> Iterator[Document]:
    """Yields the documents that start in a range; if `presplit`, a line is a sentence, else a paragraph."""
    with open_lines(range_, counts) as lines:
        after_blank = lines.offset == lines.data_start or lines.previous_is_blank()
        document: Passages | None = None
        # Lines before and after the documents of this range are counted in the ranges to which they belong.
        ignored: collections.Counter[str] = collections.Counter()
        for line in lines:
            inside = range_.end is None or line.offset < range_.end
            into = counts if document or (after_blank and inside) else ignored
            text = decode_line(line.data, into, controls)
            if not text and line.begins and line.ends and not line.data.decode("utf-8", "replace").strip():
                if document:
                    yield from document.rest()
                    document = None
                after_blank = True
                continue
            if document is None and not inside:
                return
            if after_blank and line.begins:
                document = Passages(f"{range_.name}:{line.offset}", presplit, counts)
            after_blank = False
            if document and text:
                yield from document.add(text, len(line.data))
        if document:
            yield from document.rest()
