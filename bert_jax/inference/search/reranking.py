"""Orders documents that were found by the score of a fine-tuned model of pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.search.index import Result
from bert_jax.io.wording import counted
from bert_jax.tasks.predictions import TablePredictions
from bert_jax.tasks.readers.tables import Examples

CANDIDATES = 100  # documents of each query, by default


class Reranker:
    """Scores pairs of texts with a fine-tuned model.

    Args:
        model: a run of reranking, of late interaction, of a regression on pairs, whose number is the score,
            or of a classification with two labels, where it is the probability of the second one.
        candidates: number of documents of each query to order, from the first on.

    Raises:
        UserError: the run is of another kind.
    """

    def __init__(self, model: Predictor, candidates: int = CANDIDATES):
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
        self._model = model

    def scores(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Returns the score of each pair: float32 [N]."""
        if not pairs:
            return np.zeros(0, np.float32)
        first, second = map(list, zip(*pairs, strict=True))
        ids = [str(number) for number in range(len(pairs))]
        examples = Examples("the pairs", ids, first, second, [], list(range(1, len(pairs) + 1)))
        predictions = self._model.predict(examples)
        assert isinstance(predictions, TablePredictions)
        return predictions.outputs[:, -1].astype(np.float32)

    def rerank(self, query: str, results: Sequence[Result]) -> list[Result]:
        """Returns the candidates with the scores of this model, the largest first, and then the others."""
        first, others = results[: self.candidates], results[self.candidates :]
        scores = self.scores([(query, result.document.text) for result in first])
        found = [
            dataclasses.replace(result, score=float(score))
            for result, score in zip(first, scores, strict=True)
        ]
        return [*sorted(found, key=lambda result: -result.score), *others]
