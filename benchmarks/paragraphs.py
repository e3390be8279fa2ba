"""Paragraphs of a corpus as lists of sentences, for the benchmarks that make pairs of texts."""

from __future__ import annotations

from collections.abc import Iterator

from data_pipelines import readers, sentences


def read(pattern: str, input_format: str) -> Iterator[list[str]]:
    """Yields the sentences of each paragraph, without line breaks."""
    for part in readers.split_ranges(readers.list_inputs(pattern), 1 << 40, input_format):
        for document in readers.read_documents(part, input_format):
            for passage in document.passages:
                yield [" ".join(text.split()) for text in sentences.split_paragraph(passage)]
