"""Keeps the checkpoint with the best score of an evaluator, and stops a run that no longer improves."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax import checkpoint
from bert_jax.io import files, json_files
from bert_jax.parallel import collective
from bert_jax.training.evaluators import EvaluationContext, Evaluator
from bert_jax.training.metrics.metrics_writer import BEST_SO_FAR
from bert_jax.training.state import TrainState
from bert_jax.workdir.run_directory import BEST, BEST_FILE, WorkDir

_BEST = {"step": int, "last_step": int, "since_best?": int, "metric?": str, "scores": {str: (float, None)}}


class BestCheckpoint(Evaluator):
    """Wraps an evaluator and saves the parameters with its best score.

    The parameters are saved in `best/STEP` of the work directory, and the step and the scores in best.json.
    The run stops early after `patience` evaluations in a row without a better score. With several processes,
    all of them construct it.

    Args:
        evaluator: the evaluator that returns the scores. Its metric `loss` is written to metrics.jsonl, but
            is a score only if `metric` selects it.
        workdir: the work directory, held by the run.
        metric: the name of the score to compare.
        lower_is_better: whether a lower score is better.
        patience: the number of evaluations in a row without a better score after which the run stops; 0 for
            no early stopping.
        on_best: called if the state that was just evaluated is the best so far, for example to write files;
            returns additional fields of best.json.
        log: called with the messages of the checkpointer.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        workdir: WorkDir,
        metric: str,
        *,
        lower_is_better: bool = False,
        patience: int = 0,
        on_best: Callable[[], Mapping[str, Any]] = dict,
        log: Callable[[str], None] = print,
    ):
        self.name, self.every = evaluator.name, evaluator.every
        self._evaluator, self._workdir, self._log = evaluator, workdir, log
        self._metric, self._sign, self._patience = metric, -1 if lower_is_better else 1, patience
        self._on_best = on_best
        self.best: dict[str, Any] | None = collective.call_in_primary(self._earlier_best)

    def _earlier_best(self) -> dict[str, Any] | None:
        """Returns what best.json has; None, after a warning, if it is not of this run's scores and steps."""
        best, place = read_best(self._workdir.path), os.path.join(self._workdir.path, BEST)
        if best and (found := best.get("metric")) != self._metric:
            self._log(
                f"warning: {os.path.join(self._workdir.path, BEST_FILE)} has the best step by {found}, and "
                f"this run compares {self._metric}; the next evaluation counts as the best"
            )
            return None
        if best and best["step"] not in checkpoint.list_steps(place):
            self._log(f"warning: {place} lacks step {best['step']}; the next evaluation counts as the best")
            return None
        return best

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns the wrapped evaluator's metrics and `best_so_far`: 1 if the score is the best, else 0."""
        metrics = self._evaluator.evaluate(step, state, context)
        with context.watchdog.paused():
            is_best = self._update(step, state, metrics)
        return {**metrics, BEST_SO_FAR: float(is_best)}

    def _update(self, step: int, state: TrainState, metrics: Mapping[str, float]) -> bool:
        best = self.best
        score, before = metrics[self._metric], best["scores"][self._metric] if best else None
        nan, nan_before = math.isnan(score), before is not None and math.isnan(before)
        is_best = before is None or (nan_before and not nan) or self._sign * score > self._sign * before
        # Of equal scores, that of the first step is the best, also if a killed run comes to the step again.
        equal = score == before or (nan and nan_before)
        is_best = is_best or (best is not None and equal and step <= best["step"])
        last_step = best["last_step"] if best and not is_best else 0
        with contextlib.ExitStack() as cleanup:
            if best is None or is_best:
                path = os.path.join(self._workdir.path, BEST)
                saved = checkpoint.Checkpointer(path, keep=1 << 30, log=self._log)  # deleted below
                cleanup.enter_context(contextlib.closing(saved))
                saved.saved.delete(step)  # of steps of the run that were lost
                saved.save(step, state.model_parameters)
                saved.wait()
                scores = {name: x for name, x in metrics.items() if name != "loss" or self._metric == "loss"}
                best = {"step": step, "metric": self._metric, "scores": scores, **self._on_best()}
            # A run that was killed may resume from a checkpoint before evaluations that were already counted.
            since_best = 0 if is_best else best.get("since_best", 0) + (step > last_step)
            self.best = best | {"since_best": since_best, "last_step": max(step, last_step)}
            self._workdir.write_json(BEST_FILE, json_files.sealed(self.best))
            if is_best:
                saved.saved.delete_others(step)
        return is_best

    def is_done(self, step: int) -> bool:
        """Returns whether best.json includes the evaluation of a step."""
        return self.best is not None and self.best["last_step"] >= step

    def should_stop(self, step: int) -> bool:
        """Returns whether `patience` evaluations in a row have not improved the score.

        A run that was killed before it saved the last step that was evaluated trains up to that step again.
        """
        if not (self._patience and self.best and step >= self.best["last_step"]):
            return False
        return self.best["since_best"] >= self._patience


def read_best(directory: files.PathLike) -> dict[str, Any] | None:
    """Returns the content of best.json in a work directory, or None if there is no such file."""
    path = os.path.join(directory, BEST_FILE)
    return json_files.unsealed(json_files.read(path, _BEST), path) if files.exists(path) else None
