"""The train loop of pre-training and fine-tuning: set up, restore, step, log, evaluate, save, stop.

All side effects of training are in this module. The loop reads values from the devices only at log steps and
when a step is saved or evaluated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import flatten
from bert_jax.errors import StorageError, UserError
from bert_jax.io.wording import counted
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import dispatch
from bert_jax.objectives.adapters import LowRank, encoder_config, low_rank_name
from bert_jax.objectives.base import Objective
from bert_jax.parallel import collective, host, sharding
from bert_jax.settings.run_config import RunConfig
from bert_jax.training import flops
from bert_jax.training.evaluators import Batches, EvaluationContext, Evaluator, is_due, missed
from bert_jax.training.metrics import MetricsWriter, read_metrics
from bert_jax.training.preemption import Interrupted, PreemptionGuard, Watchdog
from bert_jax.training.state import TrainState, abstract_model, init_state, place_frozen, without_values
from bert_jax.training.step import TrainSetup, lower_and_compile, shape_key
from bert_jax.training.throughput import NOT_FINITE, STEPS_AHEAD, Profiler, StepMetrics
from bert_jax.workdir.run_directory import WorkDir

# Measuring the peak FLOP/s of a CPU takes seconds, which is too long for runs of fewer FLOPs.
_MFU_FROM_FLOPS = 1e13


def fit(**arguments: Any) -> TrainState:
    """Trains to `config.steps`, starting from the newest checkpoint of the work directory, if there is one.

    The arguments are described in `_Run`.

    Returns:
        The state after `config.steps`, or after the step at which an evaluator stopped the run. It has been
        saved.

    Raises:
        UserError: the work directory is damaged or belongs to another run, or too many steps in a row were
            skipped, or no step was trained, or the loss at the end is not finite.
        StorageError: a save failed, there is not enough space for one, or a file disappeared during training.
        Preempted: the process received SIGTERM; the state has been saved.
        KeyboardInterrupt: the process received SIGINT; the state has been saved.
    """
    run = _Run(**arguments)
    log, kept = run.writer.message, run.config.checkpoint
    _describe(run.setup.abstract_state, run.setup.mesh, log)
    if (model := encoder_config(run.objective)) is not None:
        kernel_check.ensure(model, log)
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(run.guard)
        checkpointer = checkpoint.Checkpointer(
            run.workdir.checkpoints,
            keep=kept.keep,
            keep_every=kept.keep_every,
            log=log,
            waiting=run.watchdog.paused,
        )
        run.checkpointer = cleanup.enter_context(checkpointer)
        cleanup.enter_context(run.watchdog)
        run.set_up()
        if not run.is_finished():
            batches = run.train_data(run.step, sharding.local_rows(run.setup.mesh, run.config.batch_size))
            run.batches = cleanup.enter_context(contextlib.closing(batches))
            run.feed()
            run.compile()
            profiler = Profiler(os.path.join(run.workdir.path, "profile"), run.profile_steps, log)
            try:
                run.train(cleanup.enter_context(profiler))
                run.checkpointer.wait()
            except (FileNotFoundError, UserError) as error:
                # A network file system may lose a file for a while: launchers try again.
                if isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError):
                    raise StorageError(str(error)) from error
                raise
        run.check_result()
        return run.state


@dataclasses.dataclass(kw_only=True)
class _Run:
    """The arguments and the mutable state of one call of `fit`."""

    workdir: WorkDir  # held by this process
    config: RunConfig  # with `accumulate_steps` resolved; see `auto_accumulation`
    objective: Objective
    # (start step, rows of the global batch that this process feeds) -> iterator over these rows of batches.
    # Batches may have a few different shapes; the train step is compiled for each.
    train_data: Callable[[int, np.ndarray], Batches]
    # Maps a step, counted from 1, to the model FLOPs of its global batch, for MFU; 0 if they are not known.
    flops_per_step: Callable[[int], float]
    writer: MetricsWriter
    evaluators: Sequence[Evaluator] = ()
    # Some or all of the model's parameters, a nested dict of arrays, or a function that maps its abstract
    # parameters, with their shardings, to such a dict. Ignored if the run resumes from a checkpoint.
    initial_params: Any = None
    # Seconds without a step or an evaluation batch after which the process ends itself; 0 for no limit.
    # Compilations, restoring a state and waiting for a save may take longer.
    stall_timeout: float = 0.0
    profile_steps: tuple[int, int] | None = None  # the first and the last step to trace

    checkpointer: checkpoint.Checkpointer = dataclasses.field(init=False)
    batches: Batches = dataclasses.field(init=False)
    step: int = dataclasses.field(init=False, default=0)  # the number of steps done
    state: TrainState = dataclasses.field(init=False)  # after that step
    save_due: bool = dataclasses.field(init=False, default=False)  # save the next step that is not skipped

    def __post_init__(self):
        self.setup = TrainSetup.from_config(self.config, self.objective)
        self._mesh = self.setup.mesh
        sharding.check_batch_size(self.config.batch_size, self._mesh, self.config.accumulate_steps)
        self.guard, self.watchdog = PreemptionGuard(self.writer.notice), Watchdog(self.stall_timeout)
        # A seed on the host would be transferred for every step.
        self._seed = sharding.on_all_devices(np.uint32(self.config.seed), self._mesh)
        self._save_timer = _SaveTimer(60 * self.config.checkpoint.minutes)
        self._train_step = self.setup.step_with(self.config.accumulate_steps)
        self._programs: dict[tuple, Callable] = {}
        self._logged_kernels: list[dispatch.Choice] = []
        self._batch: dict[str, jax.Array] = {}  # the batch of the next step

    # Before the first step

    def set_up(self) -> None:
        self._restore()
        self._first_step = self.step
        self.workdir.confirm_run()
        self.writer.rewind(self.step)
        self._step_metrics = StepMetrics(self.flops_per_step, read_metrics(self.workdir.path, "train"))
        with self._stopping():
            self._evaluate(missed(self.evaluators, self.step, self.config.steps, self.workdir.path))

    def is_finished(self) -> bool:
        if self._should_stop():
            self.writer.message("nothing to train: the run was stopped early")
        elif self.step >= self.config.steps:
            self.writer.message(f"nothing to train: step {self.step} of {self.config.steps} is done")
        else:
            return False
        return True

    def compile(self, paused: Callable[[], Any] = contextlib.nullcontext) -> Callable:
        key = shape_key(self._batch)
        if key not in self._programs:
            began, state = time.monotonic(), self.setup.abstract_state
            what = f"the train step{f' for batch shape {len(self._programs) + 1}' if self._programs else ''}"
            with paused(), self.watchdog.paused(), self.writer.stage(f"compiling {what}"):
                program, kernels = lower_and_compile(self._train_step, state, self._batch, self._seed)
            host.keep_activations(program, jax.local_device_count())
            self._programs[key] = program
            self.writer.message(f"compiled {what} in {time.monotonic() - began:.1f} s")
            for choice in kernels if jax.default_backend() != "cpu" else []:
                if choice not in self._logged_kernels:
                    self.writer.message(str(choice))
                    self._logged_kernels.append(choice)
        return self._programs[key]

    # The initial state: resumed, from another run, from given weights, or from scratch

    def _restore(self) -> None:
        with self.watchdog.paused():
            if resumed := self.checkpointer.restore_latest(self._saved_form):
                self.writer.message(f"resumed from step {resumed[0]} of {self.workdir.path}")
                self.step, self.state = resumed[0], self._with_count(resumed[1])
            elif self.config.resume_from:
                self.step, self.state = self._from_other_run(self.config.resume_from)
            else:
                self.step, self.state = 0, self._new_state()

    def _from_other_run(self, other: str) -> tuple[int, TrainState]:
        config = self.config
        source, state = checkpoint.load_state(other, self._saved_form, log=self.writer.message)
        state = self._with_count(state)
        step = int(state.step)
        if step >= config.steps:
            raise UserError(
                f"resume_from={other} is at step {step}; set --config.steps above it, not to {config.steps}"
            )
        saved = flatten(state.frozen)
        scales = [float(x) for name, x in saved.items() if name.endswith(low_rank_name("", "scale"))]
        if isinstance(self.objective, LowRank) and not np.allclose(scales, self.objective.scale):
            raise UserError(f"resume_from={other} was trained with another adapter.alpha than this run")
        self.writer.message(f"resumed from {source} at step {step}")
        if config.init_from:
            self.writer.message(f"of {config.init_from} only the architecture is used, not the weights")
        # Frozen values of the objective, such as a teacher, have priority over values of the other run.
        shardings = jax.tree.map(lambda x: x.sharding, state.frozen)
        for name in saved.keys() - without_values(self.objective):
            saved.pop(name).delete()  # A device may not have memory for two teachers.
        return step, state.replace(frozen=place_frozen(self.objective, shardings, saved))

    def _new_state(self) -> TrainState:
        params = self.initial_params
        if callable(params):
            params = params(abstract_model(self.objective, self._mesh))
        else:  # The train step deletes its input state.
            params = jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, params)
        weights = self.config.init_from
        source = f"the weights of {weights}" if weights else "the weights given"
        self.writer.message("started from scratch" if params is None else f"started from {source}")
        setup, seed = self.setup, self.config.seed
        return init_state(self.objective, setup.optimizer, self._mesh, seed, setup.abstract_state, params)

    def _saved_form(self, saved: Collection[str]) -> TrainState:
        state = self.setup.abstract_state
        # Earlier versions did not save this count.
        return state if "skipped" in saved else state.replace(skipped=None)

    def _with_count(self, state: TrainState) -> TrainState:
        if state.skipped is not None:
            return state
        return state.replace(skipped=sharding.on_all_devices(np.int32(0), self._mesh))

    # The steps

    def train(self, profiler: Profiler) -> None:
        self._step_metrics.start(self._peak_flops())
        self.guard.hold()
        self._save_timer.restart(self.step)
        while self.step < self.config.steps:
            self._dispatch(profiler)
            self.checkpointer.poll()
            self.workdir.check_held()
            self._log()
            if self._save_and_evaluate():
                self.writer.message(f"stopped early, at step {self.step} of {self.config.steps}")
                self.checkpointer.save(self.step, self.state)
                return

    def _dispatch(self, profiler: Profiler) -> None:
        with self._stopping():
            self.guard.check()
            program = self.compile(functools.partial(self._step_metrics.paused, self.writer))
        profiler.before(self.step + 1)
        self.state, metrics = program(self.state, self._batch, self._seed)
        self.step += 1
        self.guard.step = self.step
        self.writer.at_step(max(self._first_step, self.step - STEPS_AHEAD))
        self._step_metrics.add(self.step, metrics)
        profiler.after(self.step, metrics)
        self.watchdog.heartbeat()
        if self.step < self.config.steps:
            with self._step_metrics.timed("input"):
                self.feed()

    def feed(self) -> None:
        self._batch = sharding.global_batch(next(self.batches), self._mesh)

    # Logging, saving and evaluation

    def _peak_flops(self) -> float:
        last = self.config.steps
        if self.flops_per_step(last) * last < _MFU_FROM_FLOPS:
            return 0.0
        return flops.peak_flops(self._mesh.devices.flat[0], self.config.model.dtype) * self._mesh.size

    def _log(self) -> None:
        self._step_metrics.write(self.writer, before=self.step)
        self._check_skipped(*self._step_metrics.skipped)
        if self.step == 1 or is_due(self.step, self.config.log_every, self.config.steps):
            self._step_metrics.close_interval()

    def _save_and_evaluate(self) -> bool:
        last = self.config.steps
        self.save_due = (
            self.save_due
            or is_due(self.step, self.config.checkpoint.every, last)
            or self._save_timer.is_due(self.step)
        )
        evaluators = [each for each in self.evaluators if is_due(self.step, each.every, last)]
        if not (self.save_due or evaluators):
            return False
        with self._step_metrics.paused(self.writer):
            skipped = self._skipped()
            if self.save_due and (self.step == last or not skipped):
                self._save(skipped)
            if evaluators:
                with self._stopping(), self._step_metrics.timed("eval"):
                    self._evaluate(evaluators)
        return bool(evaluators) and self._should_stop()

    def _evaluate(self, evaluators: Sequence[Evaluator]) -> None:
        context = EvaluationContext(self.writer, self.guard, self.watchdog)
        for evaluator in evaluators:
            metrics = evaluator.evaluate(self.step, self.state, context)
            self.writer.write(self.step, metrics, kind=evaluator.name)

    def _should_stop(self) -> bool:
        return any(each.should_stop(self.step) for each in self.evaluators)

    def _save(self, skipped: int) -> None:
        if skipped:
            self.writer.message(
                f"warning: the last {counted(skipped, 'step was', 'steps were')} skipped; what is saved as "
                f"step {self.step} has the parameters of step {self.step - skipped}"
            )
        self.writer.flush()
        with self._step_metrics.timed("save"):
            self.checkpointer.save(self.step, self.state)
        self._save_timer.restart(self.step)
        self.save_due = False

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        try:
            yield
        except Interrupted:
            skipped = self._skipped()
            self._step_metrics.write(self.writer)
            if self.step:
                self._save(skipped)
            self.checkpointer.wait()
            is_saved = self.step in self.checkpointer.steps()
            self.guard.stop(f"stopped at step {self.step}, {'saved' if is_saved else 'nothing to save'}")

    def check_result(self) -> None:
        """Raises UserError if no step was trained, or the loss at the end is not finite."""
        skipped, loss = int(self.state.skipped), self._step_metrics.last_loss
        steps = self.step - self._first_step or self.step
        if skipped and (skipped >= steps or not math.isfinite(loss)):
            raise UserError(
                f"the last {counted(skipped, 'step was', 'steps were')} skipped: {NOT_FINITE}; step "
                f"{self.step} has the parameters of step {self.step - skipped}"
            )

    def _skipped(self) -> int:
        skipped = int(self.state.skipped)
        self._check_skipped(self.step, skipped)
        return skipped

    def _check_skipped(self, step: int, skipped: int) -> None:
        if skipped < self.config.max_skipped_steps:
            return
        self.checkpointer.wait()
        first = step - skipped + 1
        # A step right before the skipped steps may be the cause.
        good = [saved for saved in self.checkpointer.agreed_steps() if saved < first - 1]
        raise UserError(
            f"steps {first} to {first + self.config.max_skipped_steps - 1} were skipped: {NOT_FINITE}; start "
            "a new run with a lower --config.optimizer.learning_rate or another seed"
            + (f", which may resume from step {good[-1]}" if good else "")
        )


class _SaveTimer:
    """Decides whether to save a step, because the last save was `seconds` ago; 0 for never.

    Process 0 decides for all. Asking it makes the processes wait for each other, so they ask rarely: at the
    step where process 0 expects the time to be over, from the duration of the steps since the save, and when
    the number of these steps has doubled, because their duration may change.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds

    def restart(self, step: int) -> None:
        """Starts the time measurement. Call it before the first step and after each save."""
        self._saved, self._since, self._next = step, time.monotonic(), step + 1

    def is_due(self, step: int) -> bool:
        """Whether the state after this step is to be saved. All processes get the same answer."""
        if not self._seconds or step < self._next:
            return False
        is_due, self._next = collective.call_in_primary(lambda: self._decide(step))
        return is_due

    def _decide(self, step: int) -> tuple[bool, int]:
        steps, elapsed = step - self._saved, time.monotonic() - self._since
        left = steps * (self._seconds / max(elapsed, 1e-9) - 1)
        return elapsed >= self._seconds, step + int(min(max(left, 1), steps))


def _describe(abstract_state: TrainState, mesh: jax.sharding.Mesh, log: Callable[[str], None]) -> None:
    trained = sum(x.size for x in jax.tree.leaves(abstract_state.params))
    frozen = sum(x.size for x in jax.tree.leaves(abstract_state.frozen))
    axes = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    device = mesh.devices.flat[0]
    hosts = f" on {jax.process_count()} hosts" if jax.process_count() > 1 else ""
    also = f" and {frozen:,} frozen ones" if frozen else ""
    log(
        f"{trained:,} parameters{also}; {mesh.size} x {device.device_kind} ({device.platform}){hosts}; "
        f"mesh {axes}"
    )
