"""Evaluators, which the train loop calls at their own steps and at the end of the run.

Each result becomes a line of metrics.jsonl. To add an evaluator, subclass `Evaluator` and pass an instance to
`bert_jax.training.train.fit`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import checkpoint
from bert_jax.io import files, json_files
from bert_jax.objectives.base import Objective
from bert_jax.parallel import collective, microbatches, sharding
from bert_jax.training.metrics import BEST_SO_FAR, MetricsWriter, read_metrics
from bert_jax.training.preemption import PreemptionGuard, Watchdog
from bert_jax.training.state import TrainState
from bert_jax.training.step import make_eval_step
from bert_jax.workdir.run_directory import BEST, BEST_FILE, WorkDir

Batches = Generator[dict[str, np.ndarray], None, None]  # this process's rows of each batch


@dataclasses.dataclass(frozen=True)
class EvaluationContext:
    """What an evaluator needs of the train loop to show its progress and to be interrupted."""

    writer: MetricsWriter
    guard: PreemptionGuard
    watchdog: Watchdog

    @contextlib.contextmanager
    def batches(self, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Yields a function (batches done, total=None) to call between batches, which shows the progress.

        Every process has to call it the same number of times. It raises `preemption.Interrupted` if the run
        was requested to stop; the evaluation is then repeated when the run resumes.
        """
        with self.writer.stage("evaluating", total, "batches") as show:

            def on_batch(done: int, total: int | None = None) -> None:
                self.guard.check()
                self.watchdog.heartbeat()
                show(done) if total is None else show(done, total)

            yield on_batch


class Evaluator:
    """The interface of an evaluator."""

    name: str = "eval"  # the `kind` of its lines in metrics.jsonl; different for the evaluators of a run
    every: int = 0  # the steps between two evaluations, in addition to one at the end of the run; 0 for none

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns the metrics of the state after `step` steps; called in every process of the run.

        It must not keep references to the arrays of the state, because the next train step donates them.
        """
        raise NotImplementedError

    def is_done(self, step: int) -> bool:
        """Returns whether the evaluator's own files, if any, contain the result of a step.

        If not, the evaluation is repeated in a run that resumes at the step.
        """
        return True

    def should_stop(self, step: int) -> bool:
        """Returns whether the run should end now; called after each evaluation, and when a run resumes."""
        return False


class EvalStep:
    """The eval step of an objective, which the evaluators of a run share, so that it is compiled once.

    Random choices in a batch, such as its masks, depend on the seed and are the same in every evaluation.
    """

    def __init__(self, objective: Objective, seed: int, mesh: jax.sharding.Mesh):
        self.mesh = mesh
        self._objective, self._seed = objective, sharding.on_all_devices(np.uint32(seed), mesh)
        self._step: sharding.MeshFunction | None = None

    def __call__(
        self, state: TrainState, batch: Mapping[str, jax.Array], index: int, context: EvaluationContext
    ) -> dict[str, Any]:
        """Returns {name: (sum, weight)} of a batch, the `index`-th of an evaluation."""
        if self._step is None:
            shardings = jax.tree.map(lambda x: x.sharding, state)
            parts_of = functools.partial(microbatches.for_forward_pass, mesh=self.mesh)
            eval_step = make_eval_step(self._objective, parts_of)
            self._step = sharding.jit_eval_step(eval_step, self.mesh, shardings)
        frozen = () if state.frozen is None else (state.frozen,)
        number = sharding.on_all_devices(np.int32(index), self.mesh)
        with context.watchdog.paused():  # in case it is compiled
            return self._step(state.params, batch, number, self._seed, *frozen)


@dataclasses.dataclass(eq=False)
class RecordEvaluator(Evaluator):
    """Computes the means of an objective's losses and metrics over held-out batches.

    `batches` maps `own`, the rows of the global batch that this process feeds, to an iterator over these rows
    of each batch. Batches may have a few different shapes; the eval step is compiled for each. `total` is
    their number, for the progress bar.
    """

    eval_step: EvalStep
    batches: Callable[..., Batches]
    batch_size: int
    every: int
    total: int | None = None
    name: str = "eval"

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns {name: mean}. Sums and weights are accumulated on the devices and divided once."""
        mesh = self.eval_step.mesh
        local_rows = sharding.local_rows(mesh, self.batch_size)
        totals = None
        with (
            context.batches(self.total) as on_batch,
            contextlib.closing(self.batches(own=local_rows)) as batches,
        ):
            for index, rows in enumerate(batches):
                on_batch(index)
                previous, batch = totals, sharding.global_batch(rows, mesh)
                pairs = self.eval_step(state, batch, index, context)
                totals = pairs if totals is None else _add(totals, pairs)
                jax.block_until_ready(previous)
        if totals is None:
            return {}
        totals = jax.device_get(totals)
        return {name: float(total) / float(weight) for name, (total, weight) in totals.items() if weight > 0}


@jax.jit
def _add(totals, pairs):
    return jax.tree.map(jnp.add, totals, pairs)


_BEST = {"step": int, "last_step": int, "since_best?": int, "metric?": str, "scores": {str: (float, None)}}


@dataclasses.dataclass(eq=False)
class BestCheckpoint(Evaluator):
    """Wraps an evaluator and saves the parameters with its best score.

    The parameters are saved in `best/STEP` of the work directory, and the step and the scores in best.json.
    The metric `loss` is a score only if `metric`, the name of the score to compare, selects it. The run stops
    early after `patience` evaluations in a row without a better score; 0 is no early stopping. `on_best` is
    called if the state that was just evaluated is the best so far, for example to write files, and returns
    additional fields of best.json. In a run of several processes, all of them have to construct it.
    """

    evaluator: Evaluator
    workdir: WorkDir
    metric: str
    lower_is_better: bool = False
    patience: int = 0
    on_best: Callable[[], Mapping[str, Any]] = dict
    log: Callable[[str], None] = print

    def __post_init__(self):
        self.name, self.every = self.evaluator.name, self.evaluator.every
        self.best: dict[str, Any] | None = collective.call_in_primary(self._earlier_best)

    def _earlier_best(self) -> dict[str, Any] | None:
        best, place = read_best(self.workdir.path), os.path.join(self.workdir.path, BEST)
        if not best:
            return None
        if best.get("metric") == self.metric and best["step"] in checkpoint.list_steps(place):
            return best
        self.log(
            f"warning: {place} lacks step {best['step']} of {BEST_FILE}, or it was not chosen by "
            f"{self.metric}; the next evaluation becomes the best"
        )
        return None

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns the wrapped evaluator's metrics and `best_so_far`: 1 if the score is the best, else 0."""
        metrics = self.evaluator.evaluate(step, state, context)
        with context.watchdog.paused():
            is_best = self._update(step, state, metrics)
        return {**metrics, BEST_SO_FAR: float(is_best)}

    def _update(self, step: int, state: TrainState, metrics: Mapping[str, float]) -> bool:
        best, sign = self.best, -1 if self.lower_is_better else 1
        score, before = metrics[self.metric], best["scores"][self.metric] if best else None
        nan, nan_before = math.isnan(score), before is not None and math.isnan(before)
        is_best = before is None or (nan_before and not nan) or sign * score > sign * before
        # If scores are equal, the first step is the best, also if a killed run repeats the step.
        equal = score == before or (nan and nan_before)
        is_best = is_best or (best is not None and equal and step <= best["step"])
        last_step = best["last_step"] if best and not is_best else 0
        with contextlib.ExitStack() as cleanup:
            if best is None or is_best:
                path = os.path.join(self.workdir.path, BEST)
                # It keeps all steps, which are deleted below.
                saved = cleanup.enter_context(checkpoint.Checkpointer(path, keep=1 << 30, log=self.log))
                saved.delete(step)  # left over if a killed run repeats the step
                saved.save(step, state.model_parameters)
                saved.wait()
                scores = {name: x for name, x in metrics.items() if name != "loss" or self.metric == "loss"}
                best = {"step": step, "metric": self.metric, "scores": scores, **self.on_best()}
            # A run that was killed may resume from a checkpoint before evaluations that were already counted.
            since_best = 0 if is_best else best.get("since_best", 0) + (step > last_step)
            self.best = best | {"since_best": since_best, "last_step": max(step, last_step)}
            self.workdir.write_json(BEST_FILE, self.best)
            if is_best:
                saved.delete_others(step)
        return is_best

    def is_done(self, step: int) -> bool:
        """Returns whether best.json includes the evaluation of a step."""
        return self.best is not None and self.best["last_step"] >= step

    def should_stop(self, step: int) -> bool:
        """Returns whether `patience` evaluations in a row have not improved the score."""
        # A run that was killed before it saved the last evaluated step first trains up to that step again.
        if not (self.patience and self.best and step >= self.best["last_step"]):
            return False
        return self.best["since_best"] >= self.patience


def read_best(directory: files.PathLike) -> dict[str, Any] | None:
    """Returns the content of best.json in a work directory, or None if the file does not exist."""
    path = os.path.join(directory, BEST_FILE)
    return json_files.read(path, _BEST) if files.exists(path) else None


def missed(
    evaluators: Sequence[Evaluator], step: int, last: int, directory: files.PathLike
) -> list[Evaluator]:
    """Returns the evaluators that were due at a step but had not finished when the process ended.

    The metrics in the work directory show which have finished. Process 0 decides by the results that it sees.
    All processes have to call this function, and have to evaluate the result together.
    """
    due = [each for each in evaluators if step and is_due(step, each.every, last)]

    def names() -> list[str]:
        written = {(line.get("kind"), line["step"]) for line in read_metrics(directory)}
        return [each.name for each in due if (each.name, step) not in written or not each.is_done(step)]

    found = collective.call_in_primary(names)
    return [each for each in due if each.name in found]


def is_due(step: int, every: int, last: int) -> bool:
    """Returns whether an action is due at a step: every `every` steps (0: never), and at the last step."""
    return step == last or (every > 0 and step % every == 0)
