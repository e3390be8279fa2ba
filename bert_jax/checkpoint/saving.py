"""Saves the steps of a run in the background and restores them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
from etils import epath

from bert_jax.checkpoint.checksums import array_digests
from bert_jax.checkpoint.directory import StepDirectory
from bert_jax.checkpoint.leaves import PyTree, check_structure, flatten, nest
from bert_jax.checkpoint.reading import describe, read_state
from bert_jax.checkpoint.steps import (
    FROZEN,
    METADATA_KEY,
    Damaged,
    agree,
    is_committed,
    one_line,
)
from bert_jax.checkpoint.terminal import ignore_unbegun, quieten_orbax, root_logger_kept
from bert_jax.errors import StorageError, UserError
from bert_jax.io import files
from bert_jax.io.wording import counted, some
from bert_jax.parallel import collective

with root_logger_kept():
    import orbax.checkpoint as ocp

_DIVIDED = 1 << 20  # bytes of a part, from which on several devices write one replicated array


class Checkpointer:
    """Saves and restores the states of one run under `directory`.

    The caller must hold the lock of the work directory (`workdir.WorkDir`), since two checkpointers on one
    directory would overwrite each other's files. With several processes, all of them must make the same
    calls.

    Args:
        directory: the directory of the steps, created if missing. A local path, gs:// or s3://.
        keep: the number of newest steps to keep.
        keep_every: steps that are a multiple of this number are never deleted; 0 means none.
        log: called with one line when a step is set aside.
        waiting: makes the context of a save, and of waiting for its end, which may take long.

    Attributes:
        saved: the steps on disk.
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
        if keep < 1:
            raise UserError(f"checkpoint.keep={keep}: the newest step has to be kept; set it to 1 or more")
        self._log, self._waiting = log, waiting
        quieten_orbax()
        self._orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**_handler_options()))
        self.saved = StepDirectory(directory, keep, keep_every, log)
        self._has_frozen: bool | None = None  # None until it is known
        self._begun: int | str | None = None  # the last step given to orbax, whose error may arrive later
        self._has_failed = False  # whether the error of that step has been raised

    def save(self, step: int, state: PyTree) -> None:
        """Starts to save `state` and returns once it is copied to the host, so that the caller may donate it.

        Waits for the previous save first. An existing step is not overwritten.

        Args:
            step: the step number, which becomes the name of the directory.
            state: pytree of jax.Array, all on the same devices with any sharding.

        Raises:
            StorageError: the previous save failed.
        """
        with self._waiting():
            self._save(step, state)

    def _save(self, step: int, state: PyTree) -> None:
        self.wait()
        if step in self.saved.agreed_steps():
            return
        leaves = flatten(state)
        frozen = {name: leaves.pop(name) for name in list(leaves) if name.startswith(f"{FROZEN}/")}
        described: dict[str, Any] = {"leaves": _describe(leaves)}
        if frozen:
            described[FROZEN] = self._save_frozen(frozen)
        self.saved.begin(step)
        self._begun = step
        self._has_failed = False
        with self._explained():
            path = self.saved.of(step)
            if jax.process_index() == 0 and not is_committed(path):
                files.remove_tree(path)  # on gs://, a killed save leaves a partial step
            self._start_saving(path, leaves, described)

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
        path = os.path.join(self.saved.path, FROZEN)
        if self._has_frozen is None:
            # Without a step, they are of a run that was killed before its first one, and may be others.
            has_steps = bool(self.saved.agreed_steps())
            self._has_frozen = has_steps and self._primary_sees(path)
        if self._has_frozen:
            return described
        self._begun, self._has_failed = FROZEN, False
        with self._explained():
            if jax.process_index() == 0:
                files.remove_tree(path)
            self.saved.begin(FROZEN)
            self._start_saving(path, leaves, {"leaves": described})
            self._orbax.wait_until_finished()
            self.saved.end()
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
        with self._waiting(), self._explained():
            self._orbax.wait_until_finished()
            if self.saved.end():
                self.saved.delete_old()

    def close(self) -> None:
        """Waits for saves and deletions; raises the error of the last save unless that was raised before."""
        try:
            self.wait()
        finally:
            self.saved.close()
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
        for step in reversed(self.saved.agreed_steps()):
            try:
                state = agree(functools.partial(read_state, self.saved.of(step), abstract_state))
            except Damaged as error:
                self.saved.set_aside(step, str(error))
                lost.append(step)
                continue
            if lost:
                self._log(
                    f"warning: resuming from step {step}; {counted(lost[0] - step, 'step is', 'steps are')} "
                    "lost"
                )
            return step, state
        if damaged := self.saved.damaged():
            raise UserError(
                f"{self.saved.path}: no checkpoint is intact ({', '.join(damaged)} set aside); put a good "
                "copy back, or start from scratch in another work directory"
            )
        return None

    def abandon_after(self, step: int) -> None:
        """Waits for the last save, and renames the steps after `step`, because the run goes back to it."""
        self.wait()
        self.saved.abandon_after(step)

    def _primary_sees(self, path: str) -> bool:
        return collective.call_in_primary(lambda: files.exists(path) and is_committed(path))

    def check_frozen(self, frozen: PyTree) -> None:
        """Raises a UserError if frozen parameters differ from those that the run was saved with.

        Args:
            frozen: frozen parameters, as in the state, on the devices. Those that are not saved, and those
                that are saved and not given, are not compared.

        Raises:
            UserError: the parameters differ; the message names them.
        """
        path = os.path.join(self.saved.path, FROZEN)
        if not self._primary_sees(path):
            return
        saved = describe(path)
        arrays = {name: x for name, x in flatten({FROZEN: frozen}).items() if name in saved}
        check_structure(path, {name: saved[name] for name in arrays}, arrays)
        given = _describe(arrays)
        if changed := [name for name, x in given.items() if saved[name].digest != x["digest"]]:
            raise UserError(
                f"{some(changed)}: the frozen parameters are not those that {self.saved.path} was trained "
                "with; give the same checkpoint as before, or start another work directory"
            )

    @contextlib.contextmanager
    def _explained(self):
        """Turns any error of a save into a one-line StorageError that lists the intact steps."""
        try:
            yield
        except Exception as error:
            self._has_failed = True
            self.saved.end()
            ignore_unbegun()
            raise StorageError(
                f"{self.saved.path}: saving step {self._begun} failed ({one_line(error)}); intact steps: "
                f"{', '.join(map(str, self.saved.steps())) or 'none'}; check the storage and run the same "
                "command"
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


def _describe(leaves: dict[str, jax.Array]) -> dict[str, dict]:
    """Returns the shape, dtype and checksum of each leaf, as they are stored in a step's metadata."""
    digests = array_digests(leaves)
    return {
        name: {"shape": list(x.shape), "dtype": str(x.dtype), "digest": digests[name]}
        for name, x in leaves.items()
    }
