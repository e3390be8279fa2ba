"""Minimal pairs: how often a pre-trained model finds the grammatical one of two sentences more likely.

No task and no labels are needed, so encoders can be compared after minutes of pre-training (Warstadt et al.
2020, BLiMP). The score of a sentence is its pseudo-log-likelihood: the sum of the log probabilities of the
tokens, each predicted from all others with itself masked (Salazar et al. 2020). Of a word of several tokens,
those after the predicted one are masked, too (Kauf and Ivanova 2023): otherwise the first tokens of a rare
word are guessed from its last ones. Special tokens are not predicted. A causal model predicts each token from
those before it, and the score is the log-likelihood.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.inference.engine import Engine, Row, check_items, text_rows, tokenizer_of, with_masked_lm
from bert_jax.inference.fill_mask import logits_at
from bert_jax.io import checks, files
from bert_jax.kernels import platform
from bert_jax.tasks import writers
from bert_jax.tasks.table import read_strictly
from bert_jax.tokenization import Tokenizer

ALL = "all"  # the name of the mean over all pairs
_CHUNK = 1024  # sentences whose rows are in memory at a time
_CAUSAL_TOKENS = 1024  # of a batch on each device, with the logits of all of them


class Pair(NamedTuple):
    """A minimal pair: what decides which sentence is grammatical, the grammatical sentence, the other one."""

    phenomenon: str
    good: str
    bad: str


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of N sentences.

    Attributes:
        log_likelihoods: float64 [N], (pseudo-)log-likelihoods in nats.
        tokens: int64 [N], the number of tokens that each is the sum of.
        unknown: bool [N], whether the sentence has a word that the vocabulary does not have.
    """

    log_likelihoods: np.ndarray
    tokens: np.ndarray
    unknown: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Prediction(Row):
    sentence: int
    positions: np.ndarray
    labels: np.ndarray


class SentenceScorer:
    """Scores sentences with a pre-trained checkpoint, which is loaded on construction.

    Args:
        path: the path of a checkpoint in any supported format, with a masked LM head.
        log: called with each line to be logged.
        dtype: the dtype of the computation, as in `EncoderConfig.for_inference`.

    Attributes:
        source: where the model was read from.

    Raises:
        UserError: there is no checkpoint at `path`, or it has no masked LM head or no vocabulary.
    """

    def __init__(self, path: files.PathLike, log: Callable[[str], None] = print, dtype: str = "auto"):
        model = with_masked_lm(convert.load(path, log=log))
        self.source, self._limit = model.source, model.config.max_seq_length
        self._tokenizer = tokenizer_of(model)
        config = model.config.for_inference(platform.target(), dtype)
        options = dict(types=self._tokenizer.layout.types, head=model.family.masked_lm)

        @functools.partial(jax.jit, static_argnames="config")
        def compute(params, batch, config):
            lengths, positions = batch["lengths"][:, None], batch["positions"]
            logits = logits_at(params, batch["input_ids"], lengths, positions, config=config, **options)
            chosen = jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1)[..., 0]
            scores = chosen - jax.nn.logsumexp(logits, axis=-1)
            return jnp.sum(jnp.where(batch["predicted"], scores, 0.0), axis=-1)

        self._predictions = self._next if config.causal else self._masked
        self._engine = Engine(
            model,
            config,
            ("encoder", "mlm"),
            compute,
            max_seq_length=self._limit,
            batch_tokens=_CAUSAL_TOKENS if config.causal else 0,
            log=log,
        )

    def __call__(
        self, sentences: Iterable[str], on_done: Callable[[int], None] = lambda done: None
    ) -> Scores:
        """Returns the scores of sentences; `on_done` is called with the number of sentences done.

        Raises:
            UserError: a sentence has no words, or more tokens than the model has positions.
        """
        check_items(sentences, "sentences")
        rest, chunks, done = iter(sentences), [], 0
        while chunk := list(itertools.islice(rest, _CHUNK)):
            chunks.append(self._scores(chunk))
            done += len(chunk)
            on_done(done)
        if not chunks:
            return Scores(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool))
        return Scores(*(np.concatenate(arrays) for arrays in zip(*chunks, strict=True)))

    def _scores(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = list(text_rows(self._tokenizer, sentences, self._limit))
        for text, row in zip(sentences, rows, strict=True):
            if row.cut or self._inner(row).size == 0:
                raise UserError(f"{text[:60]!r}: expected a sentence of 1 to {self._limit - 2} tokens")
        predictions = [each for number, row in enumerate(rows) for each in self._predictions(number, row)]
        sums, tokens = np.zeros(len(rows)), np.zeros(len(rows), np.int64)
        outputs = self._engine.outputs(predictions, total=len(predictions), arrays=_arrays)
        for numbers, values in outputs:
            owners = [predictions[i].sentence for i in numbers]
            np.add.at(sums, owners, values)
            np.add.at(tokens, owners, [len(predictions[i].labels) for i in numbers])
        return sums, tokens, np.array([self._tokenizer.unk_id in row.token_ids for row in rows], bool)

    def _inner(self, row: Row) -> np.ndarray:
        layout = self._tokenizer.layout
        return np.arange(len(layout.before), len(row.token_ids) - len(layout.end))

    def _masked(self, number: int, row: Row) -> Iterator[_Prediction]:
        ids, inner = row.token_ids, self._inner(row)
        ends = inner[0] + word_ends(self._tokenizer, ids[inner])
        for position, end in zip(inner, ends, strict=True):
            masked = ids.copy()
            masked[position:end] = self._tokenizer.mask_id
            place = np.array([position])
            yield _Prediction(masked, row.first_length, False, number, place, ids[place])

    def _next(self, number: int, row: Row) -> Iterator[_Prediction]:
        inner = self._inner(row)
        yield _Prediction(row.token_ids, row.first_length, False, number, inner - 1, row.token_ids[inner])


def word_ends(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """Returns, for each token of a sentence, the number of tokens up to the end of its word: int64 [n].

    A punctuation mark is a word, also in vocabularies in which it continues the word before.

    Args:
        tokenizer: the tokenizer of the sentence.
        ids: [n], the tokens without special ones.
    """
    tokens = [tokenizer.tokens[token] for token in ids]
    is_space = np.array([token == tokenizer.word_start for token in tokens])
    is_word = np.array([any(map(str.isalnum, token)) for token in tokens])
    of_word = is_word & np.append(False, is_word[:-1]) | np.append(False, is_space[:-1])
    continues = tokenizer.is_continuation[ids] & of_word
    starts = np.flatnonzero(~continues)
    return np.append(starts[1:], len(ids))[np.cumsum(~continues) - 1]


def _arrays(rows: Sequence[Row], size: int) -> dict[str, np.ndarray]:
    predictions = [row for row in rows if isinstance(row, _Prediction)]
    width = 1 << (max(len(each.labels) for each in predictions) - 1).bit_length()
    batch = {
        "positions": np.zeros((size, width), np.int32),
        "labels": np.zeros((size, width), np.int32),
        "predicted": np.zeros((size, width), bool),
    }
    for i, each in enumerate(predictions):
        count = len(each.labels)
        batch["positions"][i, :count], batch["labels"][i, :count] = each.positions, each.labels
        batch["predicted"][i, :count] = True
    return batch


@dataclasses.dataclass(frozen=True)
class Result:
    """The scores of N pairs: `good` of the grammatical sentences, `bad` of the others."""

    pairs: Sequence[Pair]
    good: Scores
    bad: Scores

    @property
    def correct(self) -> np.ndarray:
        """Returns float64 [N]: 1 where the grammatical sentence is more likely, 1/2 where neither is."""
        difference = self.good.log_likelihoods - self.bad.log_likelihoods
        return (np.sign(difference) + 1) / 2

    @property
    def unequal(self) -> np.ndarray:
        """Returns bool [N], True if the sentences have different numbers of tokens."""
        return self.good.tokens != self.bad.tokens

    @property
    def unknown(self) -> np.ndarray:
        """Returns bool [N], True if the vocabulary lacks a word of either sentence."""
        return self.good.unknown | self.bad.unknown

    def summary(self) -> dict[str, dict[str, float]]:
        """Returns {phenomenon: {"accuracy", "pairs", "unequal"}} in the order of the pairs, and "all" last.

        `unequal` is the number of pairs whose sentences have different numbers of tokens.
        """
        phenomena = np.array([pair.phenomenon for pair in self.pairs])
        groups = {name: phenomena == name for name in dict.fromkeys(phenomena.tolist())}
        groups[ALL] = np.ones(len(phenomena), bool)
        return {
            name: {
                "accuracy": float(self.correct[which].mean()),
                "pairs": int(which.sum()),
                "unequal": int(self.unequal[which].sum()),
            }
            for name, which in groups.items()
        }

    def write(self, path: str) -> None:
        """Writes a TSV file with the columns of the pairs and the scores of both sentences."""
        scores = zip(self.good.log_likelihoods, self.bad.log_likelihoods, strict=True)
        rows = ((*pair, *map("{:.6f}".format, each)) for pair, each in zip(self.pairs, scores, strict=True))
        writers.write_table(path, (*Pair._fields, "good_score", "bad_score"), rows)


def read(path: str) -> list[Pair]:
    """Returns the pairs of a TSV file with the columns `phenomenon`, `good` and `bad`.

    Raises:
        UserError: the file is missing or empty, lacks a column, or has a row that is malformed or has an
            empty field. The message gives the line.
    """
    checks.check_input(path, "TSV")
    pairs = []
    for place, row in read_strictly(path, Pair._fields):
        pair = Pair(**{name: text.strip() for name, text in row.items()})
        if not all(pair) or pair.phenomenon == ALL:
            raise UserError(f"{place}: expected a phenomenon other than {ALL!r} and two sentences")
        pairs.append(pair)
    if not pairs:
        raise UserError(f"{path}: no pairs after the header")
    return pairs


def evaluate(
    scorer: SentenceScorer,
    pairs: Sequence[Pair],
    on_done: Callable[[int], None] = lambda done: None,
) -> Result:
    """Returns the scores of pairs; `on_done` is called with the number of sentences done."""
    scores = scorer(itertools.chain.from_iterable((pair.good, pair.bad) for pair in pairs), on_done)
    arrays = scores.log_likelihoods, scores.tokens, scores.unknown
    return Result(pairs, Scores(*(x[::2] for x in arrays)), Scores(*(x[1::2] for x in arrays)))


# Pairs of two sentences that differ in one word. The words are frequent in Wikipedia, so that a vocabulary of
# 8,192 tokens has nearly all of them. Except for the negative polarity items, a phenomenon has each pair of
# words in both roles equally often: a model that always prefers the same word gets half of its pairs right.


def _nouns(text: str) -> list[tuple[str, str]]:
    """Returns (singular, plural) of some words."""
    irregular = {"man": "men", "woman": "women", "party": "parties"}
    return [(word, irregular.get(word, f"{word}s")) for word in text.split()]


_PEOPLE = _nouns("author player student writer officer actor artist leader")
_THINGS = _nouns("book song film house town school ship road")
_WITH_COMPLEMENT = [
    *zip(
        _nouns("author player student writer officer actor owner leader"),
        "of in at of on in of of".split(),
        _nouns("book game school song ship film house party"),
        strict=True,
    )
]
_PREDICATES = (
    ("is", "are", "very famous"),
    ("was", "were", "born in the city"),
    ("has", "have", "a new house"),
    ("lives", "live", "near the river"),
    ("works", "work", "at the school"),
)
_DETERMINERS = (("this", "these"), ("that", "those"), ("a", "many"))
_EXPERIENCES = ("seen the river", "won the game", "been in the church", "left the city")
_POSSESSIONS = ("money", "food", "children", "friends")
_MALE = "man king lord father brother son husband".split()
_FEMALE = "woman queen lady mother sister daughter wife".split()
_REFLEXIVE_VERBS = ("saw", "helped", "found", "killed", "taught")
_MEN, _WOMEN = _nouns("man king brother son"), _nouns("woman sister daughter mother")

# (frame, the right word, the wrong one)
_Contrast = tuple[str, str, str]


def _both(frames: Sequence[str], words: Sequence[str]) -> Iterator[_Contrast]:
    yield frames[0], words[0], words[1]
    yield frames[1], words[1], words[0]


def _agreement(subjects: Iterable[tuple[str, str]]) -> Iterator[_Contrast]:
    for nouns, (singular, plural, rest) in itertools.product(subjects, _PREDICATES):
        yield from _both([f"The {noun} {{}} {rest}." for noun in nouns], (singular, plural))


def _contrasts() -> Iterator[tuple[str, Iterator[_Contrast]]]:
    """Yields (phenomenon, its contrasts)."""
    yield "agreement", _agreement(_PEOPLE)
    yield (
        "agreement_prepositional_phrase",
        _agreement(
            (f"{one} {preposition} the {others[1]}", f"{many} {preposition} the {others[0]}")
            for (one, many), preposition, others in _WITH_COMPLEMENT
        ),
    )
    verbs = itertools.cycle(("saw", "met", "knew", "helped"))
    yield (
        "agreement_relative_clause",
        (
            contrast
            for place, nouns in enumerate(_PEOPLE)
            for others in [_PEOPLE[(place + 3) % len(_PEOPLE)]]
            for (singular, plural, rest), verb in zip(_PREDICATES, verbs, strict=False)
            for contrast in _both(
                [f"The {nouns[n]} that the {others[1 - n]} {verb} {{}} {rest}." for n in (0, 1)],
                (singular, plural),
            )
        ),
    )
    yield (
        "determiner_noun",
        (
            contrast
            for frame in ("He saw {{}} {}.", "They found {{}} {} near the river.")
            for nouns, determiners in itertools.product(_THINGS, _DETERMINERS)
            for contrast in _both([frame.format(noun) for noun in nouns], determiners)
        ),
    )
    yield (
        "npi_ever",
        (
            contrast
            for (noun, nouns), what in itertools.product(_PEOPLE[:5], _EXPERIENCES)
            for contrast in (
                (f"{{}} {noun} has ever {what}.", "No", "The"),
                (f"{{}} {nouns} have ever {what}.", "Few", "Most"),
                (f"The {nouns} have {{}} ever {what}.", "not", "also"),
            )
        ),
    )
    yield (
        "npi_any",
        (
            contrast
            for (noun, nouns), what in itertools.product(_PEOPLE[:5], _POSSESSIONS)
            for contrast in (
                (f"{{}} {noun} has any {what}.", "No", "The"),
                (f"The {noun} lived {{}} any {what}.", "without", "with"),
                (f"The {nouns} did {{}} have any {what}.", "not", "also"),
            )
        ),
    )
    yield (
        "reflexive_gender",
        (
            contrast
            for people, verb in itertools.product(zip(_MALE, _FEMALE, strict=True), _REFLEXIVE_VERBS)
            for contrast in _both([f"The {noun} {verb} {{}}." for noun in people], ("himself", "herself"))
        ),
    )
    yield (
        "reflexive_number",
        (
            contrast
            for (nouns, singular), verb in itertools.product(
                [*((nouns, "himself") for nouns in _MEN), *((nouns, "herself") for nouns in _WOMEN)],
                _REFLEXIVE_VERBS,
            )
            for contrast in _both([f"The {noun} {verb} {{}}." for noun in nouns], (singular, "themselves"))
        ),
    )


def generate() -> list[Pair]:
    """Returns the pairs of all phenomena, always the same and in the same order."""
    return [
        Pair(name, frame.format(right), frame.format(wrong))
        for name, contrasts in _contrasts()
        for frame, right, wrong in contrasts
    ]
