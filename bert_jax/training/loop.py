"""The one loop that pre-training and fine-tuning share; the only place with side effects."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax import checkpoint
from bert_jax.errors import StorageError, UserError
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import dispatch
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.training import flops, recovery
from bert_jax.training.evaluators import EvaluationContext, Evaluations, Evaluator, is_due
from bert_jax.training.metrics_writer import MetricsWriter, read_metrics
from bert_jax.training.optimizers import keeps_parameters_finite
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.profiling import Profiler
from bert_jax.training.recovery import Recovery
from bert_jax.training.state import TrainState, abstract_state, init_state
from bert_jax.training.step import make_train_step, spike_rule
from bert_jax.training.throughput import STEPS_AHEAD, Meter, RunClock, TooManySkipped
from bert_jax.training.watchdog import Watchdog
from bert_jax.workdir.run_directory import WorkDir

Batches = Iterator[dict[str, np.ndarray]]

# Measuring what a device can reach takes seconds on a CPU, which a run of fewer FLOPs is not worth.
_MFU_FROM_FLOPS = 1e13


def fit(
    *,
    workdir: WorkDir,
    config: Any,
    task: Objective,
    optimizer: optax.GradientTransformation,
    schedule: Callable,
    train_data: Callable[[int, np.ndarray], Batches],
    evaluators: Sequence[Evaluator] = (),
    mesh: jax.sharding.Mesh,
    flops_per_step: float,
    writer: MetricsWriter,
    initial_params: Any = None,
    stall_timeout: float = 0.0,
    profile_steps: tuple[int, int] | None = None,
) -> TrainState:
    """Trains to `config.steps`, from wherever the work directory stands.

    Args:
        workdir: held by this process.
        config: seed, steps, batch_size, accumulate_steps, log_every, max_skipped_steps;
            checkpoint.{every, keep, keep_every} (every 0: at the end alone); model.dtype; and resume_from and
            spikes.*, where it has them.
        task, optimizer, schedule: see `bert_jax.training.step` and `bert_jax.training.optimizers`.
        train_data: (start step, the places in the global batch that this process feeds) -> these rows of the
            batch of that step and of each after it. Batches may come in a few shapes; the step is compiled
            for each.
        evaluators: measure the state, each at its own steps and at the end; see `training.evaluators`.
        mesh: see `sharding.make_mesh`.
        flops_per_step: the model's, over the global batch, for MFU; 0 where it is not known.
        writer: gets the metrics and the messages.
        initial_params: nested dict of arrays, which may hold a part of the parameters, the others being
            initialised; or a function from the abstract parameters, with their shardings, to such a dict. Not
            looked at when there is something to resume.
        stall_timeout: seconds without a step, or a batch of evaluation, after which the process ends itself;
            0 for never.
        profile_steps: the first and the last step of a trace, which goes to profile/ in the work directory.

    Returns:
        The state after `config.steps`, or of the step at which an evaluator ended the run; saved.

    Raises:
        UserError: a damaged or foreign work directory, too many steps skipped in a row, twice.
        StorageError: a failed save, or no room for one.
        Preempted: SIGTERM came; the state is saved. KeyboardInterrupt: the same for SIGINT.
    """
    sharding.check_batch_size(config.batch_size, mesh, config.accumulate_steps)
    spikes = spike_rule(config)
    window = spikes.window if spikes else 0
    check_update = "optimizer" not in config or not keeps_parameters_finite(config.optimizer)
    abstract = abstract_state(task, optimizer, mesh, window)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    own = sharding.local_rows(mesh, config.batch_size)
    _describe(abstract, mesh, writer.message)
    if (model := getattr(task, "config", None)) is not None:
        kernel_check.ensure(model, writer.message)

    with contextlib.ExitStack() as cleanup:
        stop = cleanup.enter_context(PreemptionGuard(writer.notice))
        watchdog = cleanup.enter_context(Watchdog(stall_timeout))
        checkpointer = cleanup.enter_context(
            _closing(
                checkpoint.Checkpointer(
                    workdir.checkpoints,
                    keep=config.checkpoint.keep,
                    keep_every=config.checkpoint.keep_every,
                    log=writer.message,
                )
            )
        )
        checkpointer.check_space(abstract)

        def complete(detour: Recovery) -> Recovery:
            checkpointer.abandon_after(detour.step)
            detour = dataclasses.replace(detour, complete=True)
            detour.write(workdir)
            return detour

        detour = recovery.read(workdir)
        if detour and not detour.complete:  # the run was killed as it went back
            detour = complete(detour)

        def start() -> tuple[int, TrainState]:
            """The first of four ways that applies: resume this run, go on from another run's state, from
            given weights, or from scratch.
            """
            resumed = _restore(checkpointer.restore_latest, abstract, config)
            if resumed is not None:
                writer.message(f"resumed from step {resumed[0]} of {workdir.path}")
                return resumed
            if config.get("resume_from"):
                source, state = _restore(
                    lambda abstract: checkpoint.load_state(config.resume_from, abstract, log=writer.message),
                    abstract,
                    config,
                )
                writer.message(f"went on from {source}, step {int(state.step)}")
                return int(state.step), state
            given = initial_params(abstract.params) if callable(initial_params) else initial_params
            state = init_state(task, optimizer, mesh, config.seed, window)
            if given is not None:
                state = state.replace(params=_overlay(state.params, given))
            source = f"the weights of {config.init_from}" if config.get("init_from") else "the weights given"
            writer.message(f"started from {'scratch' if given is None else source}")
            return 0, state

        def go_back(skipped: TooManySkipped, state: TrainState) -> Recovery:
            """Prepares for `start()` at a good checkpoint, without the batches of the failed attempt."""
            checkpointer.wait()
            detour = recovery.plan(checkpointer.agreed_steps(), began, skipped.first, skipped.last)
            writer.message(
                f"warning: {skipped}; going back to step {detour.step}, without the next {detour.left_out} "
                "batches"
            )
            detour.write(workdir)
            jax.tree.map(lambda x: x.delete(), state)  # two states would not fit on a device that one fills
            return complete(detour)

        step, state = start()
        began = step
        workdir.confirm_run()
        writer.rewind(step)
        clock = RunClock(read_metrics(workdir.path, "train"))
        from_scratch = step == 0 and initial_params is None

        evaluations = Evaluations(evaluators, EvaluationContext(writer, stop, watchdog), config.steps)

        meter: Meter | None = None
        metrics: Mapping[str, jax.Array] = {}  # of the last step

        def is_skipped() -> bool:
            return bool(metrics) and float(metrics["skipped"]) > 0

        def save_and_stop(step: int, state: TrainState) -> None:
            with stop.saving():
                if meter is not None:
                    meter.write(writer)
                writer.flush()
                if step and not is_skipped():
                    checkpointer.save(step, state)
                checkpointer.wait()
                saved = checkpointer.steps()
            if step in saved:
                result = "saved"
            elif step == 0:
                result = "nothing to save"
            else:
                result = "which was skipped; " + (f"step {saved[-1]} is saved" if saved else "none is saved")
            stop.leave(f"stopped at step {step}, {result}")

        # The run may have ended between the save of this step and its evaluation.
        if missed := evaluations.missed(step, workdir.path):
            with stop.leaving_through(save_and_stop, step, state):
                evaluations.run(missed, step, state)
        if evaluations.should_stop():
            writer.message("nothing to train: the run was stopped early")
            return state
        if step >= config.steps:
            writer.message(f"nothing to train: step {step} of {config.steps} is done")
            return state

        batches = _batches(train_data, step, own, detour)
        cleanup.callback(lambda: batches.close())
        batch = sharding.global_batch(next(batches), mesh)
        train_step = sharding.jit_train_step(
            make_train_step(task, optimizer, schedule, config.accumulate_steps, spikes, check_update),
            mesh,
            shardings,
        )
        train_step = _Compiled(train_step, abstract, np.uint32(config.seed), writer, watchdog)
        train_step.compile(batch, stop)

        def make_meter() -> Meter:
            peak = _peak(config, mesh, flops_per_step)
            return Meter(peak, flops_per_step, config.max_skipped_steps, clock)

        meter = make_meter()
        profiler = cleanup.enter_context(
            Profiler(os.path.join(workdir.path, "profile"), profile_steps, writer.message)
        )
        first_step = step
        stop.hold()
        save_due = False
        while step < config.steps:
            try:
                with stop.leaving_through(save_and_stop, step, state):
                    stop.check()
                    program = train_step.compile(batch, stop)
                profiler.before(step + 1)
                state, metrics = program(state, batch, train_step.seed)
                step += 1
                stop.step = step
                writer.at_step(max(first_step, step - STEPS_AHEAD))
                meter.add(step, metrics)
                profiler.after(step, metrics)
                watchdog.heartbeat()
                if step < config.steps:
                    # While the devices compute this step, the rows of the next one go to them.
                    with meter.timed("input"):
                        batch = sharding.global_batch(next(batches), mesh)
                checkpointer.poll()
                workdir.check_held()

                # What the previous step left to be written can be read without waiting for this one.
                meter.write(writer, before=step)
                if from_scratch and step == 2:
                    _check_initial_loss(task, meter.first_loss, writer.message)
                if step == 1 or is_due(step, config.log_every, config.steps):
                    meter.close_interval()
                # A step that was skipped is not saved; the next one that was not is saved in its place.
                save_due = save_due or is_due(step, config.checkpoint.every, config.steps)
                evaluators_due = evaluations.due(step)
                if not (save_due or evaluators_due):
                    continue
                with meter.paused(writer):
                    if save_due and (step == config.steps or not is_skipped()):
                        if is_skipped():
                            _warn_of_end(step, meter.skipped_in_row, writer.message)
                        writer.flush()
                        with meter.timed("save"):
                            checkpointer.save(step, state)
                        save_due = False
                    if evaluators_due:
                        with stop.leaving_through(save_and_stop, step, state), meter.timed("eval"):
                            evaluations.run(evaluators_due, step, state)
                        if evaluations.should_stop():
                            writer.message(f"stopped early, at step {step} of {config.steps}")
                            checkpointer.save(step, state)
                            break
            except TooManySkipped as skipped:
                if detour:
                    raise UserError(_gave_up(skipped, detour)) from skipped
                detour = go_back(skipped, state)
                step, state = start()
                first_step = stop.step = step
                save_due, metrics, meter = False, {}, make_meter()
                writer.rewind(step)
                batches.close()
                batches = _batches(train_data, step, own, detour)
                batch = sharding.global_batch(next(batches), mesh)
        checkpointer.wait()
    return state


class _Compiled:
    """The train step, compiled ahead for each shape of batch that comes up."""

    def __init__(
        self,
        train_step: Callable,
        abstract_state: TrainState,
        seed: np.uint32,
        writer: MetricsWriter,
        watchdog: Watchdog,
    ):
        self._train_step, self._abstract_state, self.seed = train_step, abstract_state, seed
        self._writer, self._watchdog = writer, watchdog
        self._programs: dict[tuple, Callable] = {}
        self._said: list[dispatch.Choice] = []

    def compile(self, batch: Mapping[str, jax.Array], stop: PreemptionGuard) -> Callable:
        """(state, batch, seed) -> (state, metrics), for batches of this shape."""
        key = tuple((name, x.shape, x.dtype) for name, x in sorted(batch.items()))
        if key not in self._programs:
            began = time.monotonic()
            with self._watchdog.paused(), self._writer.stage("compiling"):
                self._programs[key], choices = stop.wait_for(lambda: self._lower_and_compile(batch))
            again = f" for another shape, {len(self._programs)} by now" if len(self._programs) > 1 else ""
            self._writer.message(f"compiled the train step in {time.monotonic() - began:.1f} s{again}")
            self._say_chosen(choices)
        return self._programs[key]

    def _lower_and_compile(self, batch: Mapping[str, jax.Array]) -> tuple[Callable, list[dispatch.Choice]]:
        with dispatch.record() as choices:
            lowered = self._train_step.lower(self._abstract_state, batch, self.seed)
        return lowered.compile(), choices

    def _say_chosen(self, choices: list[dispatch.Choice]) -> None:
        """Tells once which kernels are used; a CPU has none."""
        if jax.default_backend() != "cpu":
            for choice in choices:
                if choice not in self._said:
                    self._writer.message(str(choice))
                    self._said.append(choice)


def _batches(
    train_data: Callable[[int, np.ndarray], Batches], step: int, own: np.ndarray, detour: Recovery | None
) -> Batches:
    return detour.batches(train_data, step, own) if detour else train_data(step, own)


def _restore(
    read: Callable[[TrainState], tuple[Any, TrainState] | None], abstract_state: TrainState, config: Any
) -> tuple[Any, TrainState] | None:
    """`read(abstract_state)`. Where the rule for spikes was turned on or off since the state was saved, it
    begins without a window of steps.
    """
    try:
        return read(abstract_state)
    except UserError as error:
        wanted, step = abstract_state.recent, abstract_state.step
        other = None
        if wanted is None:
            if not config.get("spikes"):
                raise
            other = jax.ShapeDtypeStruct((config.spikes.window,), jnp.float32, sharding=step.sharding)
        try:
            found = read(abstract_state.replace(recent=other))
        except UserError:
            raise error from None
    if found is None:
        return None
    name, state = found
    recent = None
    if wanted is not None:
        recent = jax.device_put(np.full(wanted.shape, np.nan, np.float32), wanted.sharding)
    return name, state.replace(recent=recent)


def _gave_up(skipped: TooManySkipped, detour: Recovery) -> str:
    return (
        f"{skipped}; the run had gone back to step {detour.step} once already, and trained on other data "
        "from there. What is saved is finite, but the newest of it may be of a run that was diverging: lower "
        "optimizer.learning_rate, look at the data, or start another run from an earlier step by resume_from"
    )


def _warn_of_end(step: int, skipped: int, say: Callable[[str], None]) -> None:
    say(
        f"warning: the last {skipped} steps were skipped; what is saved as step {step} has the parameters of "
        f"step {step - skipped}"
    )


def _overlay(params: Any, given: Any) -> Any:
    """`params` with the leaves that `given` has, on the same shardings."""
    if not isinstance(params, Mapping):
        return jax.device_put(given, params.sharding)
    return {name: _overlay(x, given[name]) if name in given else x for name, x in params.items()}


def _peak(config: Any, mesh: jax.sharding.Mesh, flops_per_step: float) -> float:
    if flops_per_step * config.steps < _MFU_FROM_FLOPS:
        return 0.0
    return flops.peak_flops(mesh.devices.flat[0], config.model.dtype) * mesh.size


def _describe(abstract_state: TrainState, mesh: jax.sharding.Mesh, say: Callable[[str], None]) -> None:
    count = sum(x.size for x in jax.tree.leaves(abstract_state.params))
    axes = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    device = mesh.devices.flat[0]
    hosts = f" on {jax.process_count()} hosts" if jax.process_count() > 1 else ""
    say(f"{count:,} parameters; {mesh.size} x {device.device_kind} ({device.platform}){hosts}; mesh {axes}")


def _check_initial_loss(task: Objective, loss: float, say: Callable[[str], None]) -> None:
    expected = task.initial_loss
    if expected is not None and not abs(loss - expected) <= 0.05 * expected:
        say(
            f"warning: the untrained model's loss is {loss:.3f}, and {expected:.3f} (chance) was expected: "
            "the vocabulary, the labels or the initialisation may be wrong"
        )


@contextlib.contextmanager
def _closing(checkpointer: checkpoint.Checkpointer):
    """Closes it; an error of its last save gives way to the error that ended the block."""
    try:
        yield checkpointer
    except BaseException:
        with contextlib.suppress(StorageError):
            checkpointer.close()
        raise
    checkpointer.close()
