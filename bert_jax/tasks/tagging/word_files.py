"""Reads sentences of tagged words from CoNLL or JSON lines files; every error names the file and the line.

A CoNLL file has one word per line, whose columns are separated by tabs if the line contains any, and
otherwise by spaces. An empty line ends a sentence, and a line -DOCSTART- separates documents. A JSON lines
file has one sentence per line: an object with a list of words and a list of tags.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import checks
from bert_jax.io.wording import counted
from bert_jax.tasks.readers.file_formats import PREDICT_FLAGS, TRAINING_FLAGS, FileFormats
from bert_jax.tasks.readers.file_rows import JsonRows, Lines
from bert_jax.tasks.readers.json_values import encodable, encodable_id, find_key
from bert_jax.tasks.readers.report import MAX_MALFORMED, FileReport, Malformed

FORMATS = FileFormats({".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".csv": ""}, default="conll")
DOCUMENT_START = "-DOCSTART-"
WORDS, TAGS, DOCUMENT = "words", "tags", "document"  # default keys of the objects of JSON lines

_WORD_A_LINE = "expected one word per line, and an empty line after each sentence"
_SENTENCE_A_LINE = "; sentences of a line each are read from standard input, --input=- < FILE"
_COMMENTS = "; if the lines that begin with # are comments, as in CoNLL-U, remove them: grep -v '^#' FILE"
_CLASSES = (
    "; for numbers of classes write their names, `features[{!r}].feature.names` in Hugging Face's datasets"
)
_ANY_WIDTH = ", and --text_a={} reads that one of any number of columns"


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

    def keep(self, wrong: Callable[[str], str]) -> None:
        """Leaves out the sentences that have an invalid tag; `wrong` is as in `problems`.

        Raises:
            UserError: more than `MAX_MALFORMED` of the sentences of the file were left out in total.
        """
        kept = []
        for i, problem in enumerate(self.problems(wrong)):
            if problem:
                self.leave_out(problem)
            else:
                kept.append(i)
        for name in self.columns:
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in kept])
        self.check()

    def check(self, max_malformed: float = MAX_MALFORMED) -> None:
        """Raises UserError if too many sentences are malformed, or if none is left."""
        super().check(max_malformed)
        if not self.words:
            raise UserError(f"{self.path}: no sentences; expected one word per line, or JSON lines")


def read_sentences(
    path: str,
    *,
    word: str = "",
    tag: str = "",
    id: str = "",
    format: str = "auto",
    tagged: bool = True,
    columns: int | None = 0,
) -> TaggedSentences:
    """Reads a whole file of sentences.

    Args:
        path: the path of a file in UTF-8, with or without a byte-order mark, possibly compressed (.gz, .bz2,
            .xz, .zst).
        word: the column of the words. In CoNLL files this is a number from 0, or from the end as -1, and the
            first column if empty. In JSON lines it is a key, and "words" if empty. The key "document" in
            JSON lines, if present, identifies the document of a sentence.
        tag: the column of the tags, as `word`; if empty, the last column, or the key "tags".
        id: the key of the ids in JSON lines.
        format: "conll", "jsonl", or "auto" for "jsonl" if the suffix is .jsonl, .json or .ndjson, and
            otherwise "conll".
        tagged: whether tags are read, in which case every word must have one.
        columns: without tags, the number of columns of the CoNLL file that the model was trained on, 0 if it
            is not known. A file that has more, or only sentences of one line with several columns, is taken
            for one with a sentence per line. None to read any number of columns.

    Raises:
        UserError: the file is missing or empty, a column is missing, more than 5% of the sentences are
            malformed, or the lines are sentences.
    """
    path = str(path)
    checks.check_input(path, "CoNLL or JSON lines")
    out = TaggedSentences(path)
    lines = Lines(path)
    if FORMATS.detect(path, format, TRAINING_FLAGS if tagged else PREDICT_FLAGS) == "jsonl":
        found = _json_sentences(path, lines, word or WORDS, (tag or TAGS) if tagged else "", id, out)
    else:
        found = _column_sentences(path, lines, word, tag, tagged, out, columns)

    lengths = set()

    def add(sentence: _Sentence) -> None:
        lengths.add(len(sentence.words))
        out.words.append(sentence.words)
        out.documents.append(sentence.document)
        out.lines.append(sentence.lines)
        out.ids.append(str(out.rows - 1) if sentence.id is None else sentence.id)
        if tagged:
            out.tags.append(sentence.tags)

    out.fill(((f"{path}:{line}", sentence) for line, sentence in found), add)
    out.check()
    if not tagged and columns is not None and lengths == {1} and out.width > 2:
        raise UserError(
            f"{path}: no sentence has a second line, and a line has up to {out.width} columns; "
            f"{_WORD_A_LINE}{_SENTENCE_A_LINE}{_ANY_WIDTH.format(word or 0)}"
        )
    return out


@dataclasses.dataclass
class _Sentence:
    document: int
    words: list[str] = dataclasses.field(default_factory=list)
    tags: list[str] = dataclasses.field(default_factory=list)
    lines: list[int] = dataclasses.field(default_factory=list)
    id: str | None = None


def _column_sentences(path, lines, word, tag, tagged, out, expected) -> Iterator[tuple[int, Any]]:
    word, tag = _column("text_a", word, 0, path), _column("label", tag, -1, path)
    columns = {"text_a": word} | ({"label": tag} if tagged else {})
    document = 0
    sentence, error, first = _Sentence(document), None, ""
    for number, line in enumerate(lines, 1):
        fields = _fields(line)
        if not fields or fields[0] == DOCUMENT_START:
            if sentence.words or error:
                yield error or (sentence.lines[0], sentence)
                sentence = _Sentence(document)
            if fields:
                # The first separator may come before the first document or after it.
                out.has_documents = True
                document += bool(out.rows)
                sentence = _Sentence(document)
            error = None
            continue
        out.width, first = out.width or len(fields), first or fields[0]
        # The width is wrong in all other lines if the first one is a comment.
        hint = _COMMENTS if "#" in (first[:1], fields[0][:1]) else ""
        if not tagged and expected and out.width > expected:
            raise UserError(
                f"{path}:{number}: {counted(out.width, 'column')}, {expected} in the training file; "
                f"{_WORD_A_LINE}{hint or _SENTENCE_A_LINE + _ANY_WIDTH.format(word)}"
            )
        try:
            if number in lines.undecodable:
                raise Malformed("not UTF-8")
            values = _values(fields, out.width, columns, hint)
        except Malformed as malformed:
            error = error or (number, malformed)
            continue
        sentence.words.append(values["text_a"])
        sentence.lines.append(number)
        if tagged:
            sentence.tags.append(values["label"])
    if sentence.words or error:
        yield error or (sentence.lines[0], sentence)


def _column(field, given, default, path):
    if not given:
        return default
    if not re.fullmatch(r"-?\d{1,9}", given):
        raise UserError(
            f"data.{field}={given}: {path} has CoNLL columns, which are numbers: 0 is the first, -1 the last"
        )
    return int(given)


def _fields(line):
    # Only spaces and tabs are separators, because other whitespace, such as U+00A0, may be part of a word.
    line = line.rstrip(" \t\r\n")
    if "\t" in line:
        return [field.strip(" ") for field in line.split("\t")]
    return [field for field in line.split(" ") if field]


def _values(fields, width, columns, hint):
    if "label" in columns and len(fields) < 2:
        raise Malformed(f"1 column, expected a word and its tag{hint}")
    if len(fields) != width:
        hint = hint or ("" if "label" in columns else _SENTENCE_A_LINE)
        raise Malformed(f"{counted(len(fields), 'column')}, {width} in the first line; {_WORD_A_LINE}{hint}")
    values = {}
    for field, column in columns.items():
        if not -len(fields) <= column < len(fields):
            raise Malformed(f"no column {column} for data.{field}: the line has {len(fields)}")
        values[field] = fields[column]
        if not fields[column]:
            raise Malformed(f"an empty {'tag' if field == 'label' else 'word'} in column {column}")
    return values


def _json_sentences(path, lines, word, tag, id, out) -> Iterator[tuple[int, Any]]:
    document, previous = -1, object()
    for line, row in JsonRows(path, lines):
        if not isinstance(row, Malformed):
            key = row.get(DOCUMENT)
            out.has_documents |= key is not None
            document, previous = document + (key != previous), key
            try:
                row = _json_sentence(row, line, document, word, tag, id)
            except Malformed as error:
                row = error
        yield line, row


def _json_sentence(row, line, document, word, tag, id):
    words = json_list(row, word)
    tags = json_list(row, tag) if tag else []
    if tag and len(tags) != len(words):
        raise Malformed(f"{counted(len(words), 'word')} and {counted(len(tags), 'tag')}")
    if not words:
        raise Malformed(f"no words in {word!r}")
    name = row.get(id) if id else None
    name = name if name is None else encodable_id(name if isinstance(name, str) else json.dumps(name))
    return _Sentence(document, words, tags, [line] * len(words), name)


def json_list(row: Mapping[str, Any], key: str) -> list[str]:
    """Returns the list of strings under a key of a JSON object. Raises Malformed if there is none."""
    values = row[find_key(row, [key])]
    if not isinstance(values, list):
        raise Malformed(f"{key!r} is {type(values).__name__}, expected a list of strings")
    for value in values:
        if not isinstance(value, str):
            hint = _CLASSES.format(key) if isinstance(value, int) else ""
            raise Malformed(f"{key!r} holds {type(value).__name__}, expected strings{hint}")
    return [encodable(value) for value in values]
