"""Trains a vocabulary on a sample of a corpus, or finds the words that a vocabulary lacks.

A part of the sample is held out, and the vocabulary is measured on it.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import io
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.io import atomic, checks
from bert_jax.io.progress import Progress
from bert_jax.io.wording import counted
from bert_jax.tokenization import Tokenizer
from bert_jax.tokenization.wordpiece import MAX_WORD_CHARACTERS, WordPieceTokenizer
from data_pipelines import languages, readers
from data_pipelines.vocabulary import learners
from data_pipelines.vocabulary.learners import BPE_FAMILIES, LEAST_COVERAGE, Options

_HELD_OUT_BYTES = 2_000_000
_WORDS_AT_ONCE = 10_000  # that are split together


@dataclasses.dataclass(frozen=True)
class Part:
    """The sample of one input.

    Attributes:
        name: the input, as it was given.
        training: the documents to train on.
        held_out: the documents that are held out; none if the corpus has too few passages.
        times: how often the documents are used in training; some of them once more than the others.
    """

    name: str
    training: list[readers.Document]
    held_out: list[readers.Document]
    times: float = 1.0

    @property
    def bytes(self) -> int:
        """The size of the documents to train on, in bytes."""
        return _size(self.training)

    @property
    def measured(self) -> list[readers.Document]:
        """The documents on which a vocabulary is measured."""
        return self.held_out or self.training


def _size(documents: Iterable[readers.Document]) -> int:
    return sum(document.size for document in documents)


def _passages(documents: Iterable[readers.Document]) -> Iterator[str]:
    return itertools.chain.from_iterable(document.passages for document in documents)


def sample(options: Options, sample_bytes: int, progress: Progress) -> list[Part]:
    """Samples each input separately, or, if `sampling_exponent` is 1, all inputs as one.

    The share of an input in what is learned is proportional to the size of its files raised to the power of
    `sampling_exponent`: 1 keeps the proportions, and multilingual BERT uses 0.7. An input that is smaller
    than its share is used several times, and the input that has the most text for its share is used once.

    Args:
        options: the options of the vocabulary; a multilingual corpus has one input per language.
        sample_bytes: the size of the sample of all inputs together.
        progress: shows how much has been read; the caller closes it.

    Raises:
        UserError: there is no text, or a file is in two of the inputs.
    """
    exponent = options.sampling_exponent
    if exponent == 1:
        paths = readers.list_inputs(options.input, options.output)
        divided = [languages.Language(", ".join(options.input), tuple(paths))]
    else:
        divided = languages.divide(options.input, options.output)
    every = [path for one in divided for path in one.paths]
    format = readers.resolve_format(every, options.input_format, options.text_field)
    options = dataclasses.replace(options, input_format=format)
    sizes = [sum(map(readers.file_size, one.paths)) for one in divided]
    weights = [size**exponent for size in sizes]
    parts = []
    for one, weight in zip(divided, weights, strict=True):
        wanted = max(1000, int(sample_bytes * weight / sum(weights)))
        documents = _draw(one.paths, wanted, options, progress)
        parts.append(Part(one.name, *_hold_out(documents, options.seed)))
    # Compressed text is larger than its file, so these numbers depend on what was read.
    once = max(part.bytes / weight for part, weight in zip(parts, weights, strict=True))
    return [
        dataclasses.replace(part, times=round(once * weight / max(1, part.bytes), 9))
        for part, weight in zip(parts, weights, strict=True)
    ]


def _draw(
    paths: Sequence[str], sample_bytes: int, options: Options, progress: Progress
) -> list[readers.Document]:
    """Returns the documents of byte ranges at random positions in the files, sorted by key."""
    total = sum(map(readers.file_size, paths))
    format, text_field = options.input_format, options.text_field
    target = max(1 << 16, min(1 << 22, sample_bytes // 16))
    ranges = readers.split_ranges(paths, target, format)
    share = min(1.0, sample_bytes / total)
    random.Random(options.seed).shuffle(ranges)
    drawn: list[readers.Document] = []
    size = 0
    # The size of the text in compressed files is not known in advance.
    known = all(range_.end is not None for range_ in ranges)
    progress.start("reading", min(total, sample_bytes) if known else None, "MB", 1e-6)
    for range_ in ranges:
        # Of a file that cannot be split, such as a compressed one or a table, the beginning is used.
        whole = range_.end is None or range_.size > 2 * target
        quota = int(sample_bytes * range_.size / total) + 1 if whole else sample_bytes
        goal = min(sample_bytes, size + quota)
        if share < 1 and size >= sample_bytes:
            break
        for document in readers.read_documents(range_, format, text_field=text_field):
            drawn.append(document)
            size += document.size
            progress.at(size)
            if size >= goal:
                break
    if not size:
        raise UserError(readers.no_text(paths, format))
    # The order of the ranges is random. The documents are sorted, so that equal samples are equal lists.
    return sorted(drawn, key=lambda document: document.key)


def _hold_out(
    documents: Sequence[readers.Document], seed: int
) -> tuple[list[readers.Document], list[readers.Document]]:
    """Returns the documents to train on, and those that are held out: about every twentieth, or fewer."""
    out = [_hash(document.key, seed) % 20 == 0 for document in documents]
    if len(documents) >= 20 and 1 <= sum(out) <= len(documents) // 2:
        training: list[readers.Document] = []
        held_out: list[readers.Document] = []
        size = 0
        for document, one in zip(documents, out, strict=True):
            chosen = one and size < _HELD_OUT_BYTES
            (held_out if chosen else training).append(document)
            size += document.size if chosen else 0
        return training, held_out
    # There are too few documents: every twentieth of their passages is held out.
    parts = [
        [
            dataclasses.replace(document, passages=passages)
            for document in documents
            if (passages := tuple(p for i, p in enumerate(document.passages) if (i % 20 == 19) == held_out))
        ]
        for held_out in (False, True)
    ]
    return parts[0], parts[1]


def _hash(key: str, seed: int) -> int:
    content = f"{seed} {key}".encode("utf-8", "surrogatepass")  # the name of a file need not be UTF-8
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class Trainer(NamedTuple):
    """How vocabularies of one kind are trained."""

    learn: Callable[[Iterable[readers.Document], Options, Progress], bytes]
    sample_bytes: int  # default size of the sample; SentencePiece needs 20 times as much memory
    unused: tuple[str, ...]  # the options that have no effect, and may not be given


TRAINERS = {
    "wordpiece": Trainer(learners.learn_wordpiece, 200_000_000, ("special_tokens", "normalizer")),
    "sentencepiece": Trainer(learners.learn_sentence_piece, 30_000_000, ("min_frequency", "special_tokens")),
    "bpe": Trainer(learners.learn_byte_bpe, 200_000_000, ("character_coverage", "normalizer")),
}


class Measured(NamedTuple):
    """Statistics of the vocabulary on a text."""

    input: str  # from which the text is
    words: int  # as separated by whitespace
    tokens_per_word: float
    unknown_rate: float  # the share of [UNK] among the tokens


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained vocabulary, and its statistics on held-out text.

    Attributes:
        path: the file of the vocabulary.
        size: its number of tokens, at most the requested one; a small corpus may yield fewer.
        parts: the sample of each input, or that of all inputs together if they are not weighted.
        measured: the statistics on the held-out text of each part, or on its training text if nothing is
            held out.
    """

    path: str
    size: int
    parts: tuple[Part, ...]
    measured: tuple[Measured, ...]


def train(options: Options, progress: Progress | None = None) -> Trained:
    """Trains a vocabulary on a sample of a corpus and writes it.

    The memory depends on the sample: about 5 times its size for WordPiece and BPE, and 20 times for
    SentencePiece.

    Args:
        options: the options of the vocabulary.
        progress: shows the progress; the caller closes it.

    Raises:
        UserError: an option is out of range, the output exists, the corpus has no or too little text, or
            `size` is too small for the special tokens and the characters.
        OSError: a file cannot be read or written.
    """
    _check(options)
    trainer = TRAINERS[options.kind]
    progress = progress or Progress(io.StringIO())
    parts = sample(options, options.sample_bytes or trainer.sample_bytes, progress)
    checks.check_output_file(options.output)
    progress.start("normalizing", int(sum(part.bytes * part.times for part in parts)), "MB", 1e-6)
    content = trainer.learn(_documents(parts, progress), options, progress)
    progress.start("measuring")
    atomic.write_file(options.output, content)
    tokenizer = tokenization.load(options.output, lower_case=options.folded, normalizer=options.normalizer)
    return Trained(
        path=options.output,
        size=tokenizer.vocab_size,
        parts=tuple(parts),
        measured=tuple(_measure(part.name, tokenizer, part.measured) for part in parts),
    )


def _documents(parts: Sequence[Part], progress: Progress) -> Iterator[readers.Document]:
    for part in parts:
        whole, rest = divmod(part.times, 1)
        some = sorted(part.training, key=lambda document: _hash(document.key, 0))
        for document in (*some[: round(rest * len(some))], *part.training * int(whole)):
            yield document
            progress.advance(document.size)


def _check(options: Options) -> None:
    """Raises UserError for an option that is out of range, and for an output that cannot be written."""
    trainer = TRAINERS.get(options.kind)
    ending = tokenization.KINDS[options.kind].ending if trainer else ""
    bpe_cases = options.kind != "bpe" or not options.lower_case
    rules = [
        ("kind", trainer is not None, " or ".join(TRAINERS)),
        ("size", options.size >= 100, "at least 100"),
        ("sample_bytes", not 0 < options.sample_bytes < 1000, "0, or at least 1000"),
        ("character_coverage", LEAST_COVERAGE <= options.character_coverage <= 1, f"{LEAST_COVERAGE} to 1"),
        ("min_frequency", options.min_frequency >= 1, "at least 1"),
        ("sampling_exponent", 0 < options.sampling_exponent <= 1, "over 0, and at most 1"),
        ("normalizer", options.normalizer in ("bert", "albert"), "bert or albert"),
        ("special_tokens", options.special_tokens in BPE_FAMILIES, " or ".join(BPE_FAMILIES)),
        ("lower_case", bpe_cases, "no such flag with --kind=bpe, which keeps the case of a text"),
        ("output", options.output.endswith(ending), f"a file name that ends in {ending}"),
    ]
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    rules += [
        (name, getattr(options, name) == defaults[name], f"no such flag with --kind={options.kind}")
        for name in (trainer.unused if trainer else ())
    ]
    for name, valid, expected in rules:
        if not valid:
            raise UserError(f"--{name}={getattr(options, name)}: expected {expected}")
    checks.check_free(options.output, options.overwrite)


def _measure(name: str, tokenizer: Tokenizer, text: Sequence[readers.Document]) -> Measured:
    words = tokens = unknown = 0
    passages = _passages(text)
    while batch := list(itertools.islice(passages, 1000)):
        words += sum(len(passage.split()) for passage in batch)
        for ids in tokenizer.encode_batch(batch):
            tokens += len(ids)
            unknown += ids.count(tokenizer.unk_id)
    return Measured(name, words, tokens / max(1, words), unknown / max(1, tokens))


# The options that also hold for a list of words.
WORD_OPTIONS = (
    *("input", "input_format", "text_field", "output", "overwrite", "add_to", "size", "min_frequency"),
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


def find_words(options: Options, tokenizer: Tokenizer, progress: Progress) -> Found:
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
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UserError(
            f"--add_to={options.add_to}: expected a WordPiece vocabulary, not a {tokenizer.kind} model"
        )
    for name in ("size", "min_frequency"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name}={getattr(options, name)}: expected at least 1")
    checks.check_output_file(options.output, overwrite=options.overwrite)
    (part,) = sample(options, options.sample_bytes or TRAINERS["wordpiece"].sample_bytes, progress)
    progress.start("counting words", part.bytes + _size(part.held_out), "MB", 1e-6)
    counts = _count(part.training, tokenizer, progress)
    pieces = [
        max(2, len(word)) if tokenizer.unk_id in ids else len(ids)
        for word, ids in zip(counts, _split(list(counts), tokenizer), strict=True)
    ]
    words = _best(counts, pieces, tokenizer, options)
    if not words:
        raise UserError(
            f"no word that {options.add_to} splits occurs {counted(options.min_frequency, 'time')}; give "
            "more text, or a lower --min_frequency"
        )
    measured = _count(part.held_out, tokenizer, progress) if part.held_out else counts
    before = dict(zip(measured, map(len, _split(list(measured), tokenizer)), strict=True))
    after = before | {word.text: 1 for word in words if word.text in before}
    units = sum(len(passage.split()) for passage in _passages(part.measured))
    atomic.write_text(options.output, "".join(f"{word.text}\n" for word in words))
    means = (
        sum(lengths[word] * count for word, count in measured.items()) / max(1, units)
        for lengths in (before, after)
    )
    return Found(tuple(words), part.bytes, bool(part.held_out), *means)


def _count(
    documents: Sequence[readers.Document], tokenizer: WordPieceTokenizer, progress: Progress
) -> collections.Counter[str]:
    """Returns how often each word occurs, as the tokenizer separates and normalizes them."""
    counts: collections.Counter[str] = collections.Counter()
    for document in documents:
        for passage in document.passages:
            counts.update(tokenizer.words(passage))
        progress.advance(document.size)
    return counts


def _split(words: Sequence[str], tokenizer: Tokenizer) -> Iterable[list[int]]:
    batches = (words[start : start + _WORDS_AT_ONCE] for start in range(0, len(words), _WORDS_AT_ONCE))
    return itertools.chain.from_iterable(map(tokenizer.encode_batch, batches))


def _best(
    counts: collections.Counter[str], pieces: Sequence[int], tokenizer: WordPieceTokenizer, options: Options
) -> list[Word]:
    known = set(tokenizer.tokens)
    found = [
        Word(text, count, count * (length - 1))
        for (text, count), length in zip(counts.items(), pieces, strict=True)
        if count >= options.min_frequency
        and length > 1
        and text not in known
        and len(text) <= MAX_WORD_CHARACTERS
        and any(character.isalpha() for character in text)
        and tokenizer.words(text) == [text]
    ]
    return sorted(found, key=lambda word: (-word.saved, word.text))[: options.size]
