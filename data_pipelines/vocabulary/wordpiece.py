"""Trains WordPiece vocabularies.

A vocabulary starts like the released ones. With at least 20,000 tokens it has [PAD] 0, [unused0..98] 1 to 99,
[UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103, [unused99..993] 104 to 998, and then the tokens of the text. With
5,000 to 19,999 tokens, it has no [unused] tokens after [MASK]. A smaller one has [PAD], [UNK], [CLS], [SEP]
and [MASK] as 0 to 4 and no [unused] tokens.

The trainer of `tokenizers` learns WordPieces as byte-pair merges, since google-research/bert never released
its own trainer. It numbers characters in the order of a hash table, which differs between processes, and
breaks ties by these numbers. Therefore the characters are passed to it in a fixed order, as if they were
special tokens, so that the same text, flags and versions give the same vocabulary on any number of cores.
"""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.errors import UserError
from bert_jax.io.progress import Progress
from bert_jax.io.wording import counted
from bert_jax.tokenization import interface, normalization
from bert_jax.tokenization.interface import SPECIAL_TOKENS
from bert_jax.tokenization.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS
from data_pipelines import readers
from data_pipelines.vocabulary.options import LEAST_COVERAGE, Options

SAMPLE_BYTES = 200_000_000
_TOGETHER = 1000  # texts that are counted at a time
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARACTERS + 1},}}")


def special_layout(size: int) -> tuple[list[str], list[str]]:
    """Returns the first tokens of a WordPiece vocabulary of this size.

    Returns:
        The tokens up to [MASK], and the [unused] tokens after it.
    """
    if size < 5_000:
        return list(SPECIAL_TOKENS.values()), []
    pad, *others = SPECIAL_TOKENS.values()
    before = [pad, *(f"[unused{i}]" for i in range(99)), *others]
    return before, [f"[unused{i}]" for i in range(99, 994)] if size >= 20_000 else []


def learn(documents: Iterable[readers.Document], options: Options, progress: Progress) -> bytes:
    """Returns the content of a vocab.txt that is learned from documents."""
    normalize = normalization.normalizer(options.folded, strip_accents=options.folded)
    texts = [_LONG_WORD.sub(" ", normalize(p)) for document in documents for p in document.passages]
    before, after = special_layout(options.size)
    room = options.size - len(before) - len(after)
    alphabet = _alphabet(character_counts(texts), options.character_coverage, room, options.size)
    rust = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=CONTINUATION))
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=room,
        min_frequency=options.min_frequency,
        special_tokens=alphabet,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    interface.parallelism()
    rust.train_from_iterator(_without_rare(texts, set(alphabet), progress), trainer)
    learned = sorted(rust.get_vocab().items(), key=lambda item: item[1])
    tokens = [*before, *after, *(token for token, _ in learned)]
    return "".join(token + "\n" for token in tokens).encode()


def character_counts(texts: Sequence[str]) -> collections.Counter[str]:
    """Returns how often each character occurs in texts."""
    counts = np.zeros(sys.maxunicode + 1, np.int64)
    for begin in range(0, len(texts), _TOGETHER):
        # A Counter takes five times as long, 15 s for a sample of the largest size.
        together = "".join(texts[begin : begin + _TOGETHER]).encode("utf-32-le", "surrogatepass")
        found = np.bincount(np.frombuffer(together, np.uint32))
        counts[: len(found)] += found
    return collections.Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts)})


def _alphabet(counts: collections.Counter[str], character_coverage: float, room: int, size: int) -> list[str]:
    """Returns the one-character tokens that cover the text, sorted.

    A character gets a token of its own and, if it can be inside a word, one that continues a word.

    Args:
        counts: the number of occurrences of each character.
        character_coverage: the share of the text's characters to cover.
        room: the maximum number of tokens.
        size: the size of the vocabulary, for error messages.

    Raises:
        UserError: the text has no characters, or `room` is too small.
    """
    found = sorted(
        ((n, c) for c, n in counts.items() if not c.isspace()), key=lambda item: (-item[0], item[1])
    )
    total = sum(n for n, _ in found)
    if not total:
        raise UserError("the corpus has no words, only whitespace and control characters; expected text")
    alphabet: list[str] = []
    covered = 0
    for number, character in found:
        forms = [character] if normalization.is_alone(character) else [character, CONTINUATION + character]
        if covered >= character_coverage * total or len(alphabet) + len(forms) > room:
            break
        alphabet += forms
        covered += number
    if covered < min(character_coverage, LEAST_COVERAGE) * total:
        raise UserError(
            f"--size={size} is too small: with the {counted(max(0, room), 'token')} besides the special ones "
            f"{covered / total:.2%} of the text's characters can be spelled, and {LEAST_COVERAGE:.1%} is "
            "the least; give a greater --size"
        )
    return sorted(alphabet)


def _without_rare(texts: list[str], alphabet: set[str], progress: Progress) -> Iterator[list[str]]:
    """Yields batches of texts without the words that contain a character outside the alphabet."""
    known = "".join(re.escape(token) for token in sorted(alphabet) if len(token) == 1)
    rare = re.compile(f"[^\\s{known}]")
    batch: list[str] = []
    progress.start("counting words", sum(map(len, texts)), "MB", 1e-6)
    for text in texts:
        progress.advance(len(text))
        if rare.search(text):
            text = " ".join(word for word in text.split() if not rare.search(word))
        batch.append(text)
        if len(batch) == _TOGETHER:
            yield batch
            batch = []
    yield batch
    progress.start("learning tokens")
