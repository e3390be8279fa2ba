"""Reports problems of a corpus before records are made from it: the part of `bert-jax inspect` for text.

Memory is bounded: once there are over a million distinct lines or documents, only the hashes of a random
half, quarter, ... of them are kept, and of a large corpus only evenly spaced pieces are read. The facts in
the report say where this is the case.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Sequence
from typing import Any

from bert_jax import tokenization
from bert_jax.data.inspection import Report
from bert_jax.data.inspection.approx_distinct import DistinctSample
from bert_jax.io import files, progress
from bert_jax.io.wording import counted
from data_pipelines import cleaning, readers

MOST_BYTES = 1 << 30  # of a larger corpus, only pieces with this total size are read
_PIECE_BYTES = 8 << 20
_MOST_WORDS = 1 << 20  # size of the cache of words, known or unknown to the vocabulary
_FREQUENT_WIDTH = 1 << 17
_MOST_ENCODED_CHARACTERS = 32 << 20
_BATCH_CHARACTERS = 1 << 18
_LONG_LINE = 10_000  # characters; sentences and paragraphs are shorter
_LARGEST_VOCABULARY = 64 << 20  # bytes; a larger file is taken for text without reading it
_SHOWN = 5
_SHOWN_CHARACTERS = 80
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]{0,200}>|&(?:[a-z]{2,8}|#\d{2,6});|\{\{|\}\}|\[\[|\]\]")
_WORD = re.compile(r"\w+|[^\w\s]")

_HIGH_SHARES = {"duplicate_text": 0.05, "duplicate_documents": 0.01, "markup_lines": 0.01}
_HIGH_UNKNOWN_SHARE = 0.01
_FEW_LINES = 100  # below this number a share is not judged


class Frequent:
    """Finds the most frequent texts of a stream by lossy counting (Manku and Motwani, VLDB 2002).

    With n texts seen, a count is too small by at most n / width, and no text that occurred more often than
    that is missing. Of a long text, the beginning and a hash of the whole are kept.
    """

    def __init__(self, width: int = _FREQUENT_WIDTH):
        self._width, self._seen = width, 0
        # {(beginning, hash): (count, maximum number of missed ones)}
        self._counts: dict[tuple[str, int], tuple[int, int]] = {}

    def add(self, text: str) -> None:
        """Counts a text."""
        key = _around(text, 0, 0), hash(text)
        count, missed = self._counts.get(key, (0, self._seen // self._width))
        self._counts[key] = count + 1, missed
        self._seen += 1
        if self._seen % self._width == 0:
            bucket = self._seen // self._width
            self._counts = {t: c for t, c in self._counts.items() if sum(c) > bucket}

    def most(self, number: int, least: int = 2) -> dict[str, int]:
        """Returns the counts of the `number` most frequent texts that were counted at least `least` times.

        Long texts are cut. Of texts that are the same then, the most frequent one is returned.
        """
        found = sorted(self._counts.items(), key=lambda item: (-item[1][0], item[0]))
        counts: dict[str, int] = {}
        for (shown, _), (count, _) in found:
            if count < least or len(counts) == number:
                break
            counts.setdefault(shown, count)
        return counts


def inspect_corpus(
    inputs: Sequence[str],
    input_format: str = readers.AUTO,
    vocab: str | None = None,
    fields: readers.Fields = readers.Fields(),  # noqa: B008 (frozen)
    tfds_data_dir: str = "",
) -> Report:
    """Reads text as `bert-jax data` does and reports what would harm a model.

    Args:
        inputs: files, folders or patterns.
        input_format: one of `readers.FORMATS`, or `readers.AUTO`.
        vocab: a vocabulary with which the share of unknown tokens is measured, or None.
        fields: the fields to read of JSON or TFDS records; see `readers.read_documents`.
        tfds_data_dir: see `readers.list_inputs`.

    Raises:
        UserError: there is no text, the format is unknown, `vocab` is not a vocabulary, or `fields` or
            `tfds_data_dir` have no effect.
    """
    paths = readers.list_inputs(inputs, tfds_data_dir)
    input_format = readers.check_flags(paths, input_format, fields, tfds_data_dir)
    tokenizer = tokenization.load(vocab, log=progress.log) if vocab else None
    ranges = readers.split_ranges(paths, _PIECE_BYTES, input_format)
    total = sum(range_.size for range_ in ranges)
    every = -(-total // MOST_BYTES)
    found = _Found(tokenizer)
    cut = False
    for range_ in ranges[::every]:
        most = found.characters + MOST_BYTES
        for document in readers.read_documents(range_, input_format, found.read, fields):
            found.add(document, range_)
            # A compressed file is one range, and the size of its text is not known in advance.
            if range_.end is None and found.characters > most:
                cut = True
                break
    found.encode()
    report = Report(inputs[0] if len(inputs) == 1 else f"{inputs[0]}, ...", "corpus")
    report.facts = {"files": len(paths), "bytes": total, "input_format": input_format}
    if every > 1:
        read = sum(range_.size for range_ in ranges[::every])
        report.facts["sampled"] = (
            f"{read:,} bytes in {counted(len(ranges[::every]), 'evenly spaced piece')} were read"
        )
    if cut:
        report.facts["cut"] = f"of a compressed file, the first {MOST_BYTES:,} characters were read"
    report.facts |= found.facts()
    report.problems = found.problems(input_format, cut or every > 1)
    return report


class _Found:
    """Accumulates counts over the documents of a corpus."""

    def __init__(self, tokenizer: tokenization.Tokenizer | None):
        self._tokenizer = tokenizer
        self.read: collections.Counter[str] = collections.Counter()
        self.lines = self.characters = self.markup = self.long = 0
        # The key of the line's document and the range that contains it.
        self._longest: tuple[int, str, readers.Range | None] = (0, "", None)
        self._markup_example: tuple[str, str, readers.Range] | None = None
        self._line_sample, self._document_sample = DistinctSample(), DistinctSample()
        self._frequent_lines, self._unknown_words = Frequent(), Frequent()
        self._known: dict[str, bool] = {}
        self._waiting: list[str] = []
        self._waiting_size = self._encoded = self.tokens = self.unknown = 0

    def add(self, document: readers.Document, range_: readers.Range) -> None:
        self._document_sample.add(_bytes(cleaning.folded_text(document.passages)))
        for line in document.passages:
            self.lines += 1
            self.characters += len(line)
            folded = cleaning.folded_text([line])
            self._line_sample.add(_bytes(folded))
            self._frequent_lines.add(folded)
            if len(line) > self._longest[0]:
                self._longest = len(line), document.key, range_
            self.long += len(line) > _LONG_LINE
            if match := _MARKUP.search(line):
                self.markup += 1
                self._markup_example = self._markup_example or (
                    _around(line, *match.span()),
                    document.key,
                    range_,
                )
            if self._tokenizer and self._encoded + self._waiting_size < _MOST_ENCODED_CHARACTERS:
                self._waiting.append(line)
                self._waiting_size += len(line)
        if self._waiting_size >= _BATCH_CHARACTERS:
            self.encode()

    def encode(self) -> None:
        """Tokenizes the waiting lines and counts their unknown tokens."""
        if not self._tokenizer or not self._waiting:
            return
        unknown_id = self._tokenizer.unk_id
        for line, ids in zip(self._waiting, self._tokenizer.encode_batch(self._waiting), strict=True):
            self.tokens += len(ids)
            found = ids.count(unknown_id)
            self.unknown += found
            if found:
                words = _WORD.findall(line)
                new = sorted(set(words).difference(self._known))
                for word, alone in zip(new, self._tokenizer.encode_batch(new), strict=True):
                    self._known[word] = unknown_id not in alone
                for word in words:
                    if not self._known[word]:
                        self._unknown_words.add(word)
                if len(self._known) > _MOST_WORDS:
                    self._known.clear()
        self._encoded += self._waiting_size
        self._waiting, self._waiting_size = [], 0

    def facts(self) -> dict[str, Any]:
        lines = max(1, self.lines)
        facts: dict[str, Any] = {
            "documents": self.read["documents"],
            "lines": self.lines,
            "characters": self.characters,
            "duplicate_lines": self._line_sample.repeated_share(),
            "duplicate_text": self._line_sample.repeated_share_of_bytes(),
            "duplicate_documents": self._document_sample.repeated_share(),
            "markup_lines": self.markup / lines,
            "long_lines": self.long,
            "longest_line": self._longest[0],
            "undecodable": self.read["undecodable"],
            "control_characters": self.read["control_characters"],
            "bad_lines": self.read["bad_lines"],
            "without_text": self.read["without_text"],
        }
        for name, sample in (("lines", self._line_sample), ("documents", self._document_sample)):
            if estimated := sample.how_estimated():
                facts[f"duplicate_{name}_estimated"] = estimated
        facts["frequent_lines"] = self._frequent_lines.most(_SHOWN)
        if self._tokenizer:
            facts["tokens"] = self.tokens
            facts["unknown_share"] = self.unknown / max(1, self.tokens)
            facts["unknown_words"] = self._unknown_words.most(4 * _SHOWN, 1)
            if self._encoded < self.characters:
                facts["unknown_share_of"] = f"the first {self._encoded:,} characters read"
        return facts

    def problems(self, input_format: str, sampled: bool) -> list[str]:
        """Returns what should be fixed in the corpus, and how."""
        facts, problems = self.facts(), []
        if not self.lines:
            return [f"no text was found: is --input_format={input_format} right?"]
        if facts["documents"] == 1 and not sampled:
            more = "give more documents (in text, a blank line ends one), or --nsp=none"
            problems.append(f"the corpus is one document, and next-sentence prediction needs others: {more}")
        elif (
            readers.FORMATS[input_format].sentence_lines
            and facts["lines"] == facts["documents"] >= _FEW_LINES
        ):
            problems.append(
                "every document is one line, so no sentence has a next one: are there blank lines between "
                "the sentences of a document?"
            )
        problems += readers.suspicions(self.read) + readers.left_out(self.read)
        if self.read["long_documents"]:
            problems.append(
                f"{counted(self.read['long_documents'], 'document')} of over "
                f"{readers.MAX_DOCUMENT_BYTES >> 20} MB: are the blank lines between documents missing?"
            )
        example = ""
        if self._markup_example:
            line, key, range_ = self._markup_example
            example = f"{line!r} in the document at {readers.place(key, range_)}"
        advice = {
            "duplicate_text": "lines repeat earlier ones: are there headers, footers or menus?",
            "duplicate_documents": "bert-jax data --clean=exact,near drops them",
            "markup_lines": f"such as {example}: --input_format=wikipedia_xml and wikiextractor "
            "drop the markup of such files; take any other out before (docs/corpora.md)",
        }
        for name, most in _HIGH_SHARES.items():
            if facts[name] > most and self.lines >= _FEW_LINES:
                problems.append(f"{facts[name]:.1%} {name.replace('_', ' ')}; {advice[name]}")
        if self.long:
            sentence_lines = readers.FORMATS[input_format].sentence_lines
            problems.append(
                f"lines of over {_LONG_LINE:,} characters: {self.long}, the longest of {self._longest[0]:,} "
                f"in the document at {readers.place(*self._longest[1:])}: "  # type: ignore[arg-type]
                + ("one sentence a line is expected" if sentence_lines else "is that text?")
            )
        if self.read["undecodable"]:
            problems.append(
                f"{counted(self.read['undecodable'], 'place')} of the text cannot be decoded: convert files "
                "to UTF-8 with iconv, or write JSON without halves of surrogate pairs such as \\ud83d"
            )
        if self._tokenizer and facts["unknown_share"] > _HIGH_UNKNOWN_SHARE:
            words = ", ".join(list(facts["unknown_words"])[:_SHOWN])
            problems.append(
                f"{facts['unknown_share']:.1%} of the tokens are [UNK] ({words}): was the vocabulary made "
                "for this language, case and script?"
            )
        return problems


def _around(line: str, start: int, end: int) -> str:
    """Returns at most _SHOWN_CHARACTERS of a line around [start, end), with "..." where the line is cut."""
    begin = max(
        0,
        min(
            start - (_SHOWN_CHARACTERS - min(end - start, _SHOWN_CHARACTERS)) // 2,
            len(line) - _SHOWN_CHARACTERS,
        ),
    )
    stop = begin + _SHOWN_CHARACTERS
    return "..." * (begin > 0) + line[begin:stop] + "..." * (stop < len(line))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def looks_like_vocabulary(path: str) -> bool:
    """Returns whether a .txt file is a WordPiece vocabulary: whether a line is a special token of BERT."""
    if os.path.basename(path).startswith("vocab"):
        return True
    if files.size(path) > _LARGEST_VOCABULARY:
        return False
    with files.open_read(path) as file:
        return any(line.strip() in (b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]") for line in file)
