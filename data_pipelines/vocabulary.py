"""Trains vocabularies: WordPiece as `vocab.txt`, SentencePiece as `.model`, byte-level BPE as `.json`.

The text is a sample of a corpus. Part of it is held out to measure the vocabulary. The result depends on the
text, the options and the versions of the libraries, not on the number of cores.
"""

import collections
import dataclasses
import io
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax import tokenization
from bert_jax.errors import UserError, check_flag
from bert_jax.io import atomic, checks
from bert_jax.io.progress import Progress
from bert_jax.tokenization import Tokenizer, byte_bpe, interface, normalization, sentence_piece, templates
from bert_jax.tokenization.interface import SPECIAL_TOKENS
from bert_jax.tokenization.wordpiece import CONTINUATION
from data_pipelines import languages, readers, sentences
from data_pipelines.readers.documents import split_long
from data_pipelines.settings import REQUIRED, CorpusOptions, flag
from data_pipelines.sorted_runs import document_key
from data_pipelines.stages import google_text

_HELD_OUT_BYTES = 2_000_000
LEAST_COVERAGE = 0.999
NORMALIZERS = sentence_piece.SentencePieceTokenizer.normalizers
# The special tokens of byte-level BPE, by the value of `Options.special_tokens`.
BPE_FAMILIES = {"roberta": byte_bpe.ROBERTA_TOKENS, "bert": byte_bpe.BERT_TOKENS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CorpusOptions):
    """The options that determine a vocabulary; the flags of `bert-jax vocab`."""

    output: str = flag(
        REQUIRED,
        "File to write: NAME.txt (WordPiece), NAME.model (SentencePiece) or NAME.json (BPE).",
        required="FILE, the vocabulary to write",
    )
    overwrite: bool = flag(False, "Replace existing output.")
    size: int = flag(30522, "Number of tokens, including special ones.")
    kind: str = flag("wordpiece", "Kind of vocabulary.", choices=tuple(tokenization.KINDS))
    lower_case: bool | None = flag(
        None, "Lower-case the text and strip accents. Default: true, except for BPE and DeBERTa."
    )
    seed: int = 12345  # of the sample
    sampling_exponent: float = flag(
        1.0,
        "Exponent for several languages, one per --input, which are sampled in proportion to size^exponent; "
        "multilingual BERT: 0.7.",
    )
    character_coverage: float = flag(
        0.99995, "Fraction of the text's characters that tokens must cover (not BPE)."
    )
    min_frequency: int = flag(
        2, "Minimum frequency of a pair of tokens to become a token (WordPiece and BPE)."
    )
    normalizer: str = flag(
        "bert",
        'Normalization of SentencePiece, as in `data`; albert also gives each of ( ) " - . – £ € its own '
        "token, and deberta has DeBERTa's ids.",
        choices=NORMALIZERS,
    )
    special_tokens: str = flag(
        "roberta",
        "Special tokens of BPE: roberta (<s> </s> <pad> <unk> <mask>) or bert ([CLS] [SEP] [PAD] [UNK] "
        "[MASK], as in ModernBERT).",
        choices=tuple(BPE_FAMILIES),
    )

    @property
    def folded(self) -> bool:
        """Whether the text is lower-cased and its accents are stripped."""
        return not self.keeps_case if self.lower_case is None else self.lower_case

    @property
    def keeps_case(self) -> bool:
        """Whether text of this kind is never lower-cased."""
        return self.kind == "bpe" or self.normalizer == "deberta"


_BATCH = 1000  # texts
_LONG_WORD = re.compile(rf"\S{{{google_text.MAX_WORD_CHARACTERS + 1},}}")


def special_layout(size: int) -> tuple[list[str], list[str]]:
    """Returns the first tokens of a WordPiece vocabulary, up to [MASK], and the [unused] tokens after it.

    As in released vocabularies, with at least 20,000 tokens it has [PAD] 0, [unused0..98] 1 to 99, [UNK] 100,
    [CLS] 101, [SEP] 102, [MASK] 103, and [unused99..993] 104 to 998. With 5,000 to 19,999 tokens it has no
    [unused] tokens after [MASK]. A smaller one has [PAD], [UNK], [CLS], [SEP] and [MASK] as 0 to 4.
    """
    if size < 5_000:
        return list(SPECIAL_TOKENS.values()), []
    pad, *others = SPECIAL_TOKENS.values()
    before = [pad, *(f"[unused{i}]" for i in range(99)), *others]
    return before, [f"[unused{i}]" for i in range(99, 994)] if size >= 20_000 else []


def learn_wordpiece(documents: Iterable[readers.Document], options: Options, progress: Progress) -> bytes:
    """Learns WordPieces as byte-pair merges, because google-research/bert never released its trainer.

    The trainer of `tokenizers` numbers characters in the order of a hash table, which differs between
    processes, and breaks ties by these numbers. Therefore the characters are passed to it in a fixed order,
    as if they were special tokens.
    """
    normalize = google_text.normalizer(options.folded, strip_accents=options.folded)
    texts = [_LONG_WORD.sub(" ", normalize(p)) for document in documents for p in document.passages]
    before, after = special_layout(options.size)
    room = options.size - len(before) - len(after)
    alphabet = _alphabet(texts, options.character_coverage, room, options.size)
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


def _alphabet(texts: Sequence[str], character_coverage: float, room: int, size: int) -> list[str]:
    """Returns the one-character tokens that cover the texts, sorted, at most `room`.

    A character gets a token and, if it can be inside a word, a continuation token.
    """
    every = collections.Counter(itertools.chain.from_iterable(texts))
    counts = {character: count for character, count in every.items() if not character.isspace()}
    total = sum(counts.values())
    alphabet: list[str] = []
    covered = 0
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        forms = [character] if google_text.is_alone(character) else [character, CONTINUATION + character]
        if covered >= character_coverage * total or len(alphabet) + len(forms) > room:
            break
        alphabet += forms
        covered += counts[character]
    is_covered = covered >= min(character_coverage, LEAST_COVERAGE) * total
    share = covered / max(1, total)
    check_flag("size", size, is_covered, f"a larger size; it covers {share:.2%} of the characters")
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


_ALBERT_SYMBOLS = list('()"-.\u2013\u00a3\u20ac')  # in google-research/albert's vocabularies
_LONGEST_LINE = 1 << 16  # bytes; SentencePiece ignores longer lines
_THREADS = 16  # the result depends on it, so it is not the number of cores


def learn_sentence_piece(
    documents: Iterable[readers.Document], options: Options, progress: Progress
) -> bytes:
    """Learns a unigram model, in which [PAD], [UNK], [CLS], [SEP] and [MASK] have the ids 0 to 4.

    With the normalizer "deberta", [PAD], [CLS], [SEP] and [UNK] have the ids 0 to 3, as in DeBERTa's model,
    and [MASK] is the last id, which the file does not contain.
    """
    model, is_deberta = io.BytesIO(), options.normalizer == "deberta"
    normalize = sentence_piece.albert_normalizer(options.folded, options.folded)
    if is_deberta:
        normalize = normalization.without_surrogates
    elif options.normalizer == "bert":

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
            vocab_size=options.size - is_deberta,
            hard_vocab_limit=False,
            character_coverage=options.character_coverage,
            normalization_rule_name="nmt_nfkc",
            pad_id=0,
            unk_id=3 if is_deberta else 1,
            bos_id=1 if is_deberta else 2,
            eos_id=2 if is_deberta else 3,
            pad_piece="[PAD]",
            unk_piece="[UNK]",
            bos_piece="[CLS]",
            eos_piece="[SEP]",
            control_symbols=[] if is_deberta else ["[MASK]"],
            user_defined_symbols=_ALBERT_SYMBOLS if options.normalizer == "albert" else [],
            max_sentence_length=_LONGEST_LINE,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--size={options.size}: SentencePiece fails on this text: {reason}") from None
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
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=options.size,
        min_frequency=options.min_frequency,
        special_tokens=list(special_tokens.values()),
        initial_alphabet=sorted(byte_bpe.ALPHABET),
        show_progress=False,
    )
    interface.parallelism()
    rust.train_from_iterator(_bpe_batches(documents, progress), trainer)
    model = json.loads(rust.to_str())["model"]
    merges = [" ".join(merge) for merge in model["merges"]]
    return byte_bpe.serialized(byte_bpe.tokenizer_json(model["vocab"], merges, special_tokens, template))


def _bpe_batches(documents: Iterable[readers.Document], progress: Progress) -> Iterator[list[str]]:
    """Yields the passages; all except the first of a document begin with a space, as in records."""
    batch: list[str] = []
    for document in documents:
        for i, passage in enumerate(document.passages):
            passage = normalization.without_surrogates(passage)
            if len(passage) > _LONGEST_BPE_WORD:  # such as a DNA sequence
                passage = _LONG_BPE_WORD.sub(lambda word: word[0][:_LONGEST_BPE_WORD], passage)
            batch.append(f" {passage}" if i else passage)
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    yield batch
    progress.start("learning tokens")


@dataclasses.dataclass(frozen=True)
class Part:
    """The sample of one input."""

    name: str  # the input, as it was given
    training: list[readers.Document]
    held_out: list[readers.Document]  # none if the corpus has too few passages
    times: float = 1.0  # how often `training` is used; some documents may be used once more than the others
    words: int = 0  # on which the vocabulary was measured: held-out words, or else of the training text
    tokens_per_word: float = 0.0
    unknown_rate: float = 0.0  # the fraction of [UNK] among the tokens

    @property
    def bytes(self) -> int:
        """The size of the documents to train on, in bytes."""
        return sum(document.size for document in self.training)


def sample(options: Options, sample_bytes: int, progress: Progress) -> list[Part]:
    """Samples each input separately, or, if `sampling_exponent` is 1, all inputs as one.

    The share of an input in the training text is proportional to the size of its files raised to the power of
    `sampling_exponent`. An input that is smaller than its share is used several times; the input with the
    most text for its share is used once. The sample of all inputs together has `sample_bytes`.
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
    # Compressed text is larger than its file, so these numbers depend on the text that was read.
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
        # A file that cannot be split, such as a compressed one or a table, is read from its beginning.
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
        raise readers.no_text(paths, format)
    # The order of the ranges is random. The documents are sorted, so that equal samples are equal lists.
    return sorted(drawn, key=lambda document: document.key)


def _hold_out(
    documents: Sequence[readers.Document], seed: int
) -> tuple[list[readers.Document], list[readers.Document]]:
    """Returns the training documents and the held-out documents: about every twentieth, or fewer."""
    out = [document_key(f"{seed} {document.key}") % 20 == 0 for document in documents]
    if len(documents) >= 20 and 1 <= sum(out) <= len(documents) // 2:
        training: list[readers.Document] = []
        held_out: list[readers.Document] = []
        size = 0
        for document, one in zip(documents, out, strict=True):
            chosen = one and size < _HELD_OUT_BYTES
            (held_out if chosen else training).append(document)
            size += document.size if chosen else 0
        return training, held_out
    # There are too few documents, so every twentieth of their passages is held out.
    parts = [
        [
            dataclasses.replace(document, passages=passages)
            for document in documents
            if (passages := tuple(p for i, p in enumerate(document.passages) if (i % 20 == 19) == held_out))
        ]
        for held_out in (False, True)
    ]
    return parts[0], parts[1]


class Trainer(NamedTuple):
    """How vocabularies of one kind are trained."""

    learn: Callable[[Iterable[readers.Document], Options, Progress], bytes]
    sample_bytes: int  # default size of the sample; SentencePiece needs 20 times as much memory
    unused: tuple[str, ...]  # the options that have no effect, and may not be given


TRAINERS = {
    "wordpiece": Trainer(learn_wordpiece, 200_000_000, ("special_tokens", "normalizer")),
    "sentencepiece": Trainer(learn_sentence_piece, 30_000_000, ("min_frequency", "special_tokens")),
    "bpe": Trainer(learn_byte_bpe, 200_000_000, ("character_coverage", "normalizer")),
}


class Trained(NamedTuple):
    """A trained vocabulary, and its statistics on held-out text."""

    path: str
    size: int  # at most the requested number of tokens; a small corpus may yield fewer
    parts: tuple[Part, ...]  # the sample of each input, or of all inputs if they are not weighted


def train(options: Options, progress: Progress | None = None) -> Trained:
    """Trains a vocabulary on a sample of a corpus and writes it; the caller closes `progress`.

    The memory depends on the sample: about 5 times its size for WordPiece and BPE, and 20 times for
    SentencePiece.
    """
    _check(options)
    trainer = TRAINERS[options.kind]
    progress = progress or Progress(io.StringIO())
    parts = sample(options, trainer.sample_bytes, progress)
    progress.start("normalizing", int(sum(part.bytes * part.times for part in parts)), "MB", 1e-6)
    content = trainer.learn(_documents(parts, progress), options, progress)
    progress.start("measuring")
    atomic.write_file(options.output, content)
    tokenizer = tokenization.load(options.output, lower_case=options.folded, normalizer=options.normalizer)
    return Trained(options.output, tokenizer.vocab_size, tuple(_measured(part, tokenizer) for part in parts))


def _documents(parts: Sequence[Part], progress: Progress) -> Iterator[readers.Document]:
    for part in parts:
        whole, rest = divmod(part.times, 1)
        some = sorted(part.training, key=lambda document: document_key(f"0 {document.key}"))
        for document in (*some[: round(rest * len(some))], *part.training * int(whole)):
            yield document
            progress.advance(document.size)


def _check(options: Options) -> None:
    """Raises UserError for an option that is out of range, and for an output that cannot be written."""
    ending = tokenization.KINDS[options.kind].ending
    cases = not (options.keeps_case and options.lower_case)
    least = len(byte_bpe.ALPHABET) + 5 if options.kind == "bpe" else 100
    rules = [
        ("size", options.size >= least, f"at least {least}"),
        ("character_coverage", LEAST_COVERAGE <= options.character_coverage <= 1, f"{LEAST_COVERAGE} to 1"),
        ("min_frequency", options.min_frequency >= 1, "at least 1"),
        ("sampling_exponent", 0 < options.sampling_exponent <= 1, "over 0, and at most 1"),
        ("lower_case", cases, "no value with --kind=bpe or --normalizer=deberta, which keep the case"),
        ("output", options.output.endswith(ending), f"a file name that ends in {ending}"),
    ]
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    rules += [
        (name, getattr(options, name) == defaults[name], f"no value with --kind={options.kind}")
        for name in TRAINERS[options.kind].unused
    ]
    for name, valid, expected in rules:
        check_flag(name, getattr(options, name), valid, expected)
    checks.check_output_file(options.output, overwrite=options.overwrite)


def _measured(part: Part, tokenizer: Tokenizer) -> Part:
    """Returns the part with the statistics of the vocabulary."""
    words = tokens = unknown = 0
    text = part.held_out or part.training
    passages = itertools.chain.from_iterable(document.passages for document in text)
    while batch := list(itertools.islice(passages, 1000)):
        words += sum(len(passage.split()) for passage in batch)
        for ids in tokenizer.encode_batch(batch):
            tokens += len(ids)
            unknown += ids.count(tokenizer.unk_id)
    per_word, rate = tokens / max(1, words), unknown / max(1, tokens)
    return dataclasses.replace(part, words=words, tokens_per_word=per_word, unknown_rate=rate)
