"""Paragraphs to sentences, by Wikimedia's sentencex (Rust, about 300 languages).

Chosen by measurement (benchmarks/results/sentence-splitters.md). Left to itself it takes a quotation or a
parenthesis as one sentence, however long; here it sees the text with blanks in the place of quotes and
brackets, and the edges are put back where these belong: 332 boundaries of Wikipedia, checked by hand, have
8 errors instead of 35. Blanks also stand for the whitespace that isn't ASCII, such as the no-break space in
"A. Smith", at which it panics.
"""

from collections.abc import Iterator

from bert_jax.errors import optional_imports
from data_pipelines.readers import Document

with optional_imports("corpus"):
    import sentencex

_MASKED_ASCII = '"()[]\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f'
_WINDOW = 16_384  # characters; a longer sentence is cut
_MASKED = "“”\x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


def split(document: Document, language: str = "en") -> list[str]:
    """The sentences of a document, in order; none is blank. Those of a presplit one are its passages."""
    if document.presplit:
        return list(document.passages)
    return [sentence for paragraph in document.passages for sentence in split_paragraph(paragraph, language)]


def split_paragraph(paragraph: str, language: str = "en") -> list[str]:
    """The sentences of a paragraph, without the whitespace around them; nothing else is lost or changed.

    Args:
        paragraph: Any text.
        language: A language code, for its abbreviations and full stops.
    """
    masked = paragraph
    for mark in _MASKED_ASCII:
        masked = masked.replace(mark, " ")
    if not masked.isascii():
        for mark in _MASKED:
            masked = masked.replace(mark, " ")
    sentences = []
    begin = end = last_mark = 0
    for part in _segments(masked, language):
        if end and not masked[end].islower():  # a quoted title ends in "!" and the sentence goes on
            edge = _first_blank(paragraph, last_mark, end)
            sentences.append(paragraph[begin:edge].strip())
            begin = edge
        last_mark = end + len(part.rstrip())
        end += len(part)
    sentences.append(paragraph[begin:].strip())
    return [sentence for sentence in sentences if sentence]


def _segments(text: str, language: str) -> Iterator[str]:
    """Yields the sentences of a paragraph, with the whitespace after each.

    The time that sentencex takes is quadratic in the length of a paragraph (of apostrophes, for instance), so
    it sees _WINDOW characters at once. The last sentence of a window may go on after it and is read again.
    """
    begin = 0
    while begin < len(text):
        window = text[begin : begin + _WINDOW]
        try:
            parts = sentencex.segment(language, window)
        except BaseException as error:  # a Rust panic is no Exception; one paragraph should not end a build
            if type(error).__name__ != "PanicException":
                raise
            parts = [window]
        if begin + _WINDOW < len(text) and len(parts) > 1:
            parts.pop()
        yield from parts
        begin += sum(map(len, parts))


def _first_blank(text: str, begin: int, end: int) -> int:
    """Where a sentence ends that has its last mark before `begin` and its successor at `end`.

    Quotes and brackets before the first blank belong to it, those after to the next one.
    """
    for place in range(begin, end):
        if text[place].isspace():
            return place
    return end
