"""Orders documents that were found by the score of a fine-tuned model of pairs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.search.index import Result
from bert_jax.io.wording import alternatives, counted
from bert_jax.tasks.predictions import TablePredictions
from bert_jax.tasks.table import Examples

CANDIDATES = 100  # documents of each query, by default


class Reranker:
    """Scores pairs of texts with a fine-tuned model.

    Args:
        model: a run of reranking, of late interaction, of a regression on pairs, whose number is the score,
            or of a classification with two labels, where it is the probability of one of them.
        candidates: number of documents of each query to order, from the first on.
        relevant: the label of a classification that a relevant document has. By default the label that the
            task knows as such, or the larger one of two integers.
        log: called with a line that names this label.

    Raises:
        UserError: the run is of another kind, or which label a relevant document has is not known.
    """

    def __init__(
        self,
        model: Predictor,
        candidates: int = CANDIDATES,
        relevant: str | None = None,
        log: Callable[[str], None] = print,
    ):
        self.candidates = candidates
        task = model.task
        labels = len(task.labels)
        if not task.scores_pairs:
            raise UserError(
                f"--rerank={model.source}: a run of {task.title}"
                + (f" with {counted(labels, 'label')}" if labels else "")
                + "; expected reranking, late interaction, a regression on pairs of texts, or a "
                "classification with two labels"
            )
        if not task.line_names()["text_b"]:
            raise UserError(
                f"--rerank={model.source}: a model of single texts; expected one of pairs of texts"
            )
        self._model, self._output = model, 0
        if labels:
            found = _relevant(model, relevant)
            log(f"--rerank={model.source}: the score is the probability of {found!r}")
            self._output = task.labels.index(found)
        elif relevant is not None:
            raise UserError(f"--relevant={relevant}: a run of {task.title} has no labels; leave it out")

    def scores(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Returns the score of each pair: float32 [N]."""
        if not pairs:
            return np.zeros(0, np.float32)
        first, second = map(list, zip(*pairs, strict=True))
        ids = [str(number) for number in range(len(pairs))]
        examples = Examples("the pairs", ids, first, second, [], list(range(1, len(pairs) + 1)))
        predictions = self._model.predict(examples)
        assert isinstance(predictions, TablePredictions)
        return predictions.outputs[:, self._output].astype(np.float32)

    def rerank(self, query: str, results: Sequence[Result]) -> list[Result]:
        """Returns the candidates with the scores of this model, the largest first, and then the others."""
        first, others = results[: self.candidates], results[self.candidates :]
        scores = self.scores([(query, result.document.text) for result in first])
        found = [
            dataclasses.replace(result, score=float(score))
            for result, score in zip(first, scores, strict=True)
        ]
        return [*sorted(found, key=lambda result: -result.score), *others]


def _relevant(model: Predictor, given: str | None) -> str:
    """Returns the label of relevant documents: the given one, that of the task, or the larger integer."""
    labels, known = model.task.labels, model.task.spec.relevant
    names = alternatives(map(repr, labels))
    if given is not None:
        if given not in labels:
            raise UserError(f"--relevant={given}: expected a label of {model.source}, {names}")
        return given
    if known in labels:
        return known
    if all(re.fullmatch(r"-?\d+", label) for label in labels):
        return max(labels, key=int)
    raise UserError(
        f"--rerank={model.source}: which label does a relevant document have, {names}? give --relevant=LABEL"
    )
