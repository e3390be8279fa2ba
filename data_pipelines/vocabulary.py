"""Trains vocabularies on text: WordPiece as `vocab.txt`, SentencePiece as `.model`.

A WordPiece vocabulary starts like the released ones. With at least 20,000 tokens it has [PAD] 0,
[unused0..98] 1 to 99, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103, [unused99..993] 104 to 998, and then the
tokens of the text. With 5,000 to 19,999 tokens, it has no [unused] tokens after [MASK]. A smaller one has
[PAD], [UNK], [CLS], [SEP] and [MASK] as 0 to 4 and no [unused] tokens. A SentencePiece model always has these
five as 0 to 4.

The trainer of `tokenizers` learns WordPieces as byte-pair merges, since google-research/bert never released
its own trainer. It numbers characters in the order of a hash table, which differs between processes, and
breaks ties by these numbers. Therefore the characters are passed to it in a fixed order, as if they were
special tokens, so that the same text, flags and versions give the same vocabulary on any number of cores.
"""

import collections
import dataclasses
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.io import atomic, checks, files
from bert_jax.io.progress import Progress
from bert_jax.tokenization import interface, normalization
from bert_jax.tokenization.interface import SPECIAL_TOKENS
from bert_jax.tokenization.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS
from data_pipelines import corpus_sample, readers, sentences

KINDS = ("wordpiece", "sentencepiece")
SAMPLE_BYTES = {
    "wordpiece": 200_000_000,
    "sentencepiece": 30_000_000,
}  # SentencePiece needs 20 times the size of the sample in memory

_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARACTERS + 1},}}")
# Characters of scripts without spaces between words: Thai to Tibetan, Burmese, Khmer, kana, Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
_SENTENCE_PIECE_THREADS = 16  # the result depends on it, so it is not the number of cores
_LEAST_COVERAGE = 0.999


@dataclasses.dataclass(frozen=True)
class Measured:
    """Statistics of a vocabulary on a text.

    Attributes:
        vocabulary: the file of the vocabulary.
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
    parts: tuple[corpus_sample.Part, ...]
    held_out: bool
    measured: tuple[Measured, ...]


def train(
    inputs: str | Sequence[str],
    format: str,
    output: str,
    *,
    size: int = 30522,
    kind: str = "wordpiece",
    lower_case: bool = True,
    seed: int = 12345,
    sample_bytes: int = 0,
    sampling_exponent: float = 1.0,
    character_coverage: float = 0.99995,
    min_frequency: int = 2,
    compare: Sequence[str] = (),
    overwrite: bool = False,
    fields: readers.Fields = readers.Fields(),  # noqa: B008 (frozen)
    tfds_data_dir: str = "",
    progress: Progress | None = None,
) -> Trained:
    """Trains a vocabulary on a sample of a corpus and writes it.

    The memory depends on the sample: about 5 times its size for WordPiece, 20 times for SentencePiece.

    Args:
        inputs: files or patterns; see `readers.list_inputs`.
        format: one of `readers.FORMATS`.
        output: the file to write, atomically; its directory is created if it is missing.
        size: the number of tokens, including special tokens.
        kind: one of KINDS.
        lower_case: whether to lower-case the text and strip its accents.
        seed: the seed of the sample.
        sample_bytes: the size of the sample, which is made of random byte ranges of the corpus and of the
            beginnings of compressed files. 0 for the SAMPLE_BYTES of the kind.
        sampling_exponent: how the sample is divided among the inputs; see `corpus_sample.sample`.
        character_coverage: the share of the text's characters that get a token; the rarest ones do not.
        min_frequency: for WordPiece, how often a pair of pieces must occur to be merged.
        compare: vocabularies whose statistics are computed on the same text.
        overwrite: whether to replace an existing output.
        fields: the fields to read of JSON or TFDS records; see `readers.read_documents`.
        tfds_data_dir: see `readers.list_inputs`.
        progress: shows the progress; the caller closes it.

    Raises:
        UserError: an option is out of range, the output exists, the corpus has no or too little text, or
            `size` is too small for the special tokens and the characters.
        OSError: a file cannot be read or written.
    """
    _check(output, size, kind, sample_bytes, sampling_exponent, character_coverage, min_frequency, overwrite)
    progress = progress or Progress(io.StringIO())
    others = [tokenization.load(path) for path in compare]
    inputs = [inputs] if isinstance(inputs, str) else list(inputs)
    parts = corpus_sample.sample(
        inputs,
        format,
        sample_bytes or SAMPLE_BYTES[kind],
        seed,
        sampling_exponent,
        fields,
        tfds_data_dir,
        progress,
    )
    checks.check_output(output)
    held_out = all(part.held_out.documents for part in parts)
    progress.start("normalizing", sum(part.training.size * part.copies for part in parts), "MB", 1e-6)
    source = _told(_documents(parts, drain=held_out), progress)
    if kind == "wordpiece":
        content = _wordpiece(source, size, lower_case, character_coverage, min_frequency, progress)
    else:
        content = _sentence_piece(source, size, lower_case, character_coverage, progress)
    progress.start("measuring")
    atomic.write_file(output, content)
    tokenizer = tokenization.load(output, lower_case=lower_case)
    return Trained(
        path=output,
        size=tokenizer.vocab_size,
        parts=tuple(parts),
        held_out=held_out,
        measured=tuple(
            _measure(each, part.name, (part.held_out if held_out else part.training).passages())
            for each in (tokenizer, *others)
            for part in parts
        ),
    )


def _told(documents: Iterable[readers.Document], progress: Progress) -> Iterator[readers.Document]:
    for document in documents:
        yield document
        progress.advance(sum(map(len, document.passages)))


def _documents(parts: Sequence[corpus_sample.Part], drain: bool) -> Iterator[readers.Document]:
    for part in parts:
        for copy in range(part.copies):
            last = copy == part.copies - 1
            yield from part.training.drain() if drain and last else part.training.documents


def _check(
    output: str,
    size: int,
    kind: str,
    sample_bytes: int,
    sampling_exponent: float,
    character_coverage: float,
    min_frequency: int,
    overwrite: bool,
) -> None:
    for name, value, expected, good in (
        ("kind", kind, " or ".join(KINDS), kind in KINDS),
        ("size", size, "at least 100", size >= 100),
        ("sample_bytes", sample_bytes, "0, or at least 1000", sample_bytes == 0 or sample_bytes >= 1000),
        ("sampling_exponent", sampling_exponent, "over 0, and at most 1", 0 < sampling_exponent <= 1),
        (
            "character_coverage",
            character_coverage,
            f"{_LEAST_COVERAGE} to 1",
            _LEAST_COVERAGE <= character_coverage <= 1,
        ),
        ("min_frequency", min_frequency, "at least 1", min_frequency >= 1),
    ):
        if not good:
            raise UserError(f"--{name}={value}: expected {expected}")
    if files.is_directory(output):
        raise UserError(
            f"--output={output} is a directory; expected a file, such as {os.path.join(output, 'vocab.txt')}"
        )
    ending = ".model" if kind == "sentencepiece" else ".txt"
    if not output.endswith(ending):
        raise UserError(f"--output={output} with --kind={kind}: expected a name that ends in {ending}")
    checks.check_free(output, overwrite)


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


def _wordpiece(
    documents: Iterable[readers.Document],
    size: int,
    lower_case: bool,
    character_coverage: float,
    min_frequency: int,
    progress: Progress,
) -> bytes:
    normalize = normalization.normalizer(lower_case, strip_accents=lower_case)
    texts = [_LONG_WORD.sub(" ", normalize(p)) for document in documents for p in document.passages]
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    before, after = special_layout(size)
    room = size - len(before) - len(after)
    alphabet = _alphabet(counts, character_coverage, room, size)
    rust = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=CONTINUATION))
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=room,
        min_frequency=min_frequency,
        special_tokens=alphabet,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    interface.parallelism()
    rust.train_from_iterator(_without_rare(texts, set(alphabet), progress), trainer)
    learned = sorted(rust.get_vocab().items(), key=lambda item: item[1])
    tokens = [*before, *after, *(token for token, _ in learned)]
    return "".join(token + "\n" for token in tokens).encode()


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
    if covered < min(character_coverage, _LEAST_COVERAGE) * total:
        raise UserError(
            f"--size={size} is too small: with the {max(0, room)} tokens besides the special ones "
            f"{covered / total:.2%} of the text's characters can be spelled, and {_LEAST_COVERAGE:.1%} is "
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
        if len(batch) == 1000:
            yield batch
            batch = []
    yield batch
    progress.start("learning tokens")


def _sentence_piece(
    documents: Iterable[readers.Document],
    size: int,
    lower_case: bool,
    character_coverage: float,
    progress: Progress,
) -> bytes:
    model = io.BytesIO()
    lines = (line for document in documents for line in sentences.split(document))

    def folded() -> Iterator[str]:
        for line in lines:
            yield normalization.fold(normalization.clean(line), lower_case, lower_case)
        progress.start("learning tokens")

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=folded(),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=character_coverage,
            normalization_rule_name="nmt_nfkc",
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece="[PAD]",
            unk_piece="[UNK]",
            bos_piece="[CLS]",
            eos_piece="[SEP]",
            control_symbols=["[MASK]"],
            max_sentence_length=1 << 16,
            num_threads=_SENTENCE_PIECE_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"SentencePiece can't learn --size={size} tokens from this text: {reason}") from None
    return model.getvalue()


def _measure(tokenizer: tokenization.Tokenizer, name: str, passages: Iterable[str]) -> Measured:
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
    return Measured(tokenizer.path, name, unit, units, tokens / max(1, units), unknown / max(1, tokens))
