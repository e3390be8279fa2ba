"""Evaluation of a fine-tuning task during training."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import jax

from bert_jax.objectives.base import Objective
from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.predictions import Predictions
from bert_jax.tasks.rows import outputs
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.training.evaluators import EvaluationContext, Evaluator
from bert_jax.training.state import TrainState
from bert_jax.workdir.run_directory import WorkDir


class TaskEvaluator(Evaluator):
    """Predicts the whole evaluation file, decodes the outputs once, and scores the predictions.

    Args:
        task: the task that is trained.
        objective: its objective, with the parameters that are frozen.
        rows, examples: those of the evaluation file.
        shapes: the shapes of the batches.
        mesh: the device mesh that holds the train state.
        workdir: the work directory, to which `write_results` writes.
        every: the number of steps between two evaluations; 0 to evaluate only at the end.
    """

    _predictions: Predictions  # of the last evaluation
    _scores: dict[str, float]

    def __init__(
        self,
        task: FinetuneTask,
        objective: Objective,
        rows: EncodedRows,
        examples: Any,
        shapes: outputs.Shapes,
        mesh: jax.sharding.Mesh,
        workdir: WorkDir,
        every: int = 0,
    ):
        self.every, self._shapes = every, shapes
        self._task, self._rows, self._examples = task, rows, examples
        self._mesh, self._workdir = mesh, workdir
        self._predict = outputs.make_predict(objective, mesh)

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns the loss of whole examples, if the task has one, and every metric of the task."""
        with context.batches() as on_batch:
            found = outputs.predict_all(
                functools.partial(self._dispatch, context, state.frozen),
                state.params,
                self._rows,
                self._shapes,
                self._mesh,
                on_batch=on_batch,
            )
        with context.watchdog.paused():
            self._predictions = self._task.decode(self._examples, self._rows, found)
            self._scores = self._task.score(self._predictions)
            loss = self._task.loss(self._rows, found)
            return ({} if loss is None else {"loss": loss}) | self._scores

    def _dispatch(self, context: EvaluationContext, frozen: Any, params: Any, batch: Any) -> jax.Array:
        args = [frozen] if frozen else []
        return context.dispatch(self._predict, params, batch, *args)

    def write_results(self) -> dict[str, Any]:
        """Writes the predictions and mistakes of the last evaluation; returns {"degenerate": bool}."""
        predictions = self._predictions
        if self._workdir.primary:
            predictions.write(os.path.join(self._workdir.path, f"predictions-dev{self._task.formats[0]}"))
            predictions.write_mistakes(self._workdir.path)
        return {"degenerate": predictions.is_degenerate(self._scores)}
