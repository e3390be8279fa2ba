"""Evaluation of a fine-tuning task while it is trained."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.tasks.base import Problem
from bert_jax.tasks.rows import batches, predictions
from bert_jax.training.evaluators import EvaluationContext, Evaluator
from bert_jax.training.state import TrainState
from bert_jax.workdir.run_directory import WorkDir


class TaskEvaluator(Evaluator):
    """Predicts the whole evaluation file and scores the predictions.

    Args:
        problem: the task.
        data: the encoded rows of the evaluation file.
        examples: its examples.
        mesh: where the state lies.
        workdir: held by the run; gets the files of `write_results`.
        every: the number of steps between two evaluations; 0 for one at the end.
    """

    def __init__(
        self,
        problem: Problem,
        data: batches.EncodedRows,
        examples: Any,
        mesh: jax.sharding.Mesh,
        workdir: WorkDir,
        every: int = 0,
    ):
        self.every = every
        self._problem, self._data, self._examples = problem, data, examples
        self._mesh, self._workdir = mesh, workdir
        self._predict = predictions.make_predict(problem.task, mesh)
        self._outputs = np.zeros(0, np.float32)  # of the last evaluation
        self._scores: dict[str, float] = {}

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns the loss and every metric of the task.

        The loss, like every score, is taken from the outputs for whole examples.
        """
        with context.watchdog.paused():
            with context.batches() as on_batch:
                self._outputs = predictions.predict_all(
                    functools.partial(self._predict, frozen=state.frozen) if state.frozen else self._predict,
                    state.params,
                    self._data,
                    self._problem.config.batch_size,
                    self._mesh,
                    on_batch=on_batch,
                    run=context.wait_for,
                )
            self._scores = self._problem.score(self._examples, self._data, self._outputs)
            return {"loss": self._problem.loss(self._data, self._outputs), **self._scores}

    def write_results(self) -> dict[str, Any]:
        """Writes the predictions and the reports of the last evaluation into the work directory.

        Returns:
            {"degenerate": whether the model predicts the same for every example}, for best.json.
        """
        problem, outputs = self._problem, self._outputs
        if self._workdir.primary:
            path = os.path.join(self._workdir.path, f"predictions-dev{problem.formats[0]}")
            problem.write(path, self._examples, self._data, outputs)
            problem.report(self._workdir.path, self._examples, self._data, outputs)
        return {"degenerate": problem.is_degenerate(self._scores, outputs)}
