"""A run from its first state to its last: steps, metrics, checkpoints, evaluations, and what stops it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import jax
import numpy as np

from bert_jax import checkpoint
from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.objectives.adapters import encoder_config
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings.typed.run_config import RunConfig
from bert_jax.training import recovery
from bert_jax.training.budget import Budget, Clock
from bert_jax.training.compiled_step import CompiledStep
from bert_jax.training.evaluators import Batches, Evaluations, is_due
from bert_jax.training.metrics import flops
from bert_jax.training.metrics.metrics_writer import MetricsWriter, read_metrics
from bert_jax.training.metrics.profiling import Profiler
from bert_jax.training.metrics.throughput import NOT_FINITE, STEPS_AHEAD, Goodput, StepMetrics
from bert_jax.training.preemption import Interrupted, PreemptionGuard
from bert_jax.training.recovery import TooManySkipped
from bert_jax.training.start import Start
from bert_jax.training.state import TrainState
from bert_jax.training.watchdog import Watchdog
from bert_jax.workdir.run_directory import WorkDir

# Measuring the peak FLOP/s of a CPU takes seconds, which is too long for runs of fewer FLOPs.
_MFU_FROM_FLOPS = 1e13


@dataclasses.dataclass(kw_only=True)
class TrainRun:
    """The mutable state of one call of `fit`, and the operations on it.

    The first attributes are arguments of `fit` and what it makes from them.

    Attributes:
        step: the number of steps done.
        state: the train state after that step.
        last: the last step of the run, which an exhausted budget moves.
        clock: measures a budget of time.
        save_due: whether the next step that is not skipped is saved.
    """

    config: RunConfig
    workdir: WorkDir
    objective: Objective
    mesh: jax.sharding.Mesh
    train_data: Callable[[int, np.ndarray], Batches]
    start: Start
    budget: Budget | None
    train_step: CompiledStep
    evaluations: Evaluations
    checkpointer: checkpoint.Checkpointer
    flops_per_step: float | Callable[[int], float]
    writer: MetricsWriter
    guard: PreemptionGuard
    watchdog: Watchdog

    step: int = 0
    state: TrainState = dataclasses.field(init=False)
    last: int = dataclasses.field(init=False)
    clock: Clock | None = None
    save_due: bool = False

    def __post_init__(self):
        self.last = self.config.steps
        self._local_rows = sharding.local_rows(self.mesh, self.config.batch_size)
        self._batches: Batches
        self._open = contextlib.ExitStack()  # closes them
        self._batch: dict[str, jax.Array] = {}  # of the next step
        self._most_tokens = 0  # that a batch may have

    # Before the first step

    def set_up(self) -> None:
        """Restores or initializes the state, and runs the evaluations that an earlier process missed."""
        self._recovery = recovery.resume(self.workdir, self.checkpointer)
        self._restore()
        self._first_step = self.step
        self._from_scratch = self.step == 0 and self.start.initial_params is None
        self.workdir.confirm_run()
        self.writer.rewind(self.step)
        self._goodput = Goodput(read_metrics(self.workdir.path, "train"))
        # Replaced by one with the peak FLOP/s, which may have to be measured, once steps are to be trained.
        self._step_metrics = StepMetrics(0.0, 0.0, self._goodput)
        if self._budget_share() >= 1:
            self.last = self.step
        if missed := self.evaluations.missed(self.step, self.last, self.workdir.path):
            with self._stopping():
                self.evaluations.run(missed, self.step, self.state)

    def _restore(self) -> None:
        start = self._recovery.step if self._recovery else None
        with self.watchdog.paused():
            self.step, self.state = self.start.state(self.workdir.path, start)

    def is_finished(self) -> bool:
        """Returns whether there is nothing left to train, and logs the reason."""
        if self.evaluations.should_stop(self.step):
            self.writer.message("nothing to train: the run was stopped early")
            return True
        if self.step >= self.last < self.config.steps:
            self.writer.message(f"nothing to train: the budget is spent, at step {self.step}")
            return True
        if self.step >= self.last:
            self.writer.message(f"nothing to train: step {self.step} of {self.config.steps} is done")
            return True
        return False

    def open_batches(self) -> None:
        """Opens the iterator over the batches, beginning with that of the next step."""
        self.close()
        self._start_clock()
        if self._recovery:
            batches = self._recovery.batches(self.train_data, self.step, self._local_rows)
        else:
            batches = self.train_data(self.step, self._local_rows)
        self._batches = self._open.enter_context(contextlib.closing(batches))
        self._feed()

    def close(self) -> None:
        """Closes the iterator over the batches."""
        self._open.close()

    def compile(self) -> None:
        """Compiles the train step for the shape of the first batch."""
        self.train_step.compile(self._batch, self.guard)
        self._start_clock()  # The compilation does not count.

    # The steps

    def train(self, profiler: Profiler) -> None:
        """Trains to the last step, or until an evaluator stops the run."""
        self._step_metrics = self._new_step_metrics()
        self.guard.hold()
        while self.step < self.last:
            try:
                self._dispatch(profiler)
                self.checkpointer.poll()
                self.workdir.check_held()
                self._end_if_spent()
                self._log()
                if self._save_and_evaluate():
                    self.writer.message(f"stopped early, at step {self.step} of {self.config.steps}")
                    self.checkpointer.save(self.step, self.state)
                    return
            except TooManySkipped as skipped:
                self._go_back(skipped)
        if self.budget and (share := self._budget_share()) < 1:
            self.writer.message(
                f"warning: the run ends after its {counted(self.last, 'step')} with {share:.1%} of its "
                "budget spent, in the middle of its schedule; set more steps"
            )

    def check_result(self) -> None:
        """Warns if the run ends with a larger loss than that of an untrained model.

        Raises:
            UserError: no step was trained, or the loss at the end is not finite.
        """
        skipped, loss = int(self.state.skipped), self._step_metrics.last_loss
        steps = self.step - self._first_step or self.step
        if skipped and (skipped >= steps or not math.isfinite(loss)):
            raise UserError(
                f"the last {counted(skipped, 'step was', 'steps were')} skipped: {NOT_FINITE}, or a spike; "
                f"step {self.step} has the parameters of step {self.step - skipped}; check the initial "
                "weights, the data and optimizer.learning_rate"
            )
        untrained = self.objective.initial_loss or 2 * self._step_metrics.first_loss  # of one batch alone
        if loss > 1.05 * untrained:
            self.writer.message(
                f"warning: the run diverged: its loss is {loss:.3f} at the end, above the {untrained:.3f} "
                "that an untrained model may have; lower optimizer.learning_rate"
            )

    def _dispatch(self, profiler: Profiler) -> None:
        """Dispatches the next step and transfers the batch after it, without waiting for the devices."""
        with self._stopping():
            self.guard.check()
            paused = functools.partial(self._step_metrics.paused, self.writer)
            program = self.train_step.compile(self._batch, self.guard, paused)
        profiler.before(self.step + 1)
        self.state, metrics = program(self.state, self._batch, self.train_step.seed)
        self.step += 1
        self.guard.step = self.step
        self.writer.at_step(max(self._first_step, self.step - STEPS_AHEAD))
        self._step_metrics.add(self.step, metrics)
        profiler.after(self.step, metrics)
        self.watchdog.heartbeat()
        if self.step < self.last:
            with self._step_metrics.timed("input"):
                self._feed()

    def _feed(self) -> None:
        batch = next(self._batches)
        if self.clock:
            batch = self.clock.added_to(batch)
        self._batch = sharding.global_batch(batch, self.mesh)
        self._most_tokens = max(self._most_tokens, *(x.size for x in jax.tree.leaves(self._batch)))

    # The budget

    def _spent(self) -> int:
        """Returns what has been spent of the budget, after waiting for the state."""
        if self.budget is None or self.state.spent is None:
            return 0
        return self.budget.count(self.state.spent)

    def _budget_share(self) -> float:
        """Returns the share of the budget that has been spent, after waiting for the state."""
        return self._spent() / self.budget.amount if self.budget else 0.0

    def _end_if_spent(self) -> None:
        """Ends the run at the first step after which its budget is spent.

        To keep the devices busy, the last step is waited for only if the budget may be spent by the steps
        whose end is not known yet. Those of a budget of time may exceed it, by `STEPS_AHEAD` steps at most.
        """
        if self.budget is None or self.step == self.last:
            return
        step, share = self._step_metrics.budget
        # A row has no more tokens than its largest entry has elements. One batch more, as `share` is rounded.
        ahead = 0 if self.budget.of_time else (self.step - step + 1) * self._most_tokens
        if (1 - share) * self.budget.amount <= ahead and self._budget_share() >= 1:
            self.writer.message(
                f"the budget is spent, at step {self.step}: {self._spent():,} of {self.budget.amount:,} "
                f"{self.budget.unit}"
            )
            self.last = self.step

    def _start_clock(self) -> None:
        """Starts to count the time of a budget of time, from what the state says has been spent."""
        if self.budget and self.budget.of_time and self.state.spent is not None:
            self.clock = Clock(self._spent())

    # Logging, saving and evaluation

    def _log(self) -> None:
        """Writes the metrics of an interval one step after its end, when their values are available."""
        self._step_metrics.write(self.writer, before=self.step)
        self._check_skipped(*self._step_metrics.skipped)
        if self._from_scratch and self.step == 2:
            check_initial_loss(self.objective, self._step_metrics.first_loss, self.writer.message)
        if self.step == 1 or is_due(self.step, self.config.log_every, self.last):
            self._step_metrics.close_interval()

    def _save_and_evaluate(self) -> bool:
        """Saves and evaluates where due at this step, and returns whether an evaluator stops the run.

        If the step was skipped, the next step that is not skipped is saved in its place.
        """
        last = self.last
        self.save_due = self.save_due or is_due(self.step, self.config.checkpoint.every, last)
        evaluators = self.evaluations.due(self.step, last)
        if not (self.save_due or evaluators):
            return False
        with self._step_metrics.paused(self.writer):
            skipped = self._skipped()
            if self.save_due and (self.step == last or not skipped):
                self._save(skipped)
            if evaluators:
                with self._stopping(), self._step_metrics.timed("eval"):
                    self.evaluations.run(evaluators, self.step, self.state)
        return bool(evaluators) and self.evaluations.should_stop(self.step)

    def _save(self, skipped: int) -> None:
        if skipped:
            self.writer.message(
                f"warning: the last {counted(skipped, 'step was', 'steps were')} skipped; what is saved as "
                f"step {self.step} has the parameters of step {self.step - skipped}"
            )
        self.writer.flush()
        with self._step_metrics.timed("save"):
            self.checkpointer.save(self.step, self.state)
        self.save_due = False

    def _skipped(self) -> int:
        """Waits for the state, and returns the number of consecutive skipped steps up to it.

        Raises:
            TooManySkipped: see `_check_skipped`.
        """
        skipped = int(self.state.skipped)
        self._check_skipped(self.step, skipped)
        return skipped

    def _check_skipped(self, step: int, skipped: int) -> None:
        """Raises TooManySkipped if the limit is reached, since which all steps up to `step` were skipped."""
        if skipped >= self.config.max_skipped_steps:
            first = step - skipped + 1
            raise TooManySkipped(first, first + self.config.max_skipped_steps - 1)

    def _go_back(self, skipped: TooManySkipped) -> None:
        """Restores a good checkpoint and continues without the batches of the failed attempt.

        Raises:
            UserError: the run has already gone back once, or what it started from is gone.
        """
        if self._recovery:
            raise UserError(recovery.describe_failure(skipped, self._recovery)) from skipped
        self._recovery = recovery.go_back(
            skipped,
            self._first_step,
            self.start.source,
            self.workdir,
            self.checkpointer,
            self.writer.message,
        )
        jax.tree.map(lambda x: x.delete(), self.state)  # A device may not have memory for two states.
        self._restore()
        self._first_step = self.guard.step = self.step
        self.last = self.config.steps  # The failed attempt may have spent the budget, with other batches.
        self.save_due = False
        self.writer.rewind(self.step)
        self._goodput.rewind(read_metrics(self.workdir.path, "train"))
        self.open_batches()
        self._step_metrics = self._new_step_metrics()

    def _new_step_metrics(self) -> StepMetrics:
        peak = 0.0
        last, per_step = self.config.steps, self.flops_per_step
        if (per_step(last) if callable(per_step) else per_step) * last >= _MFU_FROM_FLOPS:
            device = self.mesh.devices.flat[0]
            peak = flops.peak_flops(device, self.config.model.dtype) * self.mesh.size
        return StepMetrics(
            peak,
            self.flops_per_step,
            self._goodput,
            budget=(self.step, self._budget_share()),
        )

    # Preemption

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Saves the state and ends the run if a stop request interrupts the block."""
        try:
            yield
        except Interrupted:
            self._save_and_stop()

    def _save_and_stop(self) -> None:
        with self.guard.saving():
            try:
                skipped = self._skipped()
            except TooManySkipped as error:
                # The next start repeats these steps from an earlier checkpoint, and goes back as here.
                self.guard.leave(f"stopped at step {self.step}, which is not saved: {error}")
            self._step_metrics.write(self.writer)
            if self.step:
                self._save(skipped)
            self.checkpointer.wait()
            saved = self.checkpointer.saved.steps()
        self.guard.leave(
            f"stopped at step {self.step}, {'saved' if self.step in saved else 'nothing to save'}"
        )


def check_initial_loss(objective: Objective, loss: float, log: Callable[[str], None]) -> None:
    """Logs a warning if the loss of the first step is not that of chance.

    The weights of a head, of a standard deviation r, turn normalized states of H numbers into logits of a
    variance of H r^2, of which the cross-entropy is larger than that of equal logits by up to half of it.
    """
    expected, config = objective.initial_loss, encoder_config(objective)
    if expected is None:
        return
    of_logits = config.hidden_size * config.initializer_range**2 / 2 if config else 0.0
    if not -0.05 * expected <= loss - expected <= 0.05 * expected + of_logits:
        log(
            f"warning: the untrained model's loss is {loss:.3f}, and {expected:.3f} (chance) was expected: "
            "the vocabulary, the labels or the initialization may be wrong"
        )
