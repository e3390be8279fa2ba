"""Evaluation of a fine-tuning task during training."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import jax

from bert_jax.objectives.base import Objective
from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.rows import outputs
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.training.evaluators import EvaluationContext, Evaluator
from bert_jax.training.state import TrainState
from bert_jax.workdir.run_directory import WorkDir


@dataclasses.dataclass(eq=False)
class TaskEvaluator(Evaluator):
    """Predicts the whole evaluation file, decodes the outputs once, and scores the predictions.

    `objective` is the task's objective with frozen parameters; `rows` and `examples` are of the file.
    """

    task: FinetuneTask
    objective: Objective
    rows: EncodedRows
    examples: Any
    shapes: outputs.Shapes
    mesh: jax.sharding.Mesh
    workdir: WorkDir
    every: int = 0

    def __post_init__(self):
        self._predict = outputs.make_predict(self.objective, self.mesh)

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns the loss per example, if the task has one, and all metrics of the task."""
        frozen = [state.frozen] if state.frozen else []

        def predict(params, batch):
            with context.watchdog.paused():  # in case it is compiled
                return self._predict(params, batch, *frozen)

        with context.batches() as on_batch:
            found = outputs.predict_all(
                predict, state.params, self.rows, self.shapes, self.mesh, on_batch=on_batch
            )
        with context.watchdog.paused():
            self._predictions = self.task.decode(self.examples, self.rows, found)
            self._scores = self.task.score(self._predictions)
            loss = self.task.loss(self.rows, found)
            return ({} if loss is None else {"loss": loss}) | self._scores

    def write_results(self) -> dict[str, Any]:
        """Writes the predictions and mistakes of the last evaluation; returns {"degenerate": bool}."""
        predictions = self._predictions
        if self.workdir.primary:
            predictions.write(os.path.join(self.workdir.path, f"predictions-dev{self.task.formats[0]}"))
            predictions.write_mistakes(self.workdir.path)
        return {"degenerate": predictions.is_degenerate(self._scores)}
