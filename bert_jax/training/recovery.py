"""Recovery from divergence: a return to a good checkpoint after too many skipped steps, once per run.

The recovery is recorded in recovery.json in the work directory, so that the run trains on the same batches if
it is killed and restarted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable

import numpy as np

from bert_jax.checkpoint import Checkpointer
from bert_jax.io import files, json_files
from bert_jax.io.wording import counted
from bert_jax.parallel import collective
from bert_jax.settings.config_fields import INT32
from bert_jax.training.evaluators import Batches
from bert_jax.training.metrics.throughput import NOT_FINITE
from bert_jax.workdir.run_directory import RECOVERY_FILE, WorkDir

_STEPS = range(INT32 + 1)
_RECOVERY = {"step": _STEPS, "left_out": _STEPS, "complete?": bool}


class TooManySkipped(Exception):
    """Raised when consecutive steps, `first` to `last`, were skipped."""

    def __init__(self, first: int, last: int):
        super().__init__(f"steps {first} to {last} were skipped: {NOT_FINITE}, or a spike")
        self.first, self.last = first, last


@dataclasses.dataclass(frozen=True)
class Recovery:
    """The record of a recovery.

    Attributes:
        step: the step from which the run continued.
        left_out: the number of batches that are left out. From `step` on, step s trains on the batch that a
            run without a recovery would have at step s + left_out.
        complete: whether the checkpoints of later steps, from the failed attempt, have been moved away.
    """

    step: int
    left_out: int
    complete: bool = False

    def write(self, workdir: WorkDir) -> None:
        """Writes recovery.json."""
        workdir.write_json(RECOVERY_FILE, dataclasses.asdict(self))

    def batches(
        self, train_data: Callable[[int, np.ndarray], Batches], step: int, own: np.ndarray
    ) -> Batches:
        """Yields the batches of `step` and of each step after it.

        Args:
            train_data: the batches of a run without a recovery; see `loop.fit`.
            step: the first step.
            own: the rows of the global batch that this process feeds.
        """
        if step < self.step:
            with contextlib.closing(train_data(step, own)) as before:
                yield from itertools.islice(before, self.step - step)
        yield from train_data(max(step, self.step) + self.left_out, own)


def read(workdir: WorkDir) -> Recovery | None:
    """Returns the earlier recovery of a run, as read by process 0, or None if there was none.

    Raises:
        UserError: the file is damaged. All processes raise it.
    """
    path = os.path.join(workdir.path, RECOVERY_FILE)
    found = collective.call_in_primary(lambda: json_files.read(path, _RECOVERY) if files.exists(path) else {})
    return Recovery(found["step"], found["left_out"], found.get("complete", False)) if found else None


def plan(steps: list[int], start: int, first: int, last: int) -> Recovery:
    """Chooses the checkpoint to go back to.

    The newest checkpoint that is known to be good is chosen: one whose next step was not skipped. The state
    just before the first skipped step may itself be the problem, so it is chosen only if there is no other
    checkpoint. A run that was stopped while steps were skipped has saved this state as a later step. Without
    any checkpoint, the run starts again from `start`.

    Args:
        steps: the steps of the checkpoints, ascending.
        start: the step at which the run started.
        first: the first skipped step.
        last: the last skipped step.
    """
    known = [step for step in steps if step < first - 1]
    step = (known or steps or [start])[-1]
    return Recovery(step, last - step)


def resume(workdir: WorkDir, checkpointer: Checkpointer) -> Recovery | None:
    """Returns the earlier recovery of a run, or None; completes it if the run was killed during it."""
    recovery = read(workdir)
    if recovery and not recovery.complete:
        recovery = _complete(recovery, workdir, checkpointer)
    return recovery


def go_back(
    skipped: TooManySkipped,
    began: int,
    find_start: Callable[[int], object],
    workdir: WorkDir,
    checkpointer: Checkpointer,
    log: Callable[[str], None],
) -> Recovery:
    """Sets aside the checkpoints after a good one, writes recovery.json and returns the recovery.

    Args:
        skipped: the steps that were skipped.
        began: the step at which the run started.
        find_start: raises an error if the state with which the run started, at a step, is gone.
        workdir: the work directory, for recovery.json.
        checkpointer: the checkpointer of the run.
        log: called with a warning.
    """
    checkpointer.wait()
    saved = checkpointer.saved.agreed_steps()
    recovery = plan(saved, began, skipped.first, skipped.last)
    if recovery.step not in saved:
        find_start(recovery.step)  # before the other checkpoints are set aside
    log(
        f"warning: {skipped}; going back to step {recovery.step}, without the next "
        f"{counted(recovery.left_out, 'batch', 'batches')}"
    )
    recovery.write(workdir)
    return _complete(recovery, workdir, checkpointer)


def _complete(recovery: Recovery, workdir: WorkDir, checkpointer: Checkpointer) -> Recovery:
    checkpointer.abandon_after(recovery.step)
    recovery = dataclasses.replace(recovery, complete=True)
    recovery.write(workdir)
    return recovery


def describe_failure(skipped: TooManySkipped, recovery: Recovery) -> str:
    """Returns the error message for a run that fails again after a recovery."""
    return (
        f"{skipped}; the run had gone back to step {recovery.step} once already, and trained on other data "
        "from there. All checkpoints are finite, but the newest may come from a diverging run: lower "
        "optimizer.learning_rate, look at the data, or start another run from an earlier step by resume_from"
    )
