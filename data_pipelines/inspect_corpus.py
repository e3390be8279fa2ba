"""Reports problems of a corpus before records are made from it: `bert-jax inspect` for text.

Memory is bounded: once there are over a million distinct lines or documents, only the hashes of a random
sample are kept, and the reported fractions are estimates. Of a corpus of over MOST_BYTES, evenly spaced
ranges are read.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Sequence
from typing import Any

from bert_jax import tokenization
from bert_jax.data.inspection import DistinctSample, Report
from bert_jax.io import files, progress
from bert_jax.io.wording import counted
from data_pipelines import cleaning, readers

MOST_BYTES = 1 << 30  # of a larger corpus, only ranges with this total size are read
_RANGE_BYTES = 8 << 20
_MOST_TEXTS = 1 << 20  # that are counted; the rarest are forgotten then
_MOST_ENCODED_CHARACTERS = 32 << 20
_BATCH_CHARACTERS = 1 << 18
_LONG_LINE = 10_000  # characters; sentences and paragraphs are shorter
_LARGEST_VOCABULARY = 64 << 20  # bytes; a larger file is taken for text without reading it
_SHOWN = 5
_SHOWN_CHARACTERS = 80
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]{0,200}>|&(?:[a-z]{2,8}|#\d{2,6});|\{\{|\}\}|\[\[|\]\]")
_WORD = re.compile(r"\w+|[^\w\s]")

_HIGH_FRACTIONS = {
    "duplicate_text": (0.05, "lines repeat earlier ones: are there headers, footers or menus?"),
    "duplicate_documents": (0.01, "bert-jax data --clean=exact,near drops them"),
    "markup_lines": (
        0.01,
        "--input_format=wikipedia_xml and wikiextractor drop the markup of such files (docs/corpora.md)",
    ),
}
_HIGH_UNKNOWN_FRACTION = 0.01
_FEW_LINES = 100  # a corpus with fewer lines is not judged


def inspect_corpus(
    inputs: Sequence[str],
    input_format: str = readers.AUTO,
    vocab: str | None = None,
    fields: readers.Fields = readers.Fields(),  # noqa: B008 (frozen)
) -> Report:
    """Reads text as `bert-jax data` does and reports what would harm a model.

    Args:
        inputs: files, folders or patterns.
        input_format: one of `readers.FORMATS`, or `readers.AUTO`.
        vocab: a vocabulary with which the fraction of unknown tokens is measured, or None.
        fields: the fields to read of JSON or TFDS records; see `readers.read_documents`.

    Raises:
        UserError: there is no text, the format is unknown, `vocab` is not a vocabulary, or `fields` has no
            effect.
    """
    paths = readers.list_inputs(inputs)
    input_format = readers.resolve_format(paths, input_format, fields)
    ranges = readers.split_ranges(paths, _RANGE_BYTES, input_format)
    total = sum(range_.size for range_ in ranges)
    every = -(-total // MOST_BYTES)
    counter = _Counter(tokenization.load(vocab, log=progress.log) if vocab else None)
    cut = False
    for range_ in ranges[::every]:
        most = counter.characters + MOST_BYTES
        for document in readers.read_documents(range_, input_format, counter.read, fields):
            counter.add(document)
            # A compressed file is one range, and the size of its text is not known in advance.
            if range_.end is None and counter.characters > most:
                cut = True
                break
    counter.encode()
    report = Report(inputs[0] if len(inputs) == 1 else f"{inputs[0]}, ...", "corpus")
    report.facts = {"files": len(paths), "bytes": total, "input_format": input_format}
    if every > 1:
        read = sum(range_.size for range_ in ranges[::every])
        report.facts["sampled"] = f"{read:,} bytes, evenly spaced, were read"
    if cut:
        report.facts["cut"] = f"of a compressed file, the first {MOST_BYTES:,} characters were read"
    facts = counter.facts()
    report.facts |= facts
    report.problems = counter.problems(facts, input_format, cut or every > 1)
    return report


def _count(counts: collections.Counter[str], text: str) -> None:
    counts[_excerpt(text)] += 1
    if len(counts) > _MOST_TEXTS:
        for key in [key for key, count in counts.items() if count == 1]:
            del counts[key]


def _excerpt(text: str, start: int = 0) -> str:
    """Returns at most _SHOWN_CHARACTERS of a text, with "..." where it is cut."""
    begin = max(0, min(start - _SHOWN_CHARACTERS // 2, len(text) - _SHOWN_CHARACTERS))
    end = begin + _SHOWN_CHARACTERS
    return "..." * (begin > 0) + text[begin:end] + "..." * (end < len(text))


class _Counter:
    """Accumulates counts over the documents of a corpus."""

    def __init__(self, tokenizer: tokenization.Tokenizer | None):
        self._tokenizer = tokenizer
        self.read: collections.Counter[str] = collections.Counter()
        self.lines = self.characters = self.markup = self.long = 0
        self._longest = (0, "")  # characters, and the key of the document
        self._markup_example = ""
        self._line_sample, self._document_sample = DistinctSample(), DistinctSample()
        self._frequent_lines: collections.Counter[str] = collections.Counter()
        self._unknown_words: collections.Counter[str] = collections.Counter()
        self._known: dict[str, bool] = {}
        self._waiting: list[str] = []
        self._waiting_size = self._encoded = self.tokens = self.unknown = 0

    def add(self, document: readers.Document) -> None:
        self._document_sample.add(_encode(cleaning.folded_text(document.passages)))
        for line in document.passages:
            self.lines += 1
            self.characters += len(line)
            folded = cleaning.folded_text([line])
            self._line_sample.add(_encode(folded))
            _count(self._frequent_lines, folded)
            self._longest = max(self._longest, (len(line), document.key), key=lambda item: item[0])
            self.long += len(line) > _LONG_LINE
            if match := _MARKUP.search(line):
                self.markup += 1
                self._markup_example = self._markup_example or (
                    f"{_excerpt(line, match.start())!r} in the document {document.key}"
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
            unknown = ids.count(unknown_id)
            self.unknown += unknown
            if unknown:
                words = _WORD.findall(line)
                new = sorted(set(words).difference(self._known))
                for word, word_ids in zip(new, self._tokenizer.encode_batch(new), strict=True):
                    self._known[word] = unknown_id not in word_ids
                for word in words:
                    if not self._known[word]:
                        _count(self._unknown_words, word)
                if len(self._known) > _MOST_TEXTS:
                    self._known.clear()
        self._encoded += self._waiting_size
        self._waiting, self._waiting_size = [], 0

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "documents": self.read["documents"],
            "lines": self.lines,
            "characters": self.characters,
            "duplicate_lines": self._line_sample.repeated_share(),
            "duplicate_text": self._line_sample.repeated_share_of_bytes(),
            "duplicate_documents": self._document_sample.repeated_share(),
            "markup_lines": self.markup / max(1, self.lines),
            "long_lines": self.long,
            "longest_line": self._longest[0],
        }
        facts |= {
            name: self.read[name]
            for name in ("undecodable", "control_characters", "bad_lines", "without_text")
        }
        for name, sample in (("lines", self._line_sample), ("documents", self._document_sample)):
            if estimated := sample.how_estimated():
                facts[f"duplicate_{name}_estimated"] = estimated
        facts["frequent_lines"] = {
            line: count for line, count in self._frequent_lines.most_common(_SHOWN) if count > 1
        }
        if self._tokenizer:
            facts["tokens"] = self.tokens
            facts["unknown_share"] = self.unknown / max(1, self.tokens)
            facts["unknown_words"] = dict(self._unknown_words.most_common(4 * _SHOWN))
            if self._encoded < self.characters:
                facts["unknown_share_of"] = f"the first {self._encoded:,} characters read"
        return facts

    def problems(self, facts: dict[str, Any], input_format: str, sampled: bool) -> list[str]:
        """Returns what should be fixed in the corpus, and how."""
        problems: list[str] = []
        if not self.lines:
            return [f"no text was found: is --input_format={input_format} right?"]
        if facts["documents"] == 1 and not sampled:
            more = "give more documents (in text, a blank line ends one), or --nsp=none"
            problems.append(f"the corpus is one document, and next-sentence prediction needs others: {more}")
        elif readers.FORMATS[input_format].sentence_lines and self.lines == facts["documents"] >= _FEW_LINES:
            problems.append(
                "every document is one line, so no sentence has a next one: are there blank lines between "
                "the sentences of a document?"
            )
        problems += readers.suspicions(self.read) + readers.skipped(self.read)
        if self.read["long_documents"]:
            problems.append(
                f"{counted(self.read['long_documents'], 'document')} of over "
                f"{readers.MAX_DOCUMENT_BYTES >> 20} MB: are the blank lines between documents missing?"
            )
        for name, (most, advice) in _HIGH_FRACTIONS.items():
            if facts[name] > most and self.lines >= _FEW_LINES:
                example = f", such as {self._markup_example}" if name == "markup_lines" else ""
                problems.append(f"{facts[name]:.1%} {name.replace('_', ' ')}{example}; {advice}")
        if self.long:
            problems.append(
                f"lines of over {_LONG_LINE:,} characters: {self.long}, the longest of {self._longest[0]:,} "
                f"in the document {self._longest[1]}"
            )
        if self.read["undecodable"]:
            problems.append(
                f"{counted(self.read['undecodable'], 'place')} of the text cannot be decoded: convert files "
                "to UTF-8 with iconv, or write JSON without halves of surrogate pairs such as \\ud83d"
            )
        if self._tokenizer and facts["unknown_share"] > _HIGH_UNKNOWN_FRACTION:
            words = ", ".join(list(facts["unknown_words"])[:_SHOWN])
            problems.append(
                f"{facts['unknown_share']:.1%} of the tokens are [UNK] ({words}): was the vocabulary made "
                "for this language, case and script?"
            )
        return problems


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def looks_like_vocabulary(path: str) -> bool:
    """Returns True if a .txt file is a WordPiece vocabulary: if a line is a special token of BERT."""
    if os.path.basename(path).startswith("vocab"):
        return True
    if files.size(path) > _LARGEST_VOCABULARY:
        return False
    with files.open_read(path) as file:
        return any(line.strip() in (b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]") for line in file)
