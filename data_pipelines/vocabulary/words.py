"""Finds the words of a text that a WordPiece vocabulary splits, for `bert-jax convert --add_tokens`."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenizers import pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.io import atomic, checks
from bert_jax.io.progress import Progress
from bert_jax.io.wording import counted
from bert_jax.tokenization import Tokenizer, normalization
from bert_jax.tokenization.wordpiece import MAX_WORD_CHARACTERS
from data_pipelines.vocabulary import sample
from data_pipelines.vocabulary.options import Options

SAMPLE_BYTES = 200_000_000
_BATCH = 10_000  # words that are split together

# The options that also hold for a list of words.
USED = (
    *("input", "input_format", "text_field", "output", "overwrite", "add_to"),
    *("size", "min_frequency"),
)


@dataclasses.dataclass(frozen=True)
class Word:
    """A word that the vocabulary splits, normalized as by the tokenizer."""

    text: str
    count: int
    saved: int  # how many tokens fewer the text would have with the word in the vocabulary


class Found(NamedTuple):
    """The words that were found, those that save the most first."""

    words: tuple[Word, ...]
    bytes: int  # size of the text in which they were counted
    held_out: bool  # whether the means are of other text
    before: float  # mean number of tokens of a word, as separated by whitespace
    after: float  # the same with the words in the vocabulary


def find(options: Options, tokenizer: Tokenizer, progress: Progress) -> Found:
    """Finds the words of a corpus that would save the most tokens, and writes them, one a line.

    Words are counted in the text that is not held out; the held-out part measures what they save. A word
    saves its number of occurrences times the number of its pieces less one. A word that is unknown counts as
    many pieces as it has characters, and at least two. Words without letters are left out.

    Args:
        options: the corpus; `size`, the most words; and `min_frequency`, how often each of them occurs.
        tokenizer: the tokenizer of the vocabulary.
        progress: shows the progress; the caller closes it.

    Raises:
        UserError: the vocabulary is no WordPiece vocabulary, the output exists, or there is no text or no
            word to add.
        OSError: a file cannot be read or written.
    """
    if tokenizer.kind != "wordpiece":
        raise UserError(
            f"--add_to={options.add_to}: expected a WordPiece vocabulary, not a {tokenizer.kind} model"
        )
    for name in ("size", "min_frequency"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name}={getattr(options, name)}: expected at least 1")
    checks.check_output_file(options.output, overwrite=options.overwrite)
    (part,) = sample.sample(options, options.sample_bytes or SAMPLE_BYTES, progress)
    progress.start("counting words", part.bytes + part.held_out.size, "MB", 1e-6)
    counts = _count(part.training, tokenizer, progress)
    pieces = _pieces(list(counts), tokenizer)
    words = _best(counts, pieces, tokenizer, options)
    held_out = bool(part.held_out.documents)
    if not words:
        raise UserError(
            f"no word that {options.add_to} splits occurs {counted(options.min_frequency, 'time')}; give "
            "more text, or a lower --min_frequency"
        )
    measured = _count(part.held_out, tokenizer, progress) if held_out else counts
    before = dict(zip(measured, map(len, _split(list(measured), tokenizer)), strict=True))
    after = before | {word.text: 1 for word in words if word.text in before}
    units = sum(len(p.split()) for p in (part.held_out if held_out else part.training).passages())
    atomic.write_text(options.output, "".join(f"{word.text}\n" for word in words))
    means = (
        sum(lengths[word] * count for word, count in measured.items()) / max(1, units)
        for lengths in (before, after)
    )
    return Found(tuple(words), part.bytes, held_out, *means)


def _count(text: sample.Sample, tokenizer: Tokenizer, progress: Progress) -> collections.Counter[str]:
    """Returns how often each word occurs, as the tokenizer separates and normalizes them."""
    normalize = normalization.normalizer(tokenizer.lower_case, tokenizer.strip_accents)
    split = pre_tokenizers.BertPreTokenizer()
    counts: collections.Counter[str] = collections.Counter()
    for document in text.documents:
        for passage in document.passages:
            counts.update(word for word, _ in split.pre_tokenize_str(normalize(passage)))
        progress.advance(document.size)
    return counts


def _split(words: Sequence[str], tokenizer: Tokenizer) -> Iterable[list[int]]:
    batches = (words[start : start + _BATCH] for start in range(0, len(words), _BATCH))
    return itertools.chain.from_iterable(map(tokenizer.encode_batch, batches))


def _pieces(words: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Returns the number of pieces of each word; see `find`."""
    return [
        max(2, len(word)) if tokenizer.unk_id in ids else len(ids)
        for word, ids in zip(words, _split(words, tokenizer), strict=True)
    ]


def _best(
    counts: collections.Counter[str], pieces: Sequence[int], tokenizer: Tokenizer, options: Options
) -> list[Word]:
    known = set(tokenizer.tokens)
    normalize = normalization.normalizer(tokenizer.lower_case, tokenizer.strip_accents)
    found = [
        Word(text, count, count * (length - 1))
        for (text, count), length in zip(counts.items(), pieces, strict=True)
        if count >= options.min_frequency
        and length > 1
        and text not in known
        and len(text) <= MAX_WORD_CHARACTERS
        and any(character.isalpha() for character in text)
        and normalize(text) == text
    ]
    return sorted(found, key=lambda word: (-word.saved, word.text))[: options.size]
