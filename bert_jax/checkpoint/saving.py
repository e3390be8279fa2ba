"""Saves the steps of a run in the background and restores them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import os
import re
import shutil
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from bert_jax.checkpoint.checksums import FILES, array_digests, write_file_digests
from bert_jax.checkpoint.leaves import PyTree, check_structure, flatten, nest
from bert_jax.checkpoint.reading import agree, describe, read_state
from bert_jax.checkpoint.steps import (
    FROZEN,
    METADATA_KEY,
    STOP,
    WRITTEN_LAST,
    Damaged,
    Step,
    Stop,
    absolute,
    is_committed,
    is_step,
    list_steps,
    one_line,
)
from bert_jax.checkpoint.terminal import close_unbegun, quieten_orbax
from bert_jax.errors import StorageError, UserError, file_error
from bert_jax.io import files
from bert_jax.io.wording import counted, some

_SET_ASIDE = "bad-"
_ABANDONED = "abandoned-"
_DAMAGED = re.compile(rf"{_SET_ASIDE}(\d+)(-\d+)?")  # the name of a step that was set aside
_DELETING = "deleting-"
_TEMPORARY = ".orbax-checkpoint-tmp"
_DIVIDED = 1 << 20  # bytes of a part, from which on several devices write one replicated array
_WRITTEN_LATER = ("_CHECKPOINT_METADATA",)  # orbax writes it after the checksums, as it completes a step


class Checkpointer:
    """Saves and restores the states of one run under `directory`.

    The caller must hold the lock of the work directory (`workdir.WorkDir`), since two checkpointers on one
    directory would overwrite each other's files. With several processes, all of them must make the same
    calls.

    Args:
        directory: the directory of the steps, created if missing. A local path, gs:// or s3://.
        keep: the number of newest steps to keep. A step that was saved because the run was stopped takes the
            place of no other, so that a run has the same steps to go back to however often it was stopped.
        keep_every: steps that are a multiple of this number are never deleted; 0 means none.
        log: called with one line when a step is set aside.
    """

    def __init__(self, directory: files.PathLike, *, keep: int = 3, keep_every: int = 0, log=print):
        if keep < 1:
            raise UserError(f"checkpoint.keep={keep}: the newest step has to be kept; set it to 1 or more")
        self._directory = absolute(directory)
        self._keep, self._keep_every, self._log = keep, keep_every, log
        quieten_orbax()
        self._orbax = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(**_handler_options()),
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._write_file_digests),
        )
        self._deletions = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint-deletion")
        self._stops: dict[int, Stop | None] = {}  # of the steps that have been saved or asked for
        self._saving: int | str | None = None
        self._has_frozen: bool | None = None  # None until it is known
        self._begun: int | str | None = None  # the last step given to orbax, whose error may arrive later
        self._has_failed = False  # whether the error of that step has been raised
        if jax.process_index() == 0:
            try:
                files.make_directory(self._directory)
            except OSError as error:
                message = (
                    f"{self._directory}: cannot be made ({error.strerror or error}); expected the "
                    "directory of the checkpoints: move what is there"
                )
                raise file_error(message, error) from error
            # Left by a run that was killed while it saved or deleted a step; not a valid step.
            for name in files.names(self._directory):
                path = os.path.join(self._directory, name)
                if _TEMPORARY in name or name.startswith(_DELETING):
                    files.remove_tree(path)
        multihost_utils.sync_global_devices("checkpoint_directory")

    @property
    def directory(self) -> str:
        """Returns the directory of the steps."""
        return self._directory

    def steps(self) -> list[int]:
        """Returns the steps on disk, unverified, oldest first, except one that is being written."""
        return [step for step in list_steps(self._directory) if step != self._saving]

    def save(self, step: int, state: PyTree, stop: Stop | None = None) -> None:
        """Starts to save `state` and returns once it is copied to the host, so that the caller may donate it.

        Waits for the previous save first. An existing step is not overwritten.

        Args:
            step: the step number, which becomes the name of the directory.
            state: pytree of jax.Array, all on the same devices with any sharding.
            stop: the stop for which the step is saved, if it is not one of the run's schedule.

        Raises:
            StorageError: the previous save failed.
        """
        self.wait()
        if step in self.agreed_steps():
            return
        leaves = flatten(state)
        frozen = {name: leaves.pop(name) for name in list(leaves) if name.startswith(f"{FROZEN}/")}
        described: dict[str, Any] = {"leaves": _describe(leaves)}
        if frozen:
            described[FROZEN] = self._save_frozen(frozen)
        if stop:
            described[STOP] = dataclasses.asdict(stop)
        self._stops[step] = stop
        self._saving = self._begun = step
        self._has_failed = False
        with self._explained():
            if jax.process_index() == 0 and not is_committed(self._path(step)):
                files.remove_tree(self._path(step))  # on gs://, a killed save leaves a partial step
            self._start_saving(self._path(step), leaves, described)

    def _start_saving(self, path: str, leaves: dict[str, jax.Array], described: dict[str, Any]) -> None:
        arguments = ocp.args.PyTreeSave(nest(leaves))
        self._orbax.save(epath.Path(path), args=arguments, custom_metadata={METADATA_KEY: described})

    def _save_frozen(self, leaves: dict[str, jax.Array]) -> dict[str, dict]:
        """Writes the frozen parameters next to the steps, unless those of earlier steps already exist.

        Returns:
            The description of the frozen parameters that each step records.

        Raises:
            StorageError: the save failed.
        """
        described = _describe(leaves)
        path = os.path.join(self._directory, FROZEN)
        if self._has_frozen is None:
            # Without a step, they are of a run that was killed before its first one, and may be others.
            self._has_frozen = bool(self.agreed_steps()) and self._primary_sees(os.path.join(path, FILES))
        if self._has_frozen:
            return described
        self._begun, self._has_failed = FROZEN, False
        with self._explained():
            if jax.process_index() == 0:
                files.remove_tree(path)
            self._saving = FROZEN
            self._start_saving(path, leaves, {"leaves": described})
            self._orbax.wait_until_finished()
            self._saving = None
        self._has_frozen = True
        return described

    def poll(self) -> None:
        """Raises the error of a save in the background, if any. Cheap enough to call at every step."""
        with self._explained():
            self._orbax.check_for_errors()

    def wait(self) -> None:
        """Waits until the last save is on disk, raises its error, and deletes the steps that are not kept."""
        if self._has_failed:  # orbax 0.12.8 raises the same error at every later call
            return
        with self._explained():
            self._orbax.wait_until_finished()
        if self._saving is not None:
            self._saving = None
            self._delete_old()

    def close(self) -> None:
        """Waits for saves and deletions; raises the error of the last save unless that was raised before."""
        try:
            self.wait()
        finally:
            self._deletions.shutdown(wait=True)
            # One failed save may have left several errors: orbax writes a step's metadata in another thread.
            with contextlib.suppress(Exception) if self._has_failed else self._explained():
                self._orbax.close()

    def restore_latest(self, abstract_state: PyTree) -> tuple[int, PyTree] | None:
        """Restores the newest step that is intact; returns None if no step was ever saved.

        A newer step that is damaged is renamed to `bad-STEP`, never deleted, and the number of lost steps is
        logged.

        Args:
            abstract_state: pytree of jax.ShapeDtypeStruct with shardings, onto which the state is restored.

        Returns:
            The step number and the state, or None.

        Raises:
            UserError: the steps have another structure, shape or dtype; or no step is intact.
        """
        lost: list[int] = []
        for step in reversed(self.agreed_steps()):
            try:
                state = agree(functools.partial(read_state, self._path(step), abstract_state))
            except Damaged as error:
                self._set_aside(step, str(error))
                lost.append(step)
                continue
            if lost:
                self._log(
                    f"warning: resuming from step {step}; {counted(lost[0] - step, 'step is', 'steps are')} "
                    "lost"
                )
            return step, state
        aside = [name for name in files.names(self._directory) if name.startswith(_SET_ASIDE)]
        if aside:
            raise UserError(
                f"{self._directory}: no checkpoint is intact ({', '.join(aside)} set aside); put a good copy "
                "back, or start from scratch in another work directory"
            )
        return None

    def abandon_after(self, step: int) -> None:
        """Renames the steps after `step` to `abandoned-STEP`, because the run goes back to `step`.

        The damaged ones are renamed too, so that they do not keep the run from going back to its start.
        """
        self.wait()
        if jax.process_index() == 0:
            for name in files.names(self._directory):
                number = _DAMAGED.sub(r"\1", name)
                if is_step(number) and int(number) > step:
                    self._rename(name, f"{_ABANDONED}{number}", f"the run goes back to step {step}")
        multihost_utils.sync_global_devices("checkpoint_abandon_after")

    def delete_from(self, step: int) -> None:
        """Deletes `step` and those after it, because the run comes there again, with other parameters."""
        self.wait()
        later = [found for found in self.agreed_steps() if found >= step]
        if later and jax.process_index() == 0:
            for found in later:
                self._delete(found)
        multihost_utils.sync_global_devices("checkpoint_delete_from")

    def check_space(self, abstract_state: PyTree) -> None:
        """Raises a StorageError if the disk has no room for one more step. URLs are not checked.

        All processes write into the same directory, so that there has to be room for the whole state.
        """
        needed = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(abstract_state))
        try:
            free = shutil.disk_usage(self._directory).free
        except OSError:
            return
        if free < needed:
            raise StorageError(
                f"{self._directory}: {free / 1e6:,.0f} MB are free and a checkpoint takes up to "
                f"{needed / 1e6:,.0f} MB; free some space or choose another --workdir"
            )

    def agreed_steps(self) -> list[int]:
        """Returns the steps that process 0 sees, oldest first; other file systems may show changes later."""
        return _agreed(self.steps() if jax.process_index() == 0 else [])

    def scheduled_steps(self) -> list[int]:
        """Returns the steps that process 0 sees, oldest first, except those of stops."""
        return _agreed(self._scheduled(self.steps()) if jax.process_index() == 0 else [])

    def stop_at(self, step: int) -> Stop | None:
        """Returns the stop for which process 0 sees that a step was saved; None for any other step."""
        stop = self._stop(step) if jax.process_index() == 0 and step in self.steps() else None
        found = _agreed([stop.began, stop.skipped, stop.spikes] if stop else [])
        return Stop(*found) if found else None

    def _scheduled(self, steps: list[int]) -> list[int]:
        return [step for step in steps if self._stop(step) is None]

    def _stop(self, step: int) -> Stop | None:
        if step not in self._stops:
            try:
                self._stops[step] = Step.open(self._path(step), check_files=False).stop
            except Damaged:
                self._stops[step] = None
        return self._stops[step]

    def _may_be_scheduled(self, step: int) -> bool:
        """Returns whether a step is one of the schedule or cannot be read, which must not end the run."""
        try:
            return self._stop(step) is None
        except (StorageError, UserError):
            return True

    def _set_aside(self, step: int, why: str) -> None:
        if jax.process_index() == 0:
            self._rename(str(step), f"{_SET_ASIDE}{step}", why)
        multihost_utils.sync_global_devices("checkpoint_set_aside")

    def _rename(self, name: str, wanted: str, why: str) -> None:
        """Renames a directory to the wanted name, or to one with a number where that exists."""
        names = files.names(self._directory)
        numbered = (f"{wanted}-{number}" for number in itertools.count(2))
        target = next(one for one in itertools.chain([wanted], numbered) if one not in names)
        path = os.path.join(self._directory, name)
        files.move(path, os.path.join(self._directory, target))
        self._log(f"warning: {path} is set aside as {target}: {why}")

    def _delete_old(self) -> None:
        if jax.process_index() != 0:
            return
        steps = self.steps()
        newest_first = steps[::-1]
        # Reads the metadata of no more steps than are needed, since `keep_every` may have kept many.
        scheduled = list(itertools.islice(filter(self._may_be_scheduled, newest_first), self._keep))
        others = [step for step in newest_first if step not in scheduled]
        kept = [*scheduled, *others[: self._keep - len(scheduled)]]
        for step in steps[:-1]:
            if step not in kept and not (self._keep_every and step % self._keep_every == 0):
                self._delete(step)

    def _delete(self, step: int) -> None:
        path = self._path(step)
        # An interrupted deletion must not leave a directory that looks like a step.
        if files.scheme(path) == "gs":
            for name in WRITTEN_LAST:
                files.remove(os.path.join(path, name), missing_ok=True)
        else:
            target = os.path.join(self._directory, f"{_DELETING}{step}")
            files.move(path, target)
            path = target
        self._deletions.submit(files.remove_tree, path)

    def _write_file_digests(self) -> None:
        """Writes the checksums of a step's files; orbax calls this in its own thread.

        At that time the step is written, but not yet renamed (or, on an object store, not yet marked as
        complete).
        """
        if jax.process_index() == 0:
            for name in files.names(self._directory):
                if name == str(self._saving) or name.startswith(f"{self._saving}{_TEMPORARY}"):
                    write_file_digests(os.path.join(self._directory, name), but=_WRITTEN_LATER)

    def _path(self, step: int) -> str:
        return os.path.join(self._directory, str(step))

    def _primary_sees(self, path: str) -> bool:
        exists = np.int32(jax.process_index() == 0 and files.exists(path))
        return bool(multihost_utils.broadcast_one_to_all(exists))

    def check_frozen(self, frozen: PyTree) -> None:
        """Raises a UserError if frozen parameters differ from those that the run was saved with.

        Args:
            frozen: frozen parameters, as in the state, on the devices. Those that are not saved, and those
                that are saved and not given, are not compared.

        Raises:
            UserError: the parameters differ; the message names them.
        """
        path = os.path.join(self._directory, FROZEN)
        if not self._primary_sees(os.path.join(path, FILES)):
            return
        saved = describe(path)
        arrays = {name: x for name, x in flatten({FROZEN: frozen}).items() if name in saved}
        check_structure(path, {name: saved[name] for name in arrays}, arrays)
        given = _describe(arrays)
        if changed := [name for name, x in given.items() if saved[name].digest != x["digest"]]:
            raise UserError(
                f"{some(changed)}: the frozen parameters are not those that {self._directory} was trained "
                "with; give the same checkpoint as before, or start another work directory"
            )

    @contextlib.contextmanager
    def _explained(self):
        """Turns any error of a save into a one-line StorageError that lists the intact steps."""
        try:
            yield
        except Exception as error:
            self._saving, self._has_failed = None, True
            close_unbegun()
            raise StorageError(
                f"{self._directory}: saving step {self._begun} failed ({one_line(error)}); intact steps: "
                f"{', '.join(map(str, self.steps())) or 'none'}; check the storage and run the same command"
            ) from error


def _handler_options() -> dict[str, Any]:
    """Returns arguments of orbax's handler that divide large replicated arrays only.

    By default it divides the writing of every replicated array among the devices, and compiles a program per
    part of each shape: several hundred at the first save, most of them for arrays of a few kilobytes.
    """
    # Readers expect the file that this store writes. No public name leads to it, so another version of orbax
    # may be without, which is slower and otherwise the same.
    store = getattr(ocp.type_handlers.get_type_handler(jax.Array), "_array_metadata_store", None)
    if store is None:
        return {}
    handler = ocp.type_handlers.ArrayHandler(
        array_metadata_store=store, min_slice_bytes_for_replica_parallel=_DIVIDED
    )
    return {"type_handler_registry": ocp.type_handlers.create_type_handler_registry((jax.Array, handler))}


def _agreed(numbers: list[int]) -> list[int]:
    """Returns the numbers of process 0 in all processes."""
    count = int(multihost_utils.broadcast_one_to_all(np.int32(len(numbers))))
    given = np.array(numbers if jax.process_index() == 0 else np.zeros(count), np.int32)
    return np.asarray(multihost_utils.broadcast_one_to_all(given)).tolist() if count else []


def _describe(leaves: dict[str, jax.Array]) -> dict[str, dict]:
    """Returns the shape, dtype and checksum of each leaf, as they are stored in a step's metadata."""
    digests = array_digests(leaves)
    return {
        name: {"shape": list(x.shape), "dtype": str(x.dtype), "digest": digests[name]}
        for name, x in leaves.items()
    }
