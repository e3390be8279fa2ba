"""The one loop that pre-training and fine-tuning share; the only place with side effects."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax import checkpoint, flops, sharding
from bert_jax.errors import StorageError
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import dispatch
from bert_jax.meter import STEPS_AHEAD, Meter, RunClock
from bert_jax.metrics_writer import MetricsWriter, read_metrics
from bert_jax.profiling import Profiler
from bert_jax.step import Task, TrainState, make_eval_step, make_train_step
from bert_jax.stopping import StopRequest, Watchdog
from bert_jax.workdir import WorkDir

Batches = Iterator[dict[str, np.ndarray]]

# Measuring what a device can reach takes seconds on a CPU, which a run of fewer FLOPs is not worth.
_MFU_FROM_FLOPS = 1e13


def fit(
    *,
    workdir: WorkDir,
    config: Any,
    task: Task,
    optimizer: optax.GradientTransformation,
    schedule: Callable,
    train_data: Callable[[int, np.ndarray], Batches],
    eval_data: Callable[[np.ndarray], Batches] | None,
    flops_per_step: float,
    writer: MetricsWriter,
    initial_params: Any = None,
    on_eval: Callable[[int, dict[str, float], TrainState, StopRequest], Mapping[str, float] | None]
    | None = None,
    eval_batches: int | None = None,
    stop_early: Callable[[], bool] = lambda: False,
    stall_timeout: float = 0.0,
    profile_steps: tuple[int, int] | None = None,
) -> TrainState:
    """Trains to `config.steps`, from wherever the work directory stands.

    Args:
        workdir: held by this process.
        config: seed, steps, batch_size, accumulate_steps, log_every, max_skipped_steps; mesh.*; eval.every
            (0: at the end alone); checkpoint.{every, keep, keep_every} (every 0: at the end alone);
            model.dtype; and resume_from, where it has one.
        task, optimizer, schedule: see `bert_jax.step` and `bert_jax.optimizer`.
        train_data: (start step, the places in the global batch that this process feeds) -> these rows of the
            batch of that step and of each after it. Batches may come in a few shapes; the step is compiled
            for each.
        eval_data: the places -> these rows of the batches to evaluate on, as many in every process.
        eval_batches: how many these are, for the progress that is shown; None where that is not known.
        flops_per_step: the model's, over the global batch, for MFU; 0 where it is not known.
        writer: gets the metrics and the messages.
        initial_params: nested dict of arrays, which may hold a part of the parameters, the others being
            initialised; or a function from the abstract parameters, with their shardings, to such a dict. Not
            looked at when there is something to resume.
        on_eval: called with (step, metrics, state, stop) after each evaluation, may return more metrics to
            write; must not keep the state's arrays. Where it takes long it calls `stop.check()` now and then,
            and compiles under `stop.wait_for` (see `stopping.StopRequest`).
        stop_early: asked after each evaluation whether the run should end there.
        stall_timeout: seconds without a step, or a batch of evaluation, after which the process ends itself;
            0 for never.
        profile_steps: the first and the last step of a trace, which goes to profile/ in the work directory.

    Returns:
        The state after `config.steps`, or where `stop_early` ended the run; saved.

    Raises:
        UserError: a damaged or foreign work directory, too many steps skipped in a row.
        StorageError: a failed save, or no room for one.
        Preempted: SIGTERM came; the state is saved. KeyboardInterrupt: the same for SIGINT.
    """
    mesh = sharding.make_mesh(**config.mesh)
    sharding.check_batch_size(config.batch_size, mesh, config.accumulate_steps)
    abstract_state = sharding.abstract_state(task, optimizer, mesh)
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
    own = sharding.local_rows(mesh, config.batch_size)
    _describe(abstract_state, mesh, writer.message)
    if (model := getattr(task, "config", None)) is not None:
        kernel_check.ensure(model, writer.message)

    with contextlib.ExitStack() as cleanup:
        stop = cleanup.enter_context(StopRequest(writer.notice))
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
        checkpointer.check_space(abstract_state)

        # Four ways to start, the first that applies:
        # 1. resume this run; 2. go on from another run's state; 3. from given weights; 4. from scratch.
        resumed = checkpointer.restore_latest(abstract_state)
        if resumed is not None:
            step, state = resumed
            writer.message(f"resumed from step {step} of {workdir.path}")
        elif config.get("resume_from"):
            source, state = checkpoint.load_state(config.resume_from, abstract_state, log=writer.message)
            step = int(state.step)
            writer.message(f"went on from {source}, step {step}")
        else:
            step = 0
            if callable(initial_params):
                initial_params = initial_params(abstract_state.params)
            state = sharding.init_state(task, optimizer, mesh, config.seed)
            if initial_params is not None:
                state = state.replace(params=_overlay(state.params, initial_params))
            given = "scratch" if initial_params is None else "the weights given"
            writer.message(f"started from {given}")
        workdir.confirm_run()
        writer.rewind(step)
        clock = RunClock(read_metrics(workdir.path, "train"))
        from_scratch = step == 0 and initial_params is None

        evaluate = None
        if eval_data is not None:
            eval_step = sharding.jit_eval_step(make_eval_step(task, config.seed), mesh, shardings)

            def evaluate(step: int, state: TrainState) -> None:
                with writer.stage("evaluation", eval_batches, "batches") as at:
                    metrics = _evaluate(eval_step, state.params, eval_data(own), mesh, stop, watchdog, at)
                if on_eval is not None:
                    with watchdog.paused():
                        metrics |= on_eval(step, metrics, state, stop) or {}
                writer.write(step, metrics, kind="eval")

        meter: Meter | None = None

        def save_and_stop(step: int, state: TrainState) -> None:
            with stop.saving():
                if meter is not None:
                    meter.write(writer)
                writer.flush()
                if step > 0:
                    checkpointer.save(step, state)
                    checkpointer.wait()
            stop.leave(f"stopped at step {step}, " + ("saved" if step else "nothing to save"))

        if step and evaluate and _is_due(step, config.eval.every, config.steps):
            # The run may have ended between the save of this step and its evaluation.
            if all(line["step"] != step for line in read_metrics(workdir.path, "eval")):
                with stop.leaving_through(save_and_stop, step, state):
                    evaluate(step, state)
        if step >= config.steps:
            writer.message(f"nothing to train: step {step} of {config.steps} is done")
            return state

        batches = cleanup.enter_context(contextlib.closing(train_data(step, own)))
        batch = sharding.global_batch(next(batches), mesh)
        train_step = sharding.jit_train_step(
            make_train_step(task, optimizer, schedule, config.accumulate_steps), mesh, shardings
        )
        train_step = _Compiled(train_step, abstract_state, np.uint32(config.seed), writer, watchdog)
        train_step.compile(batch, stop)

        meter = Meter(_peak(config, mesh, flops_per_step), flops_per_step, config.max_skipped_steps, clock)
        profiler = cleanup.enter_context(
            Profiler(os.path.join(workdir.path, "profile"), profile_steps, writer.message)
        )
        first_step = step
        stop.hold()
        while step < config.steps:
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
            watchdog.beat()
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
            if step == 1 or _is_due(step, config.log_every, config.steps):
                meter.close_interval()
            save = _is_due(step, config.checkpoint.every, config.steps)
            if save or (evaluate and _is_due(step, config.eval.every, config.steps)):
                with meter.paused(writer):
                    if save:
                        writer.flush()
                        with meter.timed("save"):
                            checkpointer.save(step, state)
                    if evaluate and _is_due(step, config.eval.every, config.steps):
                        with stop.leaving_through(save_and_stop, step, state), meter.timed("eval"):
                            evaluate(step, state)
                        if stop_early():
                            writer.message(f"stopped early, at step {step} of {config.steps}")
                            checkpointer.save(step, state)
                            break
        checkpointer.wait()
    return state


def enable_compilation_cache(directory: str | None = None) -> None:
    """Keeps compiled programs on disk, so that a run that is started again does not compile again.

    Args:
        directory: where; "" for no cache, None for JAX_COMPILATION_CACHE_DIR or ~/.cache/bert_jax/xla.
    """
    if directory is None:
        if jax.config.jax_compilation_cache_dir:
            return
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        directory = os.path.join(base, "bert_jax", "xla")
    jax.config.update("jax_compilation_cache_dir", directory or None)


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

    def compile(self, batch: Mapping[str, jax.Array], stop: StopRequest) -> Callable:
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


def _evaluate(
    eval_step: Callable,
    params: Any,
    batches: Batches,
    mesh: Any,
    stop: StopRequest,
    watchdog: Watchdog,
    at: Callable[[int], None],
) -> dict[str, float]:
    """The means over all batches: sums and weights are added on the devices and divided once."""
    totals = None
    with contextlib.closing(batches):
        for index, batch in enumerate(batches):
            stop.check()
            previous = totals
            step = functools.partial(eval_step, params, sharding.global_batch(batch, mesh), np.int32(index))
            pairs = stop.wait_for(step)
            at(index)
            totals = pairs if totals is None else _add(totals, pairs)
            jax.block_until_ready(previous)
            watchdog.beat()
    if totals is None:
        return {}
    totals = jax.device_get(totals)
    return {name: float(total) / max(float(weight), 1e-9) for name, (total, weight) in totals.items()}


@jax.jit
def _add(totals, pairs):
    return jax.tree.map(jnp.add, totals, pairs)


def _overlay(params: Any, given: Any) -> Any:
    """`params` with the leaves that `given` has, on the same shardings."""
    if not isinstance(params, Mapping):
        return jax.device_put(given, params.sharding)
    return {name: _overlay(x, given[name]) if name in given else x for name, x in params.items()}


def _is_due(step: int, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)


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


def _check_initial_loss(task: Task, loss: float, say: Callable[[str], None]) -> None:
    expected = getattr(task, "expected_initial_loss", None)
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
