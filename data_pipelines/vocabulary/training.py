"""Trains a vocabulary on a sample of a corpus, and measures it on held-out text."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.io import atomic, checks
from bert_jax.io.progress import Progress, log
from data_pipelines import languages, readers
from data_pipelines.vocabulary import learners, sample
from data_pipelines.vocabulary.options import BPE_FAMILIES, LEAST_COVERAGE, Options

# Characters of scripts without spaces between words: Thai to Tibetan, Burmese, Khmer, kana, Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)


class Trainer(NamedTuple):
    """How vocabularies of one kind are trained."""

    learn: Callable[[Iterable[readers.Document], Options, Progress], bytes]
    sample_bytes: int  # default size of the sample; SentencePiece needs 20 times as much memory
    unused: tuple[str, ...]  # the options that have no effect, and may not be given


TRAINERS = {
    "wordpiece": Trainer(learners.wordpiece, 200_000_000, ("special_tokens", "normalizer")),
    "sentencepiece": Trainer(learners.sentence_piece, 30_000_000, ("min_frequency", "special_tokens")),
    "bpe": Trainer(learners.byte_bpe, 200_000_000, ("character_coverage", "normalizer")),
}


@dataclasses.dataclass(frozen=True)
class Measured:
    """Statistics of a vocabulary on a text.

    Attributes:
        vocabulary: the file or the folder of the vocabulary, as it was given.
        input: the input from which the text is.
        unit: "word", as separated by whitespace; "character" if most of the text is in a script without
            spaces between words, such as Chinese.
        units: the number of these units in the text.
        tokens_per_unit: the number of tokens per unit.
        unknown_rate: the share of [UNK] among the tokens.
    """

    vocabulary: str
    input: str
    unit: str
    units: int
    tokens_per_unit: float
    unknown_rate: float


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained vocabulary, and its statistics on held-out text.

    Attributes:
        path: the file of the vocabulary.
        size: its number of tokens, at most the requested one; a small corpus may yield fewer.
        parts: the sample of each input, or that of all inputs together if they are not weighted.
        held_out: False if the corpus was too small to hold out text, so that the statistics are those of the
            training text.
        measured: the statistics of this vocabulary and of those to compare it with, on the held-out text of
            each part.
    """

    path: str
    size: int
    parts: tuple[sample.Part, ...]
    held_out: bool
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
    others = [tokenization.load(path, log=log) for path in options.compare]
    parts = sample.sample(options, options.sample_bytes or trainer.sample_bytes, progress)
    checks.check_output_file(options.output)
    held_out = all(part.held_out.documents for part in parts)
    progress.start("normalizing", int(sum(part.bytes * part.times for part in parts)), "MB", 1e-6)
    content = trainer.learn(_documents(parts, held_out, progress), options, progress)
    progress.start("measuring")
    atomic.write_file(options.output, content)
    tokenizer = tokenization.load(options.output, lower_case=options.folded, normalizer=options.normalizer)
    return Trained(
        path=options.output,
        size=tokenizer.vocab_size,
        parts=tuple(parts),
        held_out=held_out,
        measured=tuple(
            _measure(path, each, part.name, (part.held_out if held_out else part.training).passages())
            for path, each in ((options.output, tokenizer), *zip(options.compare, others, strict=True))
            for part in parts
        ),
    )


def _documents(parts: Sequence[sample.Part], drain: bool, progress: Progress) -> Iterator[readers.Document]:
    for part in parts:
        whole, rest = divmod(part.times, 1)
        passes: list[Iterable[readers.Document]] = [part.training.documents] * int(whole)
        if rest:
            passes.insert(0, part.training.some(rest * part.bytes))
        if drain:
            passes[-1] = part.training.drain()
        for document in itertools.chain.from_iterable(passes):
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
        ("sampling_exponent", languages.is_exponent(options.sampling_exponent), "over 0, and at most 1"),
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


def _measure(path: str, tokenizer: tokenization.Tokenizer, name: str, passages: Iterable[str]) -> Measured:
    words = characters = unspaced = tokens = unknown = 0
    passages = iter(passages)
    while batch := list(itertools.islice(passages, 1000)):
        for passage in batch:
            in_words = passage.split()
            words += len(in_words)
            characters += sum(map(len, in_words))
            unspaced += 0 if passage.isascii() else len(_UNSPACED.findall(passage))
        for ids in tokenizer.encode_batch(batch):
            tokens += len(ids)
            unknown += ids.count(tokenizer.unk_id)
    unit, units = ("character", characters) if 2 * unspaced > characters else ("word", words)
    return Measured(path, name, unit, units, tokens / max(1, units), unknown / max(1, tokens))
