"""Saves the steps of a run in the background, keeps the newest, and restores the newest that is intact.

orbax's CheckpointManager neither verifies steps nor renames damaged ones, does not flush the new step before
it deletes an old one, and cannot read `checkpoints/STEP/`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.checkpoint.checksums import array_digests
from bert_jax.checkpoint.leaves import PyTree, flatten, nest
from bert_jax.checkpoint.reading import (
    FROZEN,
    METADATA_KEY,
    WRITTEN_LAST,
    Damaged,
    absolute,
    agree,
    is_committed,
    is_step,
    list_steps,
    one_line,
    read_state,
    silence_orbax,
)
from bert_jax.errors import StorageError, UserError
from bert_jax.io import atomic, files
from bert_jax.io.wording import counted
from bert_jax.parallel import collective

_TEMPORARY = ".orbax-checkpoint-tmp"  # in the name of a directory that orbax has not completed
_BAD, _DELETING = "bad-", "deleting-"
_DIVIDED = 1 << 20  # bytes; several devices share the writing of a replicated array in parts of this size


class Checkpointer:
    """Saves and restores the states of one run under `directory`, a local path, gs:// or s3://.

    The caller must hold the lock of the work directory. All processes must make the same calls; process 0
    changes the directory, which is made if it is missing. Partly saved or partly deleted steps of a killed
    run are removed first. The directory is listed only at the start, because listing a bucket in each save
    would stall the steps.

    The newest `keep` steps are kept, and steps that are a multiple of `keep_every`; 0 means none. `waiting`
    returns the context in which to save, or to wait for the end of a save, which may take long.
    """

    def __init__(
        self,
        directory: files.PathLike,
        *,
        keep: int = 3,
        keep_every: int = 0,
        log=print,
        waiting: Callable[[], AbstractContextManager] = contextlib.nullcontext,
    ):
        self.path = absolute(directory)
        self._keep, self._keep_every, self._log, self._waiting = max(keep, 1), keep_every, log, waiting
        silence_orbax()
        self._orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**_handler_options()))
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._finished: concurrent.futures.Future[None] = self._thread.submit(lambda: None)  # the last save
        self._has_frozen: bool | None = None  # None until it is known
        self._writing: int | str | None = None  # the step that is being written
        self._begun: int | str | None = None  # the last step given to orbax, whose error may arrive later
        self._has_failed = False  # whether the error of that step has been raised
        steps, partial = collective.call_in_primary(self._clean)
        self._saved, self._partial = set(steps), set(partial)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, error_type: type | None, *unused: Any) -> None:
        with contextlib.suppress(*([StorageError] if error_type else [])):
            self.close()

    def _clean(self) -> tuple[list[int], list[int]]:
        """Returns the complete steps, and the incomplete steps of a killed run, which gs:// may have."""
        files.make_directory(self.path)
        names = files.names(self.path)
        for name in names:
            if _TEMPORARY in name or name.startswith(_DELETING):
                files.remove_tree(os.path.join(self.path, name))
        steps = list_steps(self.path)
        return steps, [int(name) for name in names if is_step(name) and int(name) not in steps]

    # Saving

    def save(self, step: int, state: PyTree) -> None:
        """Starts to save `state` and returns once it is copied to the host, so that the caller may donate it.

        It waits for the previous save first, and raises StorageError if that failed. An existing step is not
        overwritten. The arrays of the state are all on the same devices, with any sharding.
        """
        with self._waiting():
            self.wait()
            if step in self._saved:
                return
            leaves = flatten(state)
            frozen = {name: leaves.pop(name) for name in list(leaves) if name.startswith(f"{FROZEN}/")}
            described: dict[str, Any] = {"leaves": _describe(leaves)}
            if frozen:
                described[FROZEN] = self._save_frozen(frozen)
            path = os.path.join(self.path, str(step))
            with self._explained():
                self._writing = step
                if jax.process_index() == 0 and step in self._partial:
                    files.remove_tree(path)
                self._partial.discard(step)
                self._start_saving(step, leaves, described)
                self._saved.add(step)
                every, older = self._keep_every, sorted(self._saved)[: -self._keep]
                old = {each for each in older if not (every and each % every == 0)} - {step}
                self._saved -= old
                self._finished = self._thread.submit(self._finish, old, step)

    def _finish(self, old: Collection[int], new: int) -> None:
        """Waits until a step is on disk, then deletes the steps that are not kept; runs in the background."""
        self._orbax.wait_until_finished()
        if jax.process_index() == 0:
            self._delete(old, new)

    def _start_saving(self, name: int | str, leaves: dict[str, jax.Array], described: dict[str, Any]) -> None:
        self._begun, self._has_failed = name, False
        path = epath.Path(os.path.join(self.path, str(name)))
        arguments = ocp.args.PyTreeSave(nest(leaves))
        self._orbax.save(path, args=arguments, custom_metadata={METADATA_KEY: described})

    def _save_frozen(self, leaves: dict[str, jax.Array]) -> dict[str, dict]:
        """Returns descriptions of the frozen parameters, after writing them unless an earlier step did."""
        described = _describe(leaves)
        path = os.path.join(self.path, FROZEN)
        if self._has_frozen is None:
            # Without a step, they are from a run that was killed before its first step, and may differ.
            self._has_frozen = bool(self._saved) and collective.call_in_primary(
                lambda: files.exists(path) and is_committed(path)
            )
        if not self._has_frozen:
            with self._explained():
                if jax.process_index() == 0:
                    files.remove_tree(path)
                self._start_saving(FROZEN, leaves, {"leaves": described})
                self._orbax.wait_until_finished()
            self._has_frozen = True
        return described

    def poll(self) -> None:
        """Raises the error of a save in the background, if any. Cheap enough to call at every step."""
        # orbax's own check for errors waits for its files of metadata.
        if self._finished.done():
            with self._explained():
                self._finished.result()

    def wait(self) -> None:
        """Waits until the last save is on disk and the steps that are not kept are deleted; raises errors."""
        if self._has_failed:  # the error has been raised
            return
        with self._waiting(), self._explained():
            self._finished.result()
            self._writing = None

    def close(self) -> None:
        """Waits for saves and deletions; raises the error of the last save unless that was raised before."""
        try:
            self.wait()
        finally:
            concurrent.futures.wait([self._finished])  # it submits deletions
            self._thread.shutdown(wait=True)
            # One failed save may have left several errors: orbax writes a step's metadata in another thread.
            with contextlib.suppress(Exception) if self._has_failed else self._explained():
                self._orbax.close()

    @contextlib.contextmanager
    def _explained(self):
        try:
            yield
        except Exception as error:
            self._has_failed, self._writing = True, None
            self._saved -= {self._begun}
            raise StorageError(
                f"{self.path}: saving step {self._begun} failed ({one_line(error)}); intact steps: "
                f"{', '.join(map(str, self.steps())) or 'none'}"
            ) from error

    # Restoring

    def restore_latest(self, abstract_state: PyTree) -> tuple[int, PyTree] | None:
        """Restores the newest step that is intact, as its number and state. None if no step was ever saved.

        A newer step that is damaged is renamed to `bad-STEP`, never deleted, and the number of lost steps is
        logged. It raises UserError if the steps have another structure, shape or dtype, or if no step is
        intact. For `abstract_state`, see `reading.read_state`.
        """
        lost: list[int] = []
        for step in reversed(self.agreed_steps()):
            path = os.path.join(self.path, str(step))
            try:
                state = agree(functools.partial(read_state, path, abstract_state))
            except Damaged as error:
                collective.call_in_primary(functools.partial(self._set_aside, step, str(error)))
                self._saved.discard(step)
                lost.append(step)
                continue
            if lost:
                steps = counted(lost[0] - step, "step is", "steps are")
                self._log(f"warning: resuming from step {step}; {steps} lost")
            return step, state
        names = collective.call_in_primary(lambda: files.names(self.path))
        if bad := [name for name in names if name.startswith(_BAD)]:
            raise UserError(f"{self.path}: all checkpoints are damaged ({', '.join(bad)})")
        return None

    # The steps on disk

    def steps(self) -> list[int]:
        """Returns the steps on disk, unverified, oldest first, except one that is being written."""
        return [step for step in list_steps(self.path) if step != self._writing]

    def agreed_steps(self) -> list[int]:
        """Returns the steps that process 0 sees, oldest first; other file systems may show changes later."""
        return collective.call_in_primary(self.steps)

    def delete(self, step: int) -> None:
        """Deletes a step, if it exists, because the run repeats it, with other parameters."""
        self._saved.discard(step)
        collective.call_in_primary(lambda: self._delete({step}.intersection(self.steps())))

    def delete_others(self, step: int) -> None:
        """Deletes all steps except one, which is flushed to the disk first."""
        self._saved &= {step}
        collective.call_in_primary(lambda: self._delete({*self.steps()} - {step}, step))

    def _set_aside(self, step: int, why: str) -> None:
        names, target = files.names(self.path), f"{_BAD}{step}"
        for number in itertools.count(2):
            if target not in names:
                break
            target = f"{_BAD}{step}-{number}"
        path = os.path.join(self.path, str(step))
        files.move(path, os.path.join(self.path, target))
        self._log(f"warning: {path} was renamed to {target}: {why}")

    def _delete(self, steps: Collection[int], new: int | None = None) -> None:
        if steps and new is not None:
            for name in (str(new), FROZEN):
                atomic.sync_tree(os.path.join(self.path, name))
        for step in sorted(steps):
            path = os.path.join(self.path, str(step))
            # An interrupted deletion must not leave a directory that looks like a step.
            if files.scheme(path) == "gs":
                files.remove(os.path.join(path, WRITTEN_LAST), missing_ok=True)
            else:
                target = os.path.join(self.path, f"{_DELETING}{step}")
                files.move(path, target)
                path = target
            self._thread.submit(files.remove_tree, path)


def _handler_options() -> dict[str, Any]:
    """Returns arguments of orbax's handler with which devices share the writing of large arrays only.

    By default it divides the writing of every replicated array among the devices, and compiles a program per
    part of each shape: several hundred at the first save, most of them for arrays of a few kilobytes.
    """
    # Readers expect the file that this store writes. It has no public name.
    store = getattr(ocp.type_handlers.get_type_handler(jax.Array), "_array_metadata_store", None)
    if store is None:
        return {}
    handler = ocp.type_handlers.ArrayHandler(
        array_metadata_store=store, min_slice_bytes_for_replica_parallel=_DIVIDED
    )
    return {"type_handler_registry": ocp.type_handlers.create_type_handler_registry((jax.Array, handler))}


def _describe(leaves: dict[str, jax.Array]) -> dict[str, dict]:
    digests = array_digests(leaves)
    return {
        name: {"shape": list(x.shape), "dtype": str(x.dtype), "digest": digests[name]}
        for name, x in leaves.items()
    }
