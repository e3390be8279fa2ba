"""Reads sentences of tagged words from CoNLL or JSON lines files; every error names the file and the line.

A CoNLL file has one word per line, whose columns are separated by tabs if the line contains any, and
otherwise by spaces. An empty line ends a sentence, and a line -DOCSTART- separates documents. A JSON lines
file has one sentence per line: an object with a list of words and a list of tags.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import checks
from bert_jax.io.wording import counted
from bert_jax.tasks.table import (
    PREDICT_FLAGS,
    TRAINING_FLAGS,
    FileReport,
    Malformed,
    check_utf8,
    detect_format,
    encodable,
    encodable_id,
    find_key,
    json_rows,
    text_lines,
)

FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".csv": "", "": "conll"}
DOCUMENT_START = "-DOCSTART-"
WORDS, TAGS, DOCUMENT = "words", "tags", "document"  # default keys of the objects of JSON lines

_WORD_A_LINE = "expected one word per line, no comments, and an empty line after each sentence"


@dataclasses.dataclass
class TaggedSentences(FileReport):
    """The sentences of one file: entry i of every list belongs to the same sentence.

    Attributes:
        path: the path of the file.
        words: the words of each sentence.
        tags: the tags of the words of each sentence; empty if tags were not requested.
        documents: the number, from 0, of the document that each sentence belongs to.
        lines: the line of each word in the file, from 1.
        ids: the ids in a JSON lines file; otherwise the number of each sentence from 0, where malformed
            sentences count.
        has_documents: whether the file marks where documents begin.
        width: the number of columns of a CoNLL file; 0 for JSON lines.
    """

    unit = "sentence"
    columns = ("words", "tags", "documents", "lines", "ids")

    path: str
    words: list[list[str]] = dataclasses.field(default_factory=list)
    tags: list[list[str]] = dataclasses.field(default_factory=list)
    documents: list[int] = dataclasses.field(default_factory=list)
    lines: list[list[int]] = dataclasses.field(default_factory=list)
    ids: list[str] = dataclasses.field(default_factory=list)
    has_documents: bool = False
    width: int = 0

    def __len__(self) -> int:
        return len(self.words)

    def problems(self, wrong: Callable[[str], str]) -> Iterator[str]:
        """Yields the first invalid tag of each sentence with file and line, or "".

        Args:
            wrong: returns an error message for an invalid tag, and "" for a valid one.
        """
        wrong = functools.cache(wrong)
        for tags, lines in zip(self.tags, self.lines, strict=True):
            places = zip(lines, tags, strict=True)
            yield next((f"{self.path}:{line}: {wrong(tag)}" for line, tag in places if wrong(tag)), "")


def read_sentences(
    path: str,
    *,
    word: str = "",
    tag: str = "",
    id: str = "",
    format: str = "auto",
    tagged: bool = True,
    most_columns: int = 0,
) -> TaggedSentences:
    """Reads a whole file of sentences.

    Args:
        path: the path of a file in UTF-8, possibly compressed (.gz, .bz2, .xz, .zst).
        word: the column of the words. In CoNLL files this is a number from 0, or from the end as -1, and the
            first column if empty. In JSON lines it is a key, and "words" if empty. The key "document" in
            JSON lines, if present, identifies the document of a sentence.
        tag: the column of the tags, as `word`; if empty, the last column, or the key "tags".
        id: the key of the ids in JSON lines.
        format: "conll", "jsonl", or "auto" for "jsonl" if the suffix is .jsonl, .json or .ndjson, and
            otherwise "conll".
        tagged: whether tags are read, in which case every word must have one.
        most_columns: a CoNLL file with more columns than this is taken for one with a sentence per line, and
            is an error; 0 for any number.

    Raises:
        UserError: the file is missing or empty, a column is missing, more than 5% of the sentences are
            malformed, or the lines are sentences.
    """
    path = str(path)
    checks.check_input(path, "CoNLL or JSON lines")
    out = TaggedSentences(path)
    kind = detect_format(FORMATS, path, format, TRAINING_FLAGS if tagged else PREDICT_FLAGS)
    if kind == "jsonl":
        sentences = _json_sentences(path, word or WORDS, (tag or TAGS) if tagged else "", id, out)
    else:
        columns = {"text_a": _column(word, 0, path)} | ({"label": _column(tag, -1, path)} if tagged else {})
        sentences = _column_sentences(path, columns, out, most_columns)

    def add(sentence: _Sentence) -> None:
        out.words.append(sentence.words)
        out.documents.append(sentence.document)
        out.lines.append(sentence.lines)
        out.ids.append(str(out.rows - 1) if sentence.id is None else sentence.id)
        if tagged:
            out.tags.append(sentence.tags)

    out.fill(((f"{path}:{line}", sentence) for line, sentence in sentences), add)
    out.check()
    return out


@dataclasses.dataclass
class _Sentence:
    document: int
    words: list[str] = dataclasses.field(default_factory=list)
    tags: list[str] = dataclasses.field(default_factory=list)
    lines: list[int] = dataclasses.field(default_factory=list)
    id: str | None = None


def _column(number: str, default: int, path: str) -> int:
    try:
        return int(number or default)
    except ValueError:
        raise UserError(
            f"{path}: column {number!r}: CoNLL columns are numbers, 0 is the first and -1 the last"
        ) from None


def _column_sentences(path, columns, out, most_columns) -> Iterator[tuple[int, Any]]:
    document, error = 0, None
    sentence = _Sentence(document)
    for number, line in enumerate(text_lines(path), 1):
        fields = _fields(line)
        if not fields or fields[0] == DOCUMENT_START:
            if sentence.words or error:
                yield error or (sentence.lines[0], sentence)
            if fields:
                # The first separator may come before the first document or after it.
                out.has_documents = True
                document += bool(out.rows)
            sentence, error = _Sentence(document), None
            continue
        out.width = out.width or len(fields)
        if most_columns and out.width > most_columns:
            raise UserError(
                f"{path}:{number}: {counted(out.width, 'column')}, {most_columns} in the training file; "
                f"{_WORD_A_LINE}; or sentences on standard input (--input=-), or the column --text_a="
            )
        try:
            check_utf8(line)
            values = _values(fields, out.width, columns)
        except Malformed as malformed:
            error = error or (number, malformed)
            continue
        sentence.words.append(values["text_a"])
        sentence.lines.append(number)
        if "label" in values:
            sentence.tags.append(values["label"])
    if sentence.words or error:
        yield error or (sentence.lines[0], sentence)


def _fields(line: str) -> list[str]:
    # Only spaces and tabs are separators, because other whitespace, such as U+00A0, may be part of a word.
    line = line.rstrip(" \t\r\n")
    if "\t" in line:
        return [field.strip(" ") for field in line.split("\t")]
    return [field for field in line.split(" ") if field]


def _values(fields: list[str], width: int, columns: Mapping[str, int]) -> dict[str, str]:
    if len(fields) != width or ("label" in columns and width < 2):
        expected = f"{width} in the first line" if width > 1 else "expected a word and its tag"
        raise Malformed(f"{counted(len(fields), 'column')}, {expected}; {_WORD_A_LINE}")
    values = {}
    for field, column in columns.items():
        if not -width <= column < width or not fields[column]:
            raise Malformed(
                f"no value in column {column} for data.{field}; the line has {counted(width, 'column')}"
            )
        values[field] = fields[column]
    return values


def _json_sentences(path, word, tag, id, out) -> Iterator[tuple[int, Any]]:
    document, previous = -1, object()
    for line, row in json_rows(path):
        if not isinstance(row, Malformed):
            key = row.get(DOCUMENT)
            out.has_documents |= key is not None
            document, previous = document + (key != previous), key
            try:
                row = _json_sentence(row, line, document, word, tag, id)
            except Malformed as error:
                row = error
        yield line, row


def _json_sentence(row, line, document, word, tag, id) -> _Sentence:
    words = json_list(row, word)
    tags = json_list(row, tag) if tag else []
    if not words or (tag and len(tags) != len(words)):
        raise Malformed(f"{counted(len(words), 'word')} and {counted(len(tags), 'tag')}")
    name = row.get(id) if id else None
    name = name if name is None else encodable_id(name if isinstance(name, str) else json.dumps(name))
    return _Sentence(document, words, tags, [line] * len(words), name)


def json_list(row: Mapping[str, Any], key: str) -> list[str]:
    """Returns the list of strings under a key of a JSON object. Raises Malformed if there is none."""
    values = row[find_key(row, [key])]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise Malformed(f"{key!r}: expected a list of strings; tags are names of classes, not their numbers")
    return [encodable(value) for value in values]
