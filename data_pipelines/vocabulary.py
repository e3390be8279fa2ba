"""Vocabularies from text: WordPiece as `vocab.txt`, SentencePiece as `.model`.

A WordPiece vocabulary starts as the released ones do. With 20,000 tokens or more: [PAD] 0, [unused0..98] 1
to 99, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103, [unused99..993] 104 to 998, then the text's tokens. From
5,000 tokens on, the [unused] tokens after [MASK] are left out. A smaller one has [PAD], [UNK], [CLS],
[SEP] and [MASK] as 0 to 4 and no [unused]. A SentencePiece model always has these five as 0 to 4.

The trainer of `tokenizers` learns word pieces as byte-pair merges: google-research/bert never released its
own. It numbers characters in the order of a hash table, which differs between processes, and breaks ties by
these numbers; so the characters are given to it in order, as if they were special tokens. The same text,
flags and versions then give the same vocabulary, on any number of cores.
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
}  # SentencePiece needs 20 times that in memory

_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARACTERS + 1},}}")
# Characters of scripts without a space between words: Thai to Tibetan, Burmese, Khmer, kana, Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
_SENTENCE_PIECE_THREADS = 16  # part of the result, so not the number of cores
_LEAST_COVERAGE = 0.999


@dataclasses.dataclass(frozen=True)
class Measured:
    """How a vocabulary does on a text.

    Attributes:
        vocabulary: Its file.
        input: What the text is of.
        unit: "word", as whitespace separates them; "character" where most of the text is in a script that
            has no space between words, such as Chinese.
        units: How many of them the text has.
        tokens_per_unit: Tokens for each of them.
        unknown_rate: Share of [UNK] among the tokens.
    """

    vocabulary: str
    input: str
    unit: str
    units: int
    tokens_per_unit: float
    unknown_rate: float


@dataclasses.dataclass(frozen=True)
class Trained:
    """A vocabulary that was made, and how it does on text of the corpus that was held out.

    Attributes:
        path: The file.
        size: Its number of tokens, at most the one asked for: a small corpus may not have as many.
        parts: What it was learned from: of each input, or of all together where they are not weighted.
        held_out: False where the corpus was too small to hold text out, and the figures are on the training
            text.
        measured: It and the vocabularies to compare it with, each on the text held out of each part.
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
    """Learns a vocabulary from a sample of a corpus and writes it.

    Memory is bounded by the sample: about 5 times its size for WordPiece, 20 times for SentencePiece.

    Args:
        inputs: Files or patterns, as `readers.list_inputs` takes them.
        format: One of `readers.FORMATS`.
        output: The file to write, atomically; its directory is made when missing.
        size: Number of tokens, special ones included.
        kind: One of KINDS.
        lower_case: Lower-case the text and strip its accents.
        seed: Of the sample.
        sample_bytes: Text to learn from: byte ranges drawn at random from all over the corpus; of
            compressed files, the beginnings. 0: SAMPLE_BYTES of the kind.
        sampling_exponent: How the inputs share the sample, see `corpus_sample.sample`.
        character_coverage: The rarest characters, which make up the rest of the text, get no token.
        min_frequency: WordPiece: how often a pair of pieces must occur to become one.
        compare: Vocabularies to measure on the same text.
        overwrite: Replace an existing output.
        fields: What to read of records, as `readers.read_documents` takes it.
        tfds_data_dir: As `readers.list_inputs` takes it.
        progress: What shows how far it is; the caller closes it.

    Returns:
        What was made.

    Raises:
        UserError: Options out of range, an output that exists, a corpus without text or with too little, or
            a size that does not hold the special tokens and the characters.
        OSError: A file can't be read or written.
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
    """What a WordPiece vocabulary of a size begins with: the tokens up to [MASK], the [unused] after it."""
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
    """Tokens of one character that cover the text: each alone and, if in words, continuing a word."""
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
    """Batches of texts without the words that have a character outside of the alphabet."""
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
