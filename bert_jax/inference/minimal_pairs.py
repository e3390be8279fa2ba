"""Minimal pairs: how often a pre-trained model prefers the grammatical sentence of a pair.

This needs no task and no labels (Warstadt et al. 2020, BLiMP). The score of a sentence is its
pseudo-log-likelihood, the sum of the log probabilities of its tokens. Each prediction masks the token itself
(Salazar et al. 2020) and the later tokens of its word (Kauf and Ivanova 2023). For a causal model, the score
is the log-likelihood.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import convert
from bert_jax.errors import UserError, check_flag
from bert_jax.inference.engine import Row, text_rows, with_masked_lm
from bert_jax.inference.fill_mask import masked_lm_engine
from bert_jax.io import files
from bert_jax.kernels import platform
from bert_jax.tasks import table
from bert_jax.tokenization import Tokenizer

ALL = "all"  # the name of the mean over all pairs
_CHUNK = 1024  # sentences whose rows are in memory at a time
_CAUSAL_TOKENS = 1024  # tokens of a batch on each device; every token has logits
FIELDS = ("UID", "sentence_good", "sentence_bad")  # of BLiMP's files


class Pair(NamedTuple):
    """A minimal pair: its phenomenon, the grammatical and the ungrammatical sentence."""

    phenomenon: str
    good: str
    bad: str


@dataclasses.dataclass(frozen=True)
class _Prediction(Row):
    sentence: int
    positions: np.ndarray
    labels: np.ndarray


class SentenceScorer:
    """Scores sentences with a checkpoint in any format."""

    def __init__(self, path: files.PathLike, log: Callable[[str], None] = print, dtype: str = "auto"):
        model = with_masked_lm(convert.load(path, log=log))
        self.source, self._limit = model.source, model.config.max_seq_length
        self._tokenizer = model.require_tokenizer()
        config = model.config.for_inference(platform.target(), dtype)

        def likelihoods(logits, batch):
            chosen = jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1)[..., 0]
            scores = chosen - jax.nn.logsumexp(logits, axis=-1)
            return jnp.sum(jnp.where(batch["predicted"], scores, 0.0), axis=-1)

        self._predictions = self._next if config.causal else self._masked
        tokens = _CAUSAL_TOKENS if config.causal else 0
        self.engine = masked_lm_engine(model, config, likelihoods, batch_tokens=tokens, log=log)

    def __call__(
        self, sentences: Sequence[str], on_done: Callable[[int], None] = lambda done: None
    ) -> np.ndarray:
        """Returns (pseudo-)log-likelihoods in nats, float64 [N]; UserError if a sentence is too long."""
        sums = np.zeros(len(sentences))
        for begin in range(0, len(sentences), _CHUNK):
            chunk = sentences[begin : begin + _CHUNK]
            predictions: list[_Prediction] = []
            for number, row in enumerate(text_rows(self._tokenizer, chunk, self._limit), begin):
                if row.cut or self._inner(row).size == 0:
                    raise UserError(
                        f"sentence {sentences[number]!r:.60}: expected 1 to {self._limit - 2} tokens"
                    )
                predictions += self._predictions(number, row)
            outputs = self.engine.outputs(predictions, total=len(predictions), arrays=_arrays)
            for numbers, values in outputs:
                np.add.at(sums, [predictions[i].sentence for i in numbers], values)
            on_done(begin + len(chunk))
        return sums

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
    """Returns, for each token of a sentence, the number of tokens up to the end of its word, int64 [n]."""
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
    positions, labels = np.zeros((2, size, width), np.int32)
    predicted = np.zeros((size, width), bool)
    for i, each in enumerate(predictions):
        count = len(each.labels)
        positions[i, :count], labels[i, :count], predicted[i, :count] = each.positions, each.labels, True
    return {"positions": positions, "labels": labels, "predicted": predicted}


def evaluate(
    scorer: Callable[..., np.ndarray],
    pairs: Sequence[Pair],
    on_done: Callable[[int], None] = lambda done: None,
) -> tuple[np.ndarray, dict[str, dict[str, float]]]:
    """Returns the scores of the sentences, float64 [N, 2], and {phenomenon: {"accuracy", "pairs"}}.

    `scorer` is a `SentenceScorer`. The phenomena are in the order of the pairs, with "all" last. A tie counts
    as one half.
    """
    scores = scorer([x for pair in pairs for x in (pair.good, pair.bad)], on_done).reshape(-1, 2)
    correct = (np.sign(scores[:, 0] - scores[:, 1]) + 1) / 2
    phenomena = np.array([pair.phenomenon for pair in pairs])
    groups = {name: correct[phenomena == name] for name in dict.fromkeys(phenomena.tolist())}
    groups[ALL] = correct
    return scores, {name: {"accuracy": float(x.mean()), "pairs": len(x)} for name, x in groups.items()}


def read(path: str) -> list[Pair]:
    """Reads pairs from a BLiMP file: JSON lines with `UID`, `sentence_good` and `sentence_bad`."""
    pairs = []
    for number, row in table.records(path, "jsonl"):
        values = [row.get(name) for name in FIELDS] if isinstance(row, dict) else [None]
        if not all(isinstance(value, str) and value.strip() for value in values) or values[0] == ALL:
            raise UserError(f"{path}:{number}: expected an object with text in {', '.join(FIELDS)}")
        pairs.append(Pair(*values))
    check_flag("input", path, pairs, "one pair or more")
    return pairs


# The sentences of a pair differ in one word. The words are frequent in Wikipedia, so a vocabulary of 8,192
# tokens has nearly all of them. Except for negative polarity items, each pair of words occurs in both roles
# equally often: a model that always prefers the same word gets half of the pairs right.


def _nouns(text: str) -> list[tuple[str, str]]:
    irregular = {"man": "men", "woman": "women", "party": "parties"}
    return [(word, irregular.get(word, f"{word}s")) for word in text.split()]


_PEOPLE = _nouns("author player student writer officer actor artist leader")
_POSSESSORS = _nouns("author player student writer officer actor owner leader")
_POSSESSED = _nouns("book game school song ship film house party")
_THINGS = _nouns("book song film house town school ship road")
_PREDICATES = {
    "very famous": ("is", "are"),
    "born in the city": ("was", "were"),
    "a new house": ("has", "have"),
    "near the river": ("lives", "live"),
    "at the school": ("works", "work"),
}
_DETERMINERS = (("this", "these"), ("that", "those"), ("a", "many"))
_EXPERIENCES = ("seen the river", "won the game", "been in the church", "left the city")
_GENDERS = ("man king lord father brother son husband", "woman queen lady mother sister daughter wife")
_VERBS = ("saw", "helped", "found", "killed", "taught")
_REFLEXIVE = {"himself": "man king brother son", "herself": "woman sister daughter mother"}


def generate() -> list[Pair]:
    """Returns 606 pairs for 8 phenomena, always the same and in the same order."""
    pairs: list[Pair] = []

    def add(name: str, frame: str, right: str, wrong: str, noun: str = "") -> None:
        pairs.append(Pair(name, frame.format(right, noun), frame.format(wrong, noun)))

    def add_both(name: str, frame: str, nouns: Sequence[str], words: Sequence[str]) -> None:
        add(name, frame, words[0], words[1], nouns[0])
        add(name, frame, words[1], words[0], nouns[1])

    for nouns, (rest, verbs) in itertools.product(_PEOPLE, _PREDICATES.items()):
        add_both("agreement", f"The {{1}} {{0}} {rest}.", nouns, verbs)
    prepositions = "of in at of on in of of".split()
    for nouns, preposition, others in zip(_POSSESSORS, prepositions, _POSSESSED, strict=True):
        phrases = [f"{nouns[n]} {preposition} the {others[1 - n]}" for n in (0, 1)]
        for rest, verbs in _PREDICATES.items():
            add_both("agreement_prepositional_phrase", f"The {{1}} {{0}} {rest}.", phrases, verbs)
    relative = itertools.cycle(("saw", "met", "knew", "helped"))
    for nouns, others in zip(_PEOPLE, _PEOPLE[3:] + _PEOPLE[:3], strict=True):
        for (rest, verbs), verb in zip(_PREDICATES.items(), relative, strict=False):
            phrases = [f"{nouns[n]} that the {others[1 - n]} {verb}" for n in (0, 1)]
            add_both("agreement_relative_clause", f"The {{1}} {{0}} {rest}.", phrases, verbs)
    for frame in ("He saw {0} {1}.", "They found {0} {1} near the river."):
        for nouns, determiners in itertools.product(_THINGS, _DETERMINERS):
            add_both("determiner_noun", frame, nouns, determiners)
    for (noun, nouns), what in itertools.product(_PEOPLE[:5], _EXPERIENCES):
        add("npi_ever", f"{{}} {noun} has ever {what}.", "No", "The")
        add("npi_ever", f"{{}} {nouns} have ever {what}.", "Few", "Most")
        add("npi_ever", f"The {nouns} have {{}} ever {what}.", "not", "also")
    for (noun, nouns), what in itertools.product(_PEOPLE[:5], ("money", "food", "children", "friends")):
        add("npi_any", f"{{}} {noun} has any {what}.", "No", "The")
        add("npi_any", f"The {noun} lived {{}} any {what}.", "without", "with")
        add("npi_any", f"The {nouns} did {{}} have any {what}.", "not", "also")
    for people, verb in itertools.product(zip(*map(str.split, _GENDERS), strict=True), _VERBS):
        add_both("reflexive_gender", f"The {{1}} {verb} {{0}}.", people, ("himself", "herself"))
    for pronoun, people in _REFLEXIVE.items():
        for nouns, verb in itertools.product(_nouns(people), _VERBS):
            add_both("reflexive_number", f"The {{1}} {verb} {{0}}.", nouns, (pronoun, "themselves"))
    return pairs
