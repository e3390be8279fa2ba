"""The one time that a run goes back to a good checkpoint, because too many steps in a row were skipped.

What it does then is written to recovery.json in the work directory, so that the run trains on the same
batches if it is killed and started again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.checkpoint import Checkpointer
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.training.throughput import TooManySkipped
from bert_jax.workdir.run_directory import WorkDir

FILE = "recovery.json"


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Where a run went back to, and what it left out.

    Attributes:
        step: the run went on from here.
        left_out: batches that it did not train on again: from `step` on, step s has the batch that a run
            which never failed has at step s + left_out.
        complete: the checkpoints of later steps, which are of the failed attempt, are out of the way.
    """

    step: int
    left_out: int
    complete: bool = False

    def write(self, workdir: WorkDir) -> None:
        workdir.write_json(FILE, dataclasses.asdict(self))

    def batches(
        self, train_data: Callable[[int, np.ndarray], Iterator[Any]], step: int, own: np.ndarray
    ) -> Iterator[Any]:
        """Yields the batches of `step` and of each step after it.

        Args:
            train_data: the batches of a run that never failed; see `loop.fit`.
            step, own: its arguments.
        """
        if step < self.step:
            yield from itertools.islice(train_data(step, own), self.step - step)
        yield from train_data(max(step, self.step) + self.left_out, own)


def read(workdir: WorkDir) -> Recovery | None:
    """Returns what a run did before, as the first process sees it; None if it never went back.

    Raises:
        UserError: the file is damaged.
    """
    found = None
    if jax.process_index() == 0:
        path = os.path.join(os.fspath(workdir.path), FILE)
        try:
            if files.exists(path):
                found = Recovery(**json.loads(files.read(path)))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: not a {FILE} of bert-jax ({error}); restore it from a copy") from error
    if jax.process_count() == 1:
        return found
    numbers = (-1, 0, 0) if found is None else (found.step, found.left_out, int(found.complete))
    step, left_out, complete = multihost_utils.broadcast_one_to_all(np.array(numbers, np.int32)).tolist()
    return None if step < 0 else Recovery(step, left_out, bool(complete))


def plan(steps: list[int], start: int, first: int, last: int) -> Recovery:
    """Returns where to go back to.

    A checkpoint is known to be good when the step after it was not skipped; the newest of these is chosen.
    The state just before the first skipped step may be what is wrong; it is taken if there is no other, and
    the run begins anew where it has saved nothing.

    Args:
        steps: of the checkpoints, ascending.
        start: the step at which the run was begun.
        first, last: the first and the last of the skipped steps.
    """
    before = [step for step in steps if step < first]
    known = [step for step in before if step < first - 1]
    step = (known or before or [start])[-1]
    return Recovery(step, last - step)


def resume(workdir: WorkDir, checkpointer: Checkpointer) -> Recovery | None:
    """Returns what a run did before; if it was killed as it went back, it has gone back now."""
    detour = read(workdir)
    if detour and not detour.complete:
        detour = _complete(detour, workdir, checkpointer)
    return detour


def go_back(
    skipped: TooManySkipped,
    began: int,
    workdir: WorkDir,
    checkpointer: Checkpointer,
    log: Callable[[str], None],
) -> Recovery:
    """Makes a good checkpoint the newest one, and returns what the run leaves out from there.

    Args:
        skipped: the failed attempt.
        began: the step at which the run was begun.
        workdir: gets recovery.json.
        checkpointer: of the run.
        log: gets a warning.
    """
    checkpointer.wait()
    detour = plan(checkpointer.agreed_steps(), began, skipped.first, skipped.last)
    log(f"warning: {skipped}; going back to step {detour.step}, without the next {detour.left_out} batches")
    detour.write(workdir)
    return _complete(detour, workdir, checkpointer)


def _complete(detour: Recovery, workdir: WorkDir, checkpointer: Checkpointer) -> Recovery:
    checkpointer.abandon_after(detour.step)
    detour = dataclasses.replace(detour, complete=True)
    detour.write(workdir)
    return detour


def describe_failure(skipped: TooManySkipped, detour: Recovery) -> str:
    """Returns the message of a run that fails again after it went back."""
    return (
        f"{skipped}; the run had gone back to step {detour.step} once already, and trained on other data "
        "from there. What is saved is finite, but the newest of it may be of a run that was diverging: lower "
        "optimizer.learning_rate, look at the data, or start another run from an earlier step by resume_from"
    )
