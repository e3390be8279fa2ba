"""Learns vocabularies: WordPiece as `vocab.txt`, SentencePiece as `.model`, byte-level BPE as `.json`.

Each learner returns the content of the file. The result depends on the text, the options and the versions of
the libraries, not on the number of cores.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.io.progress import Progress
from bert_jax.tokenization import byte_bpe, interface, normalization, sentence_piece, templates
from bert_jax.tokenization.interface import SPECIAL_TOKENS
from bert_jax.tokenization.wordpiece import CONTINUATION
from data_pipelines import readers, sentences
from data_pipelines.readers.documents import split_long
from data_pipelines.settings import REQUIRED, CorpusOptions, flag
from data_pipelines.stages import google_text

LEAST_COVERAGE = 0.999
# The special tokens of byte-level BPE, by the value of `Options.special_tokens`.
BPE_FAMILIES = {"roberta": byte_bpe.ROBERTA_TOKENS, "bert": byte_bpe.BERT_TOKENS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CorpusOptions):
    """The options that determine a vocabulary; the flags of `bert-jax vocab`."""

    output: str = flag(
        REQUIRED,
        "File to write: NAME.txt for WordPiece, NAME.model for SentencePiece, NAME.json for BPE.",
        required="FILE, the vocabulary to write",
    )
    overwrite: bool = flag(False, "Replace the output if it exists.")
    add_to: str = flag(
        "",
        "A WordPiece vocabulary, or a model that has one: the output is a list of words that it lacks, those "
        "that would save the most tokens of the text, one a line, for `convert --add_tokens`.",
    )
    size: int = flag(
        30522,
        "Number of tokens; with --add_to, the most words, by default 500. WordPiece: from 5,000 tokens on, "
        "[PAD] is 0 and [UNK] [CLS] [SEP] [MASK] are 100 to 103, with [unused] tokens between, and from "
        "20,000 on up to 998; below 5,000 they are 0 to 4. BPE: the special tokens are 0 to 4, and the bytes "
        "5 to 260.",
    )
    kind: str = flag("wordpiece", "Kind of vocabulary.", choices=tuple(tokenization.KINDS))
    lower_case: bool | None = flag(
        None, "Lower-case the text and strip accents. Default: true; BPE keeps all text."
    )
    seed: int = 12345  # of the sample
    sample_bytes: int = 0  # of text to learn from; 0: 200 MB, or 30 MB for SentencePiece
    sampling_exponent: float = flag(
        1.0,
        "For several languages, one --input each: the share of a language in the sample is proportional to "
        "its size to the power of this exponent; 0.7 in multilingual BERT.",
    )
    character_coverage: float = flag(
        0.99995,
        "Fraction of the characters of the text that the tokens must cover; the rarest characters get none. "
        "Not for BPE, which covers all.",
    )
    min_frequency: int = flag(
        2,
        "WordPiece and BPE: how often a pair of tokens must occur to become a token; with --add_to, how "
        "often a word must occur, by default 10.",
    )
    normalizer: str = flag(
        "bert",
        'SentencePiece: how text is normalized, as in `data`; albert also gives each of ( ) " - . \u2013 '
        "\u00a3 \u20ac a piece of its own.",
        choices=("bert", "albert"),
    )
    special_tokens: str = flag(
        "roberta",
        "BPE: the family whose special tokens and rows it has: <s> </s> <pad> <unk> <mask> of RoBERTa, or "
        "[CLS] [SEP] [PAD] [UNK] [MASK], as ModernBERT has them.",
        choices=tuple(BPE_FAMILIES),
    )

    @property
    def folded(self) -> bool:
        """Whether the text is lower-cased and its accents are stripped."""
        return self.kind != "bpe" if self.lower_case is None else self.lower_case


_BATCH = 1000  # texts
_LONG_WORD = re.compile(rf"\S{{{google_text.MAX_WORD_CHARACTERS + 1},}}")


def special_layout(size: int) -> tuple[list[str], list[str]]:
    """Returns the first tokens of a WordPiece vocabulary of this size, as in the released ones.

    With at least 20,000 tokens it has [PAD] 0, [unused0..98] 1 to 99, [UNK] 100, [CLS] 101, [SEP] 102, [MASK]
    103, and [unused99..993] 104 to 998. With 5,000 to 19,999 tokens it has no [unused] tokens after [MASK]. A
    smaller one has [PAD], [UNK], [CLS], [SEP] and [MASK] as 0 to 4.

    Returns:
        The tokens up to [MASK], and the [unused] tokens after it.
    """
    if size < 5_000:
        return list(SPECIAL_TOKENS.values()), []
    pad, *others = SPECIAL_TOKENS.values()
    before = [pad, *(f"[unused{i}]" for i in range(99)), *others]
    return before, [f"[unused{i}]" for i in range(99, 994)] if size >= 20_000 else []


def learn_wordpiece(documents: Iterable[readers.Document], options: Options, progress: Progress) -> bytes:
    """Learns WordPieces as byte-pair merges, since google-research/bert never released its own trainer.

    The trainer of `tokenizers` numbers characters in the order of a hash table, which differs between
    processes, and breaks ties by these numbers. Therefore the characters are passed to it in a fixed order,
    as if they were special tokens.
    """
    normalize = google_text.normalizer(options.folded, strip_accents=options.folded)
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
    for begin in range(0, len(texts), _BATCH):
        # A Counter takes five times as long, 15 s for a sample of the largest size.
        together = "".join(texts[begin : begin + _BATCH]).encode("utf-32-le", "surrogatepass")
        found = np.bincount(np.frombuffer(together, np.uint32))
        counts[: len(found)] += found
    return collections.Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts)})


def _alphabet(counts: collections.Counter[str], character_coverage: float, room: int, size: int) -> list[str]:
    """Returns the one-character tokens that cover the text, sorted, at most `room`.

    A character gets a token and, if it can be inside a word, one that continues a word.
    """
    found = sorted(
        ((n, c) for c, n in counts.items() if not c.isspace()), key=lambda item: (-item[0], item[1])
    )
    total = sum(n for n, _ in found)
    if not total:
        raise UserError("the corpus has no words; expected text")
    alphabet: list[str] = []
    covered = 0
    for number, character in found:
        forms = [character] if google_text.is_alone(character) else [character, CONTINUATION + character]
        if covered >= character_coverage * total or len(alphabet) + len(forms) > room:
            break
        alphabet += forms
        covered += number
    if covered < min(character_coverage, LEAST_COVERAGE) * total:
        raise UserError(f"--size={size} is too small: it covers {covered / total:.2%} of the characters")
    return sorted(alphabet)


def _without_rare(texts: list[str], alphabet: set[str], progress: Progress) -> Iterator[list[str]]:
    """Yields batches of texts without the words that contain a character outside the alphabet."""
    known = "".join(re.escape(token) for token in sorted(alphabet) if len(token) == 1)
    rare = re.compile(f"[^\\s{known}]")
    progress.start("counting words", sum(map(len, texts)), "MB", 1e-6)
    for begin in range(0, len(texts), _BATCH):
        batch = texts[begin : begin + _BATCH]
        progress.advance(sum(map(len, batch)))
        yield [
            " ".join(word for word in text.split() if not rare.search(word)) if rare.search(text) else text
            for text in batch
        ]
    progress.start("learning tokens")


_ALBERT_SYMBOLS = list('()"-.\u2013\u00a3\u20ac')  # of google-research/albert's vocabularies
_LONGEST_LINE = 1 << 16  # bytes; SentencePiece ignores longer lines
_THREADS = 16  # the result depends on it, so it is not the number of cores


def learn_sentence_piece(
    documents: Iterable[readers.Document], options: Options, progress: Progress
) -> bytes:
    """Learns a unigram model, in which [PAD], [UNK], [CLS], [SEP] and [MASK] have the ids 0 to 4."""
    model = io.BytesIO()
    normalize = sentence_piece.albert_normalizer(options.folded, options.folded)
    if options.normalizer == "bert":

        def normalize(line: str) -> str:
            return normalization.fold(normalization.clean(line), options.folded, options.folded)

    def lines() -> Iterator[str]:
        for document in documents:
            for line in sentences.split(document):
                # A character has up to 4 bytes.
                yield from split_long(normalize(line), _LONGEST_LINE // 4)
        progress.start("learning tokens")

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            model_type="unigram",
            vocab_size=options.size,
            hard_vocab_limit=False,
            character_coverage=options.character_coverage,
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
            user_defined_symbols=_ALBERT_SYMBOLS if options.normalizer == "albert" else [],
            max_sentence_length=_LONGEST_LINE,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"SentencePiece can't learn --size={options.size} tokens from this text: {reason}"
        ) from None
    return model.getvalue()


_LONGEST_BPE_WORD = 1000  # characters; the time of the trainer grows with the square of the length of a word
# Longer words of GPT-2's pattern: letters, digits, other marks, or whitespace.
_LONG_BPE_WORD = re.compile(
    "|".join(f"{kind}{{{_LONGEST_BPE_WORD + 1},}}" for kind in (r"[^\W\d_]", r"\d", r"(?:[^\w\s]|_)", r"\s"))
)


def learn_byte_bpe(documents: Iterable[readers.Document], options: Options, progress: Progress) -> bytes:
    """Learns byte-level BPE: the special tokens, the 256 bytes, and the merges."""
    special_tokens = BPE_FAMILIES[options.special_tokens]
    template = templates.NAMED[options.special_tokens]
    alphabet = sorted(byte_bpe.characters_of_bytes().values())
    if options.size < (least := len(special_tokens) + len(alphabet)):
        raise UserError(f"--size={options.size} is too small: expected at least {least}")
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=options.size,
        min_frequency=options.min_frequency,
        special_tokens=list(special_tokens.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    interface.parallelism()
    rust.train_from_iterator(_bpe_batches(documents, progress), trainer)
    model = json.loads(rust.to_str())["model"]
    merges = [" ".join(merge) for merge in model["merges"]]
    return byte_bpe.serialized(byte_bpe.tokenizer_json(model["vocab"], merges, special_tokens, template))


def _bpe_batches(documents: Iterable[readers.Document], progress: Progress) -> Iterator[list[str]]:
    """Yields the passages; except for the first of a document they begin with a space, as in records."""
    batch: list[str] = []
    blank = True
    for document in documents:
        for i, passage in enumerate(document.passages):
            blank = blank and passage.isspace()
            passage = normalization.without_surrogates(passage)
            if len(passage) > _LONGEST_BPE_WORD:  # such as a DNA sequence
                passage = _LONG_BPE_WORD.sub(lambda word: word[0][:_LONGEST_BPE_WORD], passage)
            batch.append(f" {passage}" if i else passage)
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if blank:
        raise UserError("the corpus has no words; expected text")
    yield batch
    progress.start("learning tokens")
