"""The train loop of pre-training and fine-tuning, which has all side effects of training.

`fit` sets up a run. `TrainRun` holds the run from its first state to its last: it dispatches steps, writes
metrics, saves checkpoints, evaluates, and goes back to an earlier checkpoint if too many steps were skipped.
Values are fetched from the devices only at log steps and where a step is saved or evaluated; in a run with a
budget, also the share that each step has spent, a few steps later.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import checkpoint
from bert_jax.errors import StorageError
from bert_jax.kernels import check as kernel_check
from bert_jax.objectives.adapters import encoder_config
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings.typed.run_config import RunConfig
from bert_jax.training.compiled_step import CompiledStep, Programs
from bert_jax.training.evaluators import Batches, EvaluationContext, Evaluations, Evaluator
from bert_jax.training.metrics.metrics_writer import MetricsWriter
from bert_jax.training.metrics.profiling import Profiler
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.start import Start
from bert_jax.training.state import TrainState
from bert_jax.training.train_program import TrainProgram
from bert_jax.training.train_run import TrainRun
from bert_jax.training.watchdog import Watchdog
from bert_jax.workdir.run_directory import WorkDir


def fit(
    *,
    workdir: WorkDir,
    config: RunConfig,
    objective: Objective,
    train_data: Callable[[int, np.ndarray], Batches],
    evaluators: Sequence[Evaluator] = (),
    flops_per_step: float | Callable[[int], float],
    writer: MetricsWriter,
    initial_params: Any = None,
    programs: Programs | None = None,
    stall_timeout: float = 0.0,
    profile_steps: tuple[int, int] | None = None,
) -> TrainState:
    """Trains to `config.steps`, starting from the newest checkpoint of the work directory, if there is one.

    Args:
        workdir: the work directory, held by this process.
        config: the configuration of the run, with a number of `accumulate_steps`; see `fewest_parts`.
        objective: see `bert_jax.objectives.base`.
        train_data: (start step, rows of the global batch that this process feeds) -> iterator over these rows
            of the batch of each step, beginning with the start step. Batches may have a few different shapes;
            the train step is compiled for each.
        evaluators: evaluate the state, each at its own steps and at the end; see `training.evaluators`.
        flops_per_step: model FLOPs of a global batch, for MFU; 0 if they are not known. If batches have
            different sizes, a function that maps the number of a step, counted from 1, to them.
        writer: writes the metrics and the messages.
        initial_params: nested dict of arrays, which may contain only some of the model's parameters (the
            others are initialized), or a function that maps its abstract parameters, with their shardings, to
            such a dict. Ignored if the run resumes from a checkpoint.
        programs: the train step, compiled for some shapes of a batch.
        stall_timeout: seconds without a step or an evaluation batch after which the process ends itself;
            0 for no limit. Compilations, restoring a state and waiting for a save may take longer.
        profile_steps: the first and the last step to trace into profile/ in the work directory.

    Returns:
        The state after `config.steps`, or after the step at which an evaluator stopped the run. It has been
        saved.

    Raises:
        UserError: the work directory is damaged or belongs to another run, or too many steps in a row were
            skipped twice, or no step was trained, or the loss at the end is not finite.
        StorageError: a save failed, or there is not enough space for one.
        Preempted: the process received SIGTERM; the state has been saved.
        KeyboardInterrupt: the process received SIGINT; the state has been saved.
    """
    program = TrainProgram.of(config, objective)
    mesh, abstract = program.mesh, program.abstract_state
    sharding.check_batch_size(config.batch_size, mesh, config.accumulate_steps)
    _describe(abstract, mesh, writer.message)
    if (model := encoder_config(objective)) is not None:
        kernel_check.ensure(model, writer.message)
    train_step = program.in_parts(config.accumulate_steps)
    seed = sharding.on_all_devices(np.uint32(config.seed), mesh)
    with contextlib.ExitStack() as cleanup:
        guard = cleanup.enter_context(PreemptionGuard(writer.notice))
        watchdog = Watchdog(stall_timeout)
        checkpointer = checkpoint.Checkpointer(
            workdir.checkpoints,
            keep=config.checkpoint.keep,
            keep_every=config.checkpoint.keep_every,
            log=writer.message,
            waiting=watchdog.paused,
        )
        cleanup.enter_context(_closing(checkpointer))
        cleanup.enter_context(watchdog)
        checkpointer.saved.check_space(abstract)
        run = TrainRun(
            config=config,
            workdir=workdir,
            objective=objective,
            mesh=mesh,
            train_data=train_data,
            start=Start(
                config,
                objective,
                program.optimizer,
                mesh,
                abstract,
                checkpointer,
                initial_params,
                writer.message,
            ),
            budget=program.budget,
            train_step=CompiledStep(train_step, abstract, seed, writer, watchdog, programs),
            evaluations=Evaluations(evaluators, EvaluationContext(writer, guard, watchdog)),
            checkpointer=checkpointer,
            flops_per_step=flops_per_step,
            writer=writer,
            guard=guard,
            watchdog=watchdog,
        )
        cleanup.callback(run.close)
        run.set_up()
        if not run.is_finished():
            run.open_batches()
            run.compile()
            profiler = Profiler(os.path.join(workdir.path, "profile"), profile_steps, writer.message)
            run.train(cleanup.enter_context(profiler))
            checkpointer.wait()
        run.check_result()
        return run.state


def _describe(abstract_state: TrainState, mesh: jax.sharding.Mesh, log: Callable[[str], None]) -> None:
    count = sum(x.size for x in jax.tree.leaves(abstract_state.params))
    frozen = sum(x.size for x in jax.tree.leaves(abstract_state.frozen))
    axes = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    device = mesh.devices.flat[0]
    hosts = f" on {jax.process_count()} hosts" if jax.process_count() > 1 else ""
    beside = f" and {frozen:,} frozen ones" if frozen else ""
    log(
        f"{count:,} parameters{beside}; {mesh.size} x {device.device_kind} ({device.platform}){hosts}; "
        f"mesh {axes}"
    )


@contextlib.contextmanager
def _closing(checkpointer: checkpoint.Checkpointer):
    """Closes the checkpointer. If the block raised an error, an error of the last save is suppressed."""
    try:
        yield checkpointer
    except BaseException:
        with contextlib.suppress(StorageError):
            checkpointer.close()
        raise
    checkpointer.close()
