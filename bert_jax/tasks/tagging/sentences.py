"""Reads sentences of tagged words from CoNLL, JSON lines, Parquet and Arrow files, and encodes them.

A CoNLL file has one word per line. Columns are separated by tabs if the line contains any, and otherwise by
spaces. An empty line ends a sentence, and a line -DOCSTART- separates documents. The other files have one
sentence per row: a list of words and a list of tags.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.tasks.rows import assembly, batches
from bert_jax.tasks.table import (
    FORMATS,
    FileReport,
    Malformed,
    detect_format,
    encodable,
    find_key,
    json_text,
    records,
    text_lines,
)
from bert_jax.tokenization import Tokenizer

DOCUMENT_START = "-DOCSTART-"
# The default columns of a sentence: our names, and usual names on the Hugging Face hub.
WORDS, TAGS, DOCUMENT = ("words", "tokens"), ("tags", "ner_tags", "pos_tags"), "document"
_FORMATS = {**FORMATS, ".tsv": "conll", ".csv": "", "": "conll"}


@dataclasses.dataclass
class TaggedSentences(FileReport):
    """The sentences of one file: entry i of every list belongs to the same sentence.

    Attributes:
        path: the path of the file.
        words: the words of each sentence.
        tags: the tags of the words of each sentence; empty if tags were not requested.
        documents: the number of each sentence's document, from 0.
        ids: the ids if the file has them; otherwise the number of each sentence from 0, counting malformed
            sentences.
        has_documents: whether the file marks where documents begin.
    """

    unit = "sentence"
    columns = ("words", "tags", "documents", "ids")

    path: str
    words: list[list[str]] = dataclasses.field(default_factory=list)
    tags: list[list[str]] = dataclasses.field(default_factory=list)
    documents: list[int] = dataclasses.field(default_factory=list)
    ids: list[str] = dataclasses.field(default_factory=list)
    has_documents: bool = False

    def __len__(self) -> int:
        return len(self.words)


def read_sentences(
    path: str, *, word: str = "", tag: str = "", id: str = "", format: str = "auto", tagged: bool = True
) -> TaggedSentences:
    """Reads a whole file of sentences.

    Args:
        path: the path of a file; text is in UTF-8, possibly compressed (.gz, .bz2, .xz, .zst).
        word: the column of the words. In CoNLL files, it is a number from 0, or negative from the end, and
            the default is the first column. In other files, it is a name, by default one of `WORDS`. The
            column "document", if present, identifies the document of a sentence.
        tag: the column of the tags, like `word`; the default is the last column, or one of `TAGS`.
        id: the column of the ids; not for CoNLL files.
        format: "conll", "jsonl", or "auto" to use the suffix; suffixes that are not for tables mean CoNLL.
        tagged: whether to read tags; if so, every word must have one.

    Raises:
        UserError: the file is missing or empty, a column is missing, or more than 5% of the sentences are
            malformed.
    """
    path = str(path)
    kind = detect_format(_FORMATS, path, format)
    if kind == "conll" and id:
        raise UserError(f"{path}: the column {id!r} of the id has no effect with CoNLL columns")
    rows = _conll(path, word, tag, tagged) if kind == "conll" else records(path, kind)
    columns = ("", "") if kind == "conll" else (word, tag)
    names = [[each] if each else known for each, known in zip(columns, (WORDS, TAGS), strict=True)]
    out = TaggedSentences(path)
    previous: Any = None

    def add(row: Mapping[str, Any]) -> None:
        nonlocal previous
        words = words_of(row, names[0])
        tags = words_of(row, names[1]) if tagged else []
        if not words or (tagged and len(tags) != len(words)):
            raise Malformed(f"{counted(len(words), 'word')} and {counted(len(tags), 'tag')}")
        document, key = out.documents[-1] if out.documents else 0, row.get(DOCUMENT)
        out.has_documents |= key is not None
        out.documents.append(document + (bool(out.documents) and key != previous))
        previous = key
        out.ids.append(json_text(row[id], "id", id) if id and row.get(id) is not None else str(out.rows - 1))
        out.words.append(words)
        if tagged:
            out.tags.append(tags)

    out.fill(((f"{path}:{line}", row) for line, row in rows), add)
    out.check()
    return out


def _conll(path: str, word: str, tag: str, tagged: bool) -> Iterator[tuple[int, dict[str, Any] | Malformed]]:
    try:
        numbers = [int(word or 0), *([int(tag or -1)] if tagged else [])]
    except ValueError:
        raise UserError(f"{path}: expected numbers of CoNLL columns, not {word!r} and {tag!r}") from None
    sentence: list[list[str]] = []
    document, width, first, problem = None, 0, 0, None
    for line, text in enumerate(itertools.chain(text_lines(path), [""]), 1):
        # Only spaces and tabs are separators: other whitespace, such as U+00A0, may be part of a word.
        text = text.rstrip(" \t\r\n")
        fields = text.split("\t") if "\t" in text else list(filter(None, text.split(" ")))
        fields = [field.strip(" ") for field in fields]
        if not fields or fields[0] == DOCUMENT_START:
            if problem:
                yield first, problem
            elif sentence:
                columns = zip((WORDS[0], TAGS[0]), map(list, zip(*sentence, strict=True)), strict=False)
                yield first, {**dict(columns), DOCUMENT: document}
            if fields:
                document = (document or 0) + 1
            sentence, problem = [], None
            continue
        first = first if sentence else line
        width = width or len(fields)
        values = [fields[number] for number in numbers if -len(fields) <= number < len(fields)]
        if len(fields) != width or len(values) < len(numbers) or not all(values) or (tagged and width < 2):
            what = f"line {line} has {counted(len(fields), 'column')}, expected {max(width, 1 + tagged)}"
            problem = problem or Malformed(f"{what}, one word per line, an empty line after each sentence")
        sentence.append(values)


def words_of(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Returns the list of strings under the first of `keys` with a value. Raises Malformed without one."""
    values = row[key := find_key(row, keys)]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise Malformed(f"{key!r}: expected a list of strings")
    return [encodable(value) for value in values]


@dataclasses.dataclass(kw_only=True)
class TaggedRows(batches.EncodedRows):
    """The rows of sentences.

    Attributes:
        word_tokens: int64 [words of all sentences], the position in `tokens` of each word's first subword, in
            the row with the most context for the word.
    """

    word_tokens: np.ndarray

    def compared(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the outputs of all tokens and their targets."""
        return outputs, self.token_targets["tags"]


def encode(
    examples: TaggedSentences,
    tokenizer: Tokenizer,
    max_seq_length: int,
    labels: tuple[str, ...],
    document_context: bool = False,
) -> TaggedRows:
    """Encodes each sentence as a row, [CLS] words [SEP], or as several windows if it is too long.

    A word without subwords becomes [UNK], and a word with more subwords than fit into a row is truncated.
    `labels` are the tags in the order of the logits; other tags have no target. With `document_context`, the
    words around a sentence in its document fill up its row.
    """
    budget = tokenizer.layout.room(max_seq_length, pair=False)
    vocabulary = dict.fromkeys(itertools.chain.from_iterable(examples.words))
    ids = {word: number for number, word in enumerate(vocabulary)}
    words = [tokenizer.after_space(word) for word in ids]
    subwords = [tokens or [tokenizer.unk_id] for tokens in tokenizer.encode_batch(words)]
    cut = np.array([len(tokens) > budget for tokens in subwords])
    subwords = [np.asarray(tokens[:budget], np.int32) for tokens in subwords]
    lengths = np.array([len(tokens) for tokens in subwords])
    names = {name: number for number, name in enumerate(labels)}

    builder, word_tokens, tags, truncated = assembly.RowBuilder(tokenizer), [], [], 0
    documents = examples.documents if document_context else range(len(examples))
    for _, sentences in itertools.groupby(range(len(examples)), documents.__getitem__):
        numbers = list(sentences)
        document = np.array([ids[word] for sentence in numbers for word in examples.words[sentence]])
        offsets = np.concatenate([[0], np.cumsum(lengths[document])])
        stop = 0
        for sentence in numbers:
            start, stop = stop, stop + len(examples.words[sentence])
            truncated += bool(cut[document[start:stop]].any())
            inside = offsets[start : stop + 1]
            spans = assembly.split(inside, budget, max(budget // 2, 1))
            chosen = assembly.most_context(inside, spans)
            spans = [(start + a, start + b) for a, b in spans]
            if len(spans) == 1:
                spans = [widen(offsets, start, stop, budget)]
            positions = np.empty(stop - start, np.int64)
            for row, (a, b) in enumerate(spans):
                row_begin = builder.add(sentence, np.concatenate([subwords[word] for word in document[a:b]]))
                in_row = np.flatnonzero(chosen == row)
                text_begin = row_begin + tokenizer.layout.first_start
                positions[in_row] = text_begin + offsets[start + in_row] - offsets[a]
            word_tokens.append(positions)
            if examples.tags:
                tags.append([names.get(tag, batches.NO_TARGET) for tag in examples.tags[sentence]])
    word_tokens = np.concatenate(word_tokens)
    token_targets = {}
    if examples.tags:
        token_targets["tags"] = np.full(builder.total, batches.NO_TARGET, np.int32)
        token_targets["tags"][word_tokens] = np.concatenate(tags)
    return TaggedRows(
        **builder.arrays(max_seq_length),
        targets={},
        truncated=truncated,
        token_targets=token_targets,
        word_tokens=word_tokens,
    )


def widen(offsets: np.ndarray, begin: int, end: int, room: int) -> assembly.Span:
    """Extends the units [begin, end) on both sides by as many units as fit into `room` tokens.

    Each side gets half of the spare tokens. If one side has fewer tokens, the other side gets the rest.
    """
    spare = room - (offsets[end] - offsets[begin])
    before, after = offsets[begin] - offsets[0], offsets[-1] - offsets[end]
    left = min(before, max(spare // 2, spare - after))
    right = min(after, spare - left)
    first = int(np.searchsorted(offsets, offsets[begin] - left))
    last = int(np.searchsorted(offsets, offsets[end] + right, side="right")) - 1
    return first, last
