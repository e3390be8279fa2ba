"""The directory of a run's steps: lists, renames and deletes them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Collection

import jax

from bert_jax.checkpoint.leaves import PyTree
from bert_jax.checkpoint.steps import FROZEN, WRITTEN_LAST, absolute, is_step, list_steps
from bert_jax.errors import StorageError, file_error
from bert_jax.io import atomic, files
from bert_jax.parallel import collective

TEMPORARY = ".orbax-checkpoint-tmp"  # in the name of a directory that orbax has not completed
_SET_ASIDE = "bad-"
_ABANDONED = "abandoned-"
_DAMAGED = re.compile(rf"{_SET_ASIDE}(\d+)(-\d+)?")  # the name of a step that was set aside
_DELETING = "deleting-"


class StepDirectory:
    """The steps of one run on disk. Process 0 changes them; all processes must make the same calls.

    What a killed run left of a step that it saved or deleted is removed first.

    Args:
        path: the directory, created if missing. A local path, gs:// or s3://.
        keep: the number of newest steps to keep.
        keep_every: steps that are a multiple of this number are never deleted; 0 means none.
        log: called with one line when a step is set aside.

    Attributes:
        path: the absolute path of the directory.

    Raises:
        UserError: the directory cannot be made.
        StorageError: it is remote and cannot be reached.
    """

    def __init__(self, path: files.PathLike, keep: int, keep_every: int, log):
        self.path = absolute(path)
        self._writing: int | str | None = None
        self._keep, self._keep_every, self._log = keep, keep_every, log
        self._deletions = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint-deletion")
        collective.call_in_primary(self._make)

    def _make(self) -> None:
        try:
            files.make_directory(self.path)
        except OSError as error:
            message = (
                f"{self.path}: cannot be made ({error.strerror or error}); expected the "
                "directory of the checkpoints: move what is there"
            )
            raise file_error(message, error) from error
        for name in files.names(self.path):
            if TEMPORARY in name or name.startswith(_DELETING):
                files.remove_tree(os.path.join(self.path, name))

    def of(self, step: int) -> str:
        """Returns the directory of a step."""
        return os.path.join(self.path, str(step))

    def steps(self) -> list[int]:
        """Returns the steps on disk, unverified, oldest first, except one that is being written."""
        return [step for step in list_steps(self.path) if step != self._writing]

    def agreed_steps(self) -> list[int]:
        """Returns the steps that process 0 sees, oldest first; other file systems may show changes later."""
        return collective.call_in_primary(self.steps)

    def damaged(self) -> list[str]:
        """Returns the names of the steps that process 0 sees set aside because they are damaged."""
        return collective.call_in_primary(
            lambda: [name for name in files.names(self.path) if name.startswith(_SET_ASIDE)]
        )

    def check_space(self, abstract_state: PyTree) -> None:
        """Raises a StorageError if the disk has no room for one more step. URLs are not checked.

        All processes write into the same directory, so that there has to be room for the whole state.
        """
        needed = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(abstract_state))

        def free_bytes() -> int | None:
            with contextlib.suppress(OSError):
                return shutil.disk_usage(self.path).free
            return None

        free = collective.call_in_primary(free_bytes)
        if free is not None and free < needed:
            raise StorageError(
                f"{self.path}: {free / 1e6:,.0f} MB are free and a checkpoint takes up to "
                f"{needed / 1e6:,.0f} MB; free some space or choose another --workdir"
            )

    def begin(self, step: int | str) -> None:
        """Notes that a step, or the directory of frozen parameters, is being written."""
        self._writing = step

    def end(self) -> bool:
        """Notes that nothing is being written; returns whether something was."""
        was_writing, self._writing = self._writing is not None, None
        return was_writing

    def set_aside(self, step: int, why: str) -> None:
        """Renames a damaged step to `bad-STEP`."""
        collective.call_in_primary(lambda: self._rename(str(step), f"{_SET_ASIDE}{step}", why))

    def abandon_after(self, step: int) -> None:
        """Renames the steps after `step` to `abandoned-STEP`, because the run goes back to `step`.

        The damaged ones are renamed too, so that they do not keep the run from going back to its start.
        """

        def rename() -> None:
            for name in files.names(self.path):
                number = _DAMAGED.sub(r"\1", name)
                if is_step(number) and int(number) > step:
                    self._rename(name, f"{_ABANDONED}{number}", f"the run goes back to step {step}")

        collective.call_in_primary(rename)

    def delete(self, step: int) -> None:
        """Deletes a step, if it exists, because the run repeats it, with other parameters."""
        collective.call_in_primary(lambda: self._delete({step}.intersection(self.steps())))

    def delete_others(self, step: int) -> None:
        """Deletes all steps except one, which is flushed to the disk first."""
        collective.call_in_primary(lambda: self._delete({*self.steps()} - {step}, step))

    def delete_old(self) -> None:
        """Deletes the steps that are not kept."""
        if jax.process_index() != 0:
            return
        steps = self.steps()
        every = self._keep_every
        old = {step for step in steps[: -self._keep] if not (every and step % every == 0)}
        self._delete(old, steps[-1] if steps else None)

    def close(self) -> None:
        """Waits for deletions."""
        self._deletions.shutdown(wait=True)

    def _rename(self, name: str, wanted: str, why: str) -> None:
        """Renames a directory to the wanted name, or to one with a number where that exists."""
        names = files.names(self.path)
        numbered = (f"{wanted}-{number}" for number in itertools.count(2))
        target = next(one for one in itertools.chain([wanted], numbered) if one not in names)
        path = os.path.join(self.path, name)
        files.move(path, os.path.join(self.path, target))
        self._log(f"warning: {path} is set aside as {target}: {why}")

    def _delete(self, steps: Collection[int], new: int | None = None) -> None:
        """Deletes steps once a new one would survive a power failure; orbax flushes only its arrays."""
        if steps and new is not None:
            for path in (self.of(new), os.path.join(self.path, FROZEN)):
                atomic.sync_tree(path)
        for step in sorted(steps):
            path = self.of(step)
            # An interrupted deletion must not leave a directory that looks like a step.
            if files.scheme(path) == "gs":
                for name in WRITTEN_LAST:
                    files.remove(os.path.join(path, name), missing_ok=True)
            else:
                target = os.path.join(self.path, f"{_DELETING}{step}")
                files.move(path, target)
                path = target
            self._deletions.submit(files.remove_tree, path)
