"""Evaluators, which evaluate the train state at regular steps.

The train loop calls each evaluator at its own steps and at the end of the run, and writes the result as one
line of metrics.jsonl. `RecordEvaluator` computes the mean losses and metrics of the objective over held-out
batches. `best_checkpoint.BestCheckpoint` saves the parameters with the best score of another evaluator. To
add an evaluator, subclass `Evaluator` and pass an instance to `bert_jax.training.loop.fit`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.io import files
from bert_jax.objectives.base import Objective
from bert_jax.parallel import collective, row_parts, sharding
from bert_jax.training.compiled_step import shape_key
from bert_jax.training.metrics.metrics_writer import MetricsWriter, read_metrics
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.state import TrainState
from bert_jax.training.step import make_eval_step
from bert_jax.training.watchdog import Watchdog


class Batches(Iterator[dict[str, np.ndarray]], Protocol):
    """An iterator over this process's rows of each batch."""

    def close(self) -> None:
        """Ends the threads and processes that read ahead."""
        ...


@dataclasses.dataclass(frozen=True)
class EvaluationContext:
    """The services of the train loop with which an evaluator shows its progress and can be interrupted.

    Attributes:
        writer: shows progress and messages.
        guard: reports requests to stop the run.
        watchdog: ends a process that sends no heartbeats.
    """

    writer: MetricsWriter
    guard: PreemptionGuard
    watchdog: Watchdog

    @contextlib.contextmanager
    def batches(self, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Shows the progress of an evaluation in batches.

        Args:
            total: the number of batches, if it is known in advance.

        Yields:
            A function (batches done, total=None) to call between batches, the same number of times in every
            process. It raises `preemption.Interrupted` if the run was requested to stop. The evaluation is
            then repeated when the run resumes.
        """
        with self.writer.stage("evaluation", total, "batches") as show:

            def on_batch(done: int, total: int | None = None) -> None:
                self.guard.check()
                self.watchdog.heartbeat()
                show(done) if total is None else show(done, total)

            yield on_batch

    def dispatch(
        self,
        function: sharding.MeshFunction,
        params: Any,
        batch: Mapping[str, jax.Array],
        *args: Any,
        compiled: set[tuple],
    ) -> Any:
        """Returns `function(params, batch, *args)`, which is compiled if the batch has a new shape.

        The watchdog is paused during the compilation, which may take longer than its limit. A request to stop
        the run interrupts it.

        Args:
            function: the function.
            params: its first argument.
            batch: its second argument, a global batch.
            *args: its other arguments.
            compiled: the keys (`compiled_step.shape_key`) of the batches for which this function has been
                compiled. The key of this batch is added.

        Raises:
            Interrupted: the run was requested to stop.
        """
        if (key := shape_key(batch)) not in compiled:
            with self.watchdog.paused():
                self.guard.compile(function.lower(params, batch, *args))  # JAX caches the program.
            compiled.add(key)
        return function(params, batch, *args)


class Evaluator(Protocol):
    """The interface of an evaluator.

    Attributes:
        name: the `kind` of its lines in metrics.jsonl and the group of its curves in TensorBoard. The
            evaluators of a run have different names.
        every: the number of steps between two evaluations, in addition to one at the end of the run; 0 for
            the end of the run only.
    """

    name: str = "eval"
    every: int = 0

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns the metrics of a state.

        The method is called in every process of the run. It must not keep references to the arrays of the
        state, because the next train step donates them.

        Args:
            step: the number of steps done.
            state: the train state after that step.
            context: see `EvaluationContext`.
        """
        ...

    def is_done(self, step: int) -> bool:
        """Returns whether the evaluator's own files, if any, contain the result of a step.

        The method is called if a run resumes at a step whose metrics have been written. If it returns False,
        the evaluation is repeated.
        """
        return True

    def should_stop(self, step: int) -> bool:
        """Returns whether the run should end before its last step.

        The method is called after each evaluation, and when a run resumes.

        Args:
            step: the number of steps done.
        """
        return False


class EvalStep:
    """The eval step of an objective, which the evaluators of a run share, so that it is compiled once.

    Args:
        objective: the training objective.
        seed: the seed of the run. Random choices in a batch, such as its masks, are the same in every
            evaluation.
        mesh: the device mesh of the state.
    """

    def __init__(self, objective: Objective, seed: int, mesh: jax.sharding.Mesh):
        self.mesh, self._compiled = mesh, set[tuple]()
        self._objective, self._seed = objective, sharding.on_all_devices(np.uint32(seed), mesh)
        self._step: sharding.MeshFunction | None = None

    def __call__(
        self, state: TrainState, batch: Mapping[str, jax.Array], index: int, context: EvaluationContext
    ) -> dict[str, Any]:
        """Returns {name: (sum, weight)} of a batch, the `index`-th of an evaluation."""
        if self._step is None:
            shardings = jax.tree.map(lambda x: x.sharding, state)
            parts_of = functools.partial(row_parts.of_forward_pass, mesh=self.mesh)
            eval_step = make_eval_step(self._objective, parts_of)
            self._step = sharding.jit_eval_step(eval_step, self.mesh, shardings)
        frozen = () if state.frozen is None else (state.frozen,)
        number = sharding.on_all_devices(np.int32(index), self.mesh)
        args = number, self._seed, *frozen
        return context.dispatch(self._step, state.params, batch, *args, compiled=self._compiled)


class RecordEvaluator(Evaluator):
    """Computes the means of an objective's losses and metrics over held-out batches.

    Args:
        eval_step: the eval step of the objective.
        batches: (rows of the global batch that this process feeds, steps done) -> iterator over these rows of
            each batch. Batches may have a few different shapes; the eval step is compiled for each.
        batch_size: rows of a global batch.
        every: see `Evaluator`.
        total: steps done -> number of batches, for the progress bar, if it is known.
        name: see `Evaluator`.
    """

    def __init__(
        self,
        eval_step: EvalStep,
        batches: Callable[[np.ndarray, int], Batches],
        *,
        batch_size: int,
        every: int = 0,
        total: Callable[[int], int] | None = None,
        name: str = "eval",
    ):
        self.name, self.every = name, every
        self._eval_step, self._total = eval_step, total
        self._batches, self._batch_size = batches, batch_size

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns {name: mean}. Sums and weights are accumulated on the devices and divided once."""
        mesh = self._eval_step.mesh
        local_rows = sharding.local_rows(mesh, self._batch_size)
        totals = None
        with (
            context.batches(self._total and self._total(step)) as on_batch,
            contextlib.closing(self._batches(local_rows, step)) as batches,
        ):
            for index, rows in enumerate(batches):
                on_batch(index)
                previous, batch = totals, sharding.global_batch(rows, mesh)
                pairs = self._eval_step(state, batch, index, context)
                totals = pairs if totals is None else _add(totals, pairs)
                jax.block_until_ready(previous)
        if totals is None:
            return {}
        totals = jax.device_get(totals)
        return {name: float(total) / float(weight) for name, (total, weight) in totals.items() if weight > 0}


@jax.jit
def _add(totals, pairs):
    return jax.tree.map(jnp.add, totals, pairs)


class Evaluations:
    """The evaluators of a run.

    Args:
        evaluators: evaluators with different names.
        context: passed to `Evaluator.evaluate`.
    """

    def __init__(self, evaluators: Sequence[Evaluator], context: EvaluationContext):
        names = [each.name for each in evaluators]
        if len(set(names)) < len(names) or "train" in names:
            raise ValueError(
                f"evaluators called {', '.join(names)}: expected different names, none of them train"
            )
        self._evaluators, self._context = evaluators, context

    def due(self, step: int, last: int) -> list[Evaluator]:
        """Returns the evaluators that are due at a step of a run whose last step is `last`."""
        return [each for each in self._evaluators if is_due(step, each.every, last)]

    def missed(self, step: int, last: int, directory: files.PathLike) -> list[Evaluator]:
        """Returns the evaluators that were due at a step but had not finished when the process ended.

        They are those of which process 0 sees no result; all processes have to call it, and to evaluate them
        together.

        Args:
            step: the step from which the run resumes.
            last: the last step of the run.
            directory: the work directory, whose metrics show which evaluations have finished.
        """
        if not step:
            return []
        due = self.due(step, last)

        def names() -> list[str]:
            written = {(line.get("kind"), line["step"]) for line in read_metrics(directory)}
            return [each.name for each in due if (each.name, step) not in written or not each.is_done(step)]

        missed = collective.call_in_primary(names)
        return [each for each in due if each.name in missed]

    def run(self, evaluators: Iterable[Evaluator], step: int, state: TrainState) -> None:
        """Evaluates a state and writes a line of metrics for each evaluator.

        Raises:
            Interrupted: the run was requested to stop.
        """
        for evaluator in evaluators:
            metrics = evaluator.evaluate(step, state, self._context)
            self._context.writer.write(step, metrics, kind=evaluator.name)

    def should_stop(self, step: int) -> bool:
        """Returns whether any evaluator stops the run at a step."""
        return any(evaluator.should_stop(step) for evaluator in self._evaluators)


def is_due(step: int, every: int, last: int) -> bool:
    """Returns whether an action is due that happens every `every` steps (0: never) and at the last step."""
    return step == last or (every > 0 and step % every == 0)
