"""Defines the formats of a corpus, and the signs that a text has another format."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from bert_jax.errors import UserError
from bert_jax.io import compression, files, json_files
from bert_jax.io.wording import counted
from data_pipelines.readers import books, csv_rows, jsonl, text, wikiextractor, wikipedia_xml
from data_pipelines.readers.documents import Controls, Document, Fields, Range

_MARKS = (". ", "! ", "? ", "।", "。", "！", "？")  # the ends of sentences, and of some abbreviations
_LONG_LINE_WORDS = 60  # on average; a sentence has about 20
_SEVERAL_SENTENCES = 1.5  # on average; with abbreviations, lines of one sentence have up to 1.13
_FEW_LINES = 20  # below this number a corpus is not judged
# The beginnings of lines of other formats, by the count of those that have them.
_BEGINNINGS = {"page_lines": "<page>", "json_lines": '{"'}
AUTO = "auto"
_OF_SUFFIXES = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".xml": "wikipedia_xml",
    **dict.fromkeys(json_files.LINES_SUFFIXES, "jsonl"),
}
_HIGH_LEFT_OUT_SHARE = 0.01  # of the records; some corpora have a few without text


@dataclasses.dataclass(frozen=True)
class Format:
    """One value of --input_format.

    Attributes:
        read: yields the documents that start in a range, and updates the counts.
        whole: whether a file is one document and cannot be split.
        streams: whether a .bz2 file of several streams may be split where a stream begins.
        has_fields: whether `Fields` determine what is read.
        blank_line_ends: whether a blank line ends a document.
        sentence_lines: whether a line is a sentence; in other formats, lines are split into sentences.
        doc_elements: whether <doc ...> lines are part of the format and not of the text.
    """

    read: Callable[[Range, collections.Counter[str], Fields, Controls], Iterator[Document]]
    whole: bool = False
    streams: bool = False
    has_fields: bool = False
    blank_line_ends: bool = False
    sentence_lines: bool = False
    doc_elements: bool = False


FORMATS: dict[str, Format] = {
    "text": Format(text.read, blank_line_ends=True, sentence_lines=True),
    "paragraphs": Format(functools.partial(text.read, presplit=False), blank_line_ends=True),
    "wikiextractor": Format(wikiextractor.read, doc_elements=True),
    "wikipedia_xml": Format(wikipedia_xml.read, streams=True),
    "books": Format(books.read, whole=True),
    "jsonl": Format(jsonl.read, has_fields=True),
    "csv": Format(csv_rows.read, whole=True, has_fields=True),
}


def named(name: str) -> Format:
    """Returns the format with this name.

    Raises:
        UserError: the format is unknown.
    """
    if name not in FORMATS:
        raise UserError(f"--input_format={name}: expected {AUTO} or one of {', '.join(FORMATS)}")
    return FORMATS[name]


def count_signs(
    document: Document, format: Format, counts: collections.Counter[str], of_lines: bool = True
) -> None:
    """Updates the counts that `suspicions` uses with a document.

    Args:
        document: the document.
        format: the format in which it was read.
        counts: updated.
        of_lines: whether the passages are the lines of a file, not of a row or a record.
    """
    if not format.doc_elements:
        counts["doc_lines"] += sum(passage.startswith("<doc ") for passage in document.passages)
    if of_lines and format.blank_line_ends:
        counts["text_lines"] += len(document.passages)
        for name, beginning in _BEGINNINGS.items():
            counts[name] += sum(passage.startswith(beginning) for passage in document.passages)
    if document.presplit:
        counts["sentence_lines"] += len(document.passages)
        for passage in document.passages:
            counts["sentence_line_words"] += passage.count(" ") + 1
            counts["inner_sentence_ends"] += sum(passage.count(mark, 0, -1) for mark in _MARKS)


def resolve(given: str, paths: Sequence[str]) -> str:
    """Returns the name of the format of a corpus: `given`, or for AUTO the one that the suffixes imply.

    Args:
        given: AUTO or one of FORMATS.
        paths: the files of text; the suffix of a compression is ignored. Without any, AUTO is "text".

    Raises:
        UserError: the format is unknown, a suffix does not imply one, or the suffixes imply several.
    """
    if given != AUTO:
        named(given)
        return given
    found: dict[str, str] = {}
    for path in paths:
        suffix = files.suffix(compression.strip_suffix(path))
        if suffix not in _OF_SUFFIXES:
            raise UserError(
                f"{path}: its suffix does not imply a format; give --input_format={'|'.join(FORMATS)}"
            )
        found.setdefault(_OF_SUFFIXES[suffix], path)
    if len(found) > 1:
        several = ", ".join(f"{path} ({name})" for name, path in found.items())
        raise UserError(f"the inputs have several formats: {several}; give --input_format or fewer inputs")
    return next(iter(found), "text")


def suspicions(counts: Mapping[str, int]) -> list[str]:
    """Returns messages about signs that the text has another format, with the flag to give."""
    doc_lines, page_lines, json_lines, text_lines, lines, words, ends = (
        counts.get(name, 0)  # records of an older version lack some of them
        for name in (
            *("doc_lines", "page_lines", "json_lines", "text_lines"),
            *("sentence_lines", "sentence_line_words", "inner_sentence_ends"),
        )
    )
    found = []
    if doc_lines:
        found.append(
            f"{counted(doc_lines, 'line of the text begins', 'lines of the text begin')} with <doc: are the "
            "files WikiExtractor's? give --input_format=wikiextractor"
        )
    if page_lines:
        found.append(
            f"{counted(page_lines, 'line of the text begins', 'lines of the text begin')} with <page>: is it "
            "a dump of MediaWiki? give --input_format=wikipedia_xml"
        )
    if 2 * json_lines > text_lines:
        found.append(
            f'{json_lines:,} of the {counted(text_lines, "line")} of the text begin with {{": are they JSON '
            "objects? give --input_format=jsonl --text_field=NAME"
        )
    # The lines of other formats are often long, too, and they are no paragraphs.
    if lines >= _FEW_LINES and not found:
        words, sentences = words / lines, 1 + ends / lines
        if words > _LONG_LINE_WORDS or sentences >= _SEVERAL_SENTENCES:
            found.append(
                f"a line of the text has {words:.0f} words and {sentences:.1f} sentences on average, where "
                "one sentence is expected: if the lines are paragraphs, give --input_format=paragraphs"
            )
    return found


def left_out(counts: Mapping[str, int]) -> list[str]:
    """Returns a message if over 1% of the records (lines of JSON, rows of a table) were left out."""
    bad, without = (counts.get(name, 0) for name in ("bad_lines", "without_text"))
    records = counts.get("documents", 0) + bad + without
    if bad + without <= _HIGH_LEFT_OUT_SHARE * records:
        return []
    reasons = []
    if bad:
        reasons.append(
            f"{counted(bad, 'bad line')} (no JSON object, over 32 MB, or another number of fields than the "
            "first row): mend the file"
        )
    if without:
        reasons.append(f"{counted(without, 'record')} without text in its field: is --text_field right?")
    share = (bad + without) / records
    return [f"{share:.1%} of the {counted(records, 'record')} were left out: {'; '.join(reasons)}"]
