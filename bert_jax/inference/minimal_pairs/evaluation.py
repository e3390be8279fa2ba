"""Reads minimal pairs, scores them with a model, and writes the scores."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.minimal_pairs.sentences import Pair
from bert_jax.inference.sentence_scores import Scores, SentenceScorer
from bert_jax.io import checks
from bert_jax.tasks import writers
from bert_jax.tasks.table import read_strictly

COLUMNS = Pair._fields
ALL = "all"  # the name of the mean over all pairs


@dataclasses.dataclass(frozen=True)
class Result:
    """The scores of N pairs.

    Attributes:
        pairs: the pairs.
        good: the scores of their grammatical sentences.
        bad: the scores of the others.
    """

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
        """Returns bool [N], whether the sentences have different numbers of tokens."""
        return self.good.tokens != self.bad.tokens

    @property
    def unknown(self) -> np.ndarray:
        """Returns bool [N], whether the vocabulary lacks a word of either sentence."""
        return self.good.unknown | self.bad.unknown

    def summary(self) -> dict[str, dict[str, float]]:
        """Returns {phenomenon: {"accuracy", "pairs", "unequal"}} in the order of the pairs, and "all" last.

        `unequal` is the number of pairs whose sentences have different numbers of tokens.
        """
        phenomena = np.array([pair.phenomenon for pair in self.pairs])
        parts = {name: phenomena == name for name in dict.fromkeys(phenomena.tolist())}
        parts[ALL] = np.ones(len(phenomena), bool)
        return {
            name: {
                "accuracy": float(self.correct[which].mean()),
                "pairs": int(which.sum()),
                "unequal": int(self.unequal[which].sum()),
            }
            for name, which in parts.items()
        }

    def write(self, path: str) -> None:
        """Writes a TSV file with the columns of the pairs and the scores of both sentences."""
        scores = zip(self.good.log_likelihoods, self.bad.log_likelihoods, strict=True)
        rows = ((*pair, *map("{:.6f}".format, each)) for pair, each in zip(self.pairs, scores, strict=True))
        writers.write_table(path, (*COLUMNS, "good_score", "bad_score"), rows)


def read(path: str) -> list[Pair]:
    """Returns the pairs of a TSV file with the columns `phenomenon`, `good` and `bad`.

    Raises:
        UserError: the file is missing or empty, lacks a column, or has a row that is malformed or has an
            empty field. The message gives the line.
    """
    checks.check_input(path, "TSV")
    pairs = []
    for place, row in read_strictly(path, COLUMNS):
        pair = Pair(**{name: text.strip() for name, text in row.items()})
        if empty := [name for name in COLUMNS if not getattr(pair, name)]:
            raise UserError(f"{place}: the column {empty[0]} is empty")
        if pair.phenomenon == ALL:
            raise UserError(f"{place}: the phenomenon {ALL!r} is the name of the mean; give another")
        pairs.append(pair)
    if not pairs:
        raise UserError(f"{path}: no pairs after the header")
    return pairs


def evaluate(
    scorer: SentenceScorer,
    pairs: Sequence[Pair],
    on_done: Callable[[int], None] = lambda done: None,
) -> Result:
    """Returns the scores of pairs.

    Args:
        scorer: scores the sentences.
        pairs: the pairs.
        on_done: called with the number of sentences done.
    """
    sentences = itertools.chain.from_iterable((pair.good, pair.bad) for pair in pairs)
    scores = scorer(sentences, on_done)
    good, bad = (
        Scores(*(getattr(scores, field.name)[place::2] for field in dataclasses.fields(Scores)))
        for place in (0, 1)
    )
    return Result(pairs, good, bad)
