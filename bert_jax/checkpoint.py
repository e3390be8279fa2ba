"""Checkpoints: save in the background, verify on restore, fall back, load weights from elsewhere.

The only importer of orbax. A step is one orbax directory `checkpoints/STEP/`, written beside its place and
renamed when complete. Orbax restores an array file with a flipped bit without an error, so every step carries
two kinds of digests, which become visible with it:

- `files.json`, of the bytes of every file, computed in the background once they are written. It is checked
  before orbax reads anything: it names the file, and a torn one never gets as far as TensorStore.
- one for each leaf, in the step's metadata with its shape and dtype, computed on the devices from the values
  that are saved and again from those restored. It does not depend on how a leaf is split over devices or
  hosts, so nothing is gathered, and a step saved on one mesh is verified on any other.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from bert_jax.digests import array_digests, find_damaged_file, write_file_digests
from bert_jax.errors import UserError

PyTree = Any

_METADATA_KEY = "bert_jax"
_PARAMS = "params/"
_SET_ASIDE = "bad-"
_DELETING = "deleting-"
_TEMPORARY = ".orbax-checkpoint-tmp"
_WRITTEN_LATER = ("_CHECKPOINT_METADATA",)  # by orbax, as it completes a step
_EXPECTED = "expected a work directory or one of its checkpoints/STEP directories"


class _Damaged(Exception):
    """A step that cannot be trusted: incomplete, unreadable, or with other values than were saved."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """What a step's metadata says of one array: shape, dtype name and digest (16 hex digits)."""

    shape: tuple[int, ...]
    dtype: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Report:
    """What `load_params` did, by names like `encoder/pooler/kernel`.

    Attributes:
        source: the step directory that was read.
        loaded: parameters taken from the checkpoint.
        new: parameters asked for that the checkpoint does not have.
        unused: parameters of the checkpoint that were not asked for.
    """

    source: str
    loaded: tuple[str, ...]
    new: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.new)
        text = f"loaded {len(self.loaded)} of {total} parameters from {self.source}"
        for what, names in (("new", self.new), ("not used", self.unused)):
            text += f"; {what}: {', '.join(names)}" if names else ""
        return text


class Checkpointer:
    """Saves and restores one run's states under `directory`.

    The caller holds the lock of the work directory (`workdir.WorkDir`): two of these on one directory would
    overwrite each other. With several processes every one of them makes the same calls.

    Args:
        directory: where the steps go; made when missing. Any path that etils.epath opens.
        keep: how many of the newest steps to keep.
        keep_every: steps that are a multiple of it are kept for good; 0 for none.
        log: called with one line when a step is set aside.
    """

    def __init__(self, directory: epath.PathLike, *, keep: int = 3, keep_every: int = 0, log=print):
        if keep < 1:
            raise UserError(f"checkpoint.keep={keep}: the newest step has to be kept; set it to 1 or more")
        self._directory = _absolute(directory)
        self._keep, self._keep_every, self._log = keep, keep_every, log
        _quieten_orbax()
        self._orbax = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(),
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._write_file_digests),
        )
        self._deletions = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint-deletion")
        self._saving: int | None = None
        if jax.process_index() == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            # Left by a run that was killed in a save or in a deletion: never, or no longer, a step.
            for path in self._directory.iterdir():
                if _TEMPORARY in path.name or path.name.startswith(_DELETING):
                    path.rmtree(missing_ok=True)

    def steps(self) -> list[int]:
        """The steps on disk, oldest first, without one that is being written. They are not verified here."""
        return [step for step in _list_steps(self._directory) if step != self._saving]

    def save(self, step: int, state: PyTree) -> None:
        """Starts to save `state`; returns when it is copied to the host, so that it may be donated then.

        Waits for the previous save first. A step that is there already is left as it is.

        Args:
            step: the name of the directory.
            state: pytree of jax.Array, sharded in any way over the same devices.

        Raises:
            UserError: the previous save failed.
        """
        self.wait()
        if step in self.steps():
            return
        leaves = _flatten(state)
        digests = array_digests(leaves)
        described = {
            name: {"shape": list(x.shape), "dtype": str(x.dtype), "digest": digests[name]}
            for name, x in leaves.items()
        }
        self._saving = step
        with self._explained():
            self._orbax.save(
                self._directory / str(step),
                args=ocp.args.PyTreeSave(_nest(leaves)),
                custom_metadata={_METADATA_KEY: {"leaves": described}},
            )

    def poll(self) -> None:
        """Raises the error of a save in the background, if there is one. Cheap: call it at every step."""
        with self._explained():
            self._orbax.check_for_errors()

    def wait(self) -> None:
        """Waits until the last save is on disk, raises its error, deletes the steps that are not kept."""
        with self._explained():
            self._orbax.wait_until_finished()
        if self._saving is not None:
            self._saving = None
            self._delete_old()

    def close(self) -> None:
        """Waits for saves and deletions, and raises the error of the last save."""
        try:
            self.wait()
        finally:
            self._deletions.shutdown(wait=True)
            self._orbax.close()

    def restore_latest(self, abstract_state: PyTree) -> tuple[int, PyTree] | None:
        """The newest step that reads back as it was saved, or None where no step was ever saved.

        A newer one that does not is renamed to `bad-STEP`, never deleted, and the steps lost are told.

        Args:
            abstract_state: pytree of jax.ShapeDtypeStruct with shardings, onto which the state is restored.

        Raises:
            UserError: the steps are of another structure, shape or dtype; or no step is good.
        """
        lost: list[int] = []
        for step in reversed(_list_steps(self._directory)):
            try:
                state = self._restore(step, abstract_state)
            except _Damaged as error:
                self._set_aside(step, str(error))
                lost.append(step)
                continue
            if lost:
                self._log(f"warning: resuming from step {step}; {lost[0] - step} steps are lost")
            return step, state
        aside = sorted(path.name for path in self._directory.iterdir() if path.name.startswith(_SET_ASIDE))
        if aside:
            raise UserError(
                f"{self._directory}: no checkpoint is intact ({', '.join(aside)} set aside); put a good copy "
                "back, or start from scratch in another work directory"
            )
        return None

    def restore(self, step: int, abstract_state: PyTree) -> PyTree:
        """The state of one step, onto `abstract_state` as `restore_latest` does it, with no fallback.

        Raises:
            UserError: no such step, another structure, or a damaged step (which is left where it is).
        """
        if step not in self.steps():
            have = ", ".join(map(str, self.steps())) or "none"
            raise UserError(f"{self._directory}: no step {step}; there are: {have}")
        try:
            return self._restore(step, abstract_state)
        except _Damaged as error:
            raise UserError(f"{self._directory / str(step)}: {error}; choose another step") from error

    def check_space(self, abstract_state: PyTree) -> None:
        """Raises UserError when the disk has no room for one more step. Only local paths can tell."""
        sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(abstract_state)]
        needed = sum(sizes) // jax.process_count()
        try:
            free = shutil.disk_usage(self._directory).free
        except OSError:
            return
        if free < needed:
            raise UserError(
                f"{self._directory}: {free / 1e6:,.0f} MB are free and a checkpoint takes up to "
                f"{needed / 1e6:,.0f} MB; free some space or choose another --workdir"
            )

    def _restore(self, step: int, abstract_state: PyTree) -> PyTree:
        return _agree(lambda: _read_state(self._directory / str(step), abstract_state))

    def _set_aside(self, step: int, why: str) -> None:
        if jax.process_index() == 0:
            names = {path.name for path in self._directory.iterdir()}
            target, number = f"{_SET_ASIDE}{step}", 1
            while target in names:
                number += 1
                target = f"{_SET_ASIDE}{step}-{number}"
            (self._directory / str(step)).rename(self._directory / target)
            self._log(f"warning: {self._directory / str(step)} is set aside as {target}: {why}")
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("checkpoint_set_aside")

    def _delete_old(self) -> None:
        if jax.process_index() != 0:
            return
        for step in self.steps()[: -self._keep]:
            if not (self._keep_every and step % self._keep_every == 0):
                path = self._directory / str(step)
                if "://" not in str(path):
                    # A deletion that is cut short must not leave something that looks like a step.
                    path = path.rename(self._directory / f"{_DELETING}{step}")
                self._deletions.submit(path.rmtree, missing_ok=True)

    def _write_file_digests(self) -> None:
        """Called by orbax in its thread when a step is written and not yet renamed (or, on an object store,
        not yet marked as complete)."""
        if jax.process_index() == 0:
            for path in self._directory.iterdir():
                if path.name == str(self._saving) or path.name.startswith(f"{self._saving}{_TEMPORARY}"):
                    write_file_digests(path, but=_WRITTEN_LATER)

    @contextlib.contextmanager
    def _explained(self):
        """Turns whatever a save raised into one line that says what is still good."""
        try:
            yield
        except Exception as error:
            step, self._saving = self._saving, None
            raise UserError(
                f"{self._directory}: saving step {step} failed ({_one_line(error)}); intact: "
                f"{', '.join(map(str, self.steps())) or 'none'}; see to the disk, then run the same command"
            ) from error


def describe(path: epath.PathLike) -> dict[str, Leaf]:
    """Every leaf of a step directory, from its metadata; no array is read.

    Raises:
        UserError: `path` is no complete step of bert_jax.
    """
    try:
        return _read_metadata(_absolute(path), check_files=False)
    except _Damaged as error:
        raise UserError(f"{path}: {error}") from error


def verify(path: epath.PathLike) -> dict[str, Leaf]:
    """Reads a whole step directory on one device, compares it with its digests, and describes it.

    Raises:
        UserError: naming what is not as it was saved.
    """
    path = _absolute(path)
    try:
        leaves = _read_metadata(path)
        _read_arrays(path, _on_one_device(leaves), leaves)
    except _Damaged as error:
        raise UserError(f"{path}: {error}") from error
    return leaves


def load_state(path: epath.PathLike, abstract_state: PyTree, *, log=print) -> tuple[str, PyTree]:
    """A state of another run, which is left as it is: (the step directory that was read, the state).

    Args:
        path, log: as for `load_params`.
        abstract_state: pytree of jax.ShapeDtypeStruct with shardings.

    Raises:
        UserError: no checkpoint there, another structure, shape or dtype, no good step.
    """
    return _read_newest(path, lambda step: (str(step), _read_state(step, abstract_state)), log)


def load_params(path: epath.PathLike, abstract_params: PyTree, *, log=print) -> tuple[dict, Report]:
    """Loads the parameters that `abstract_params` and a checkpoint have in common.

    Args:
        path: a work directory, whose newest good step is taken, its `checkpoints`, or one step directory.
        abstract_params: nested dict of jax.ShapeDtypeStruct. Without a sharding, a parameter goes to the
            default device; with another dtype than the saved one, it is cast.
        log: called with one line when a newer step is damaged and an older one is read.

    Returns:
        The nested dict of the parameters that were loaded, without those that are new, and the report.

    Raises:
        UserError: no checkpoint there, a parameter of another shape, nothing in common, no good step.
    """
    wanted = {_PARAMS + name: x for name, x in _flatten(abstract_params).items()}
    return _read_newest(path, lambda step: _load_params(step, wanted), log)


def _absolute(path: epath.PathLike) -> epath.Path:
    """Orbax takes absolute paths alone, and `epath.Path.absolute` would take gs:// for a relative one."""
    path = os.fspath(path)
    return epath.Path(path if "://" in path else os.path.abspath(path))


def _read_state(path: epath.Path, abstract_state: PyTree) -> PyTree:
    wanted = _flatten(abstract_state)
    saved = _read_metadata(path)
    _check_structure(path, saved, wanted)
    restored = _read_arrays(path, wanted, saved)
    return jax.tree.unflatten(jax.tree.structure(abstract_state), list(restored.values()))


def _read_newest(path: epath.PathLike, read, log):
    failures = []
    for step in _find_steps(_absolute(path)):
        try:
            return _agree(lambda step=step: read(step))
        except _Damaged as error:
            failures.append(f"{step.name}: {error}")
            log(f"warning: {step} is damaged: {error}")
    raise UserError(f"{path}: no checkpoint is intact ({'; '.join(failures)})")


def _load_params(path: epath.Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[dict, Report]:
    saved = _read_metadata(path)
    params = {name: leaf for name, leaf in saved.items() if name.startswith(_PARAMS)}
    _check_shapes(path, params, wanted)
    common = [name for name in wanted if name in params]
    if not common:
        raise UserError(
            f"{path}: it has none of the {len(wanted)} parameters of this model (it has {_some(params)}; "
            f"the model has {_some(wanted)})"
        )
    onto = _on_one_device({name: params[name] for name in common})
    for name in common:
        if getattr(wanted[name], "sharding", None) is not None:
            onto[name] = onto[name].update(sharding=wanted[name].sharding)
    arrays = _read_arrays(path, onto, saved)
    strip = len(_PARAMS)
    report = Report(
        source=str(path),
        loaded=tuple(name[strip:] for name in common),
        new=tuple(name[strip:] for name in wanted if name not in params),
        unused=tuple(name[strip:] for name in params if name not in wanted),
    )
    return _nest({name[strip:]: arrays[name].astype(wanted[name].dtype) for name in common}), report


def _find_steps(path: epath.Path) -> list[epath.Path]:
    """The step directories that `path` stands for, newest first."""
    if not path.exists():
        raise UserError(f"{path}: no such checkpoint; {_EXPECTED}")
    directory = path / "checkpoints"
    if not directory.is_dir():
        directory = path
        if path.name.isdigit():
            return [path]
    steps = [directory / str(step) for step in reversed(_list_steps(directory))] if directory.is_dir() else []
    if not steps:
        raise UserError(f"{path}: no checkpoint in it; {_EXPECTED}")
    return steps


def _list_steps(directory: epath.Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def _read_metadata(path: epath.Path, check_files: bool = True) -> dict[str, Leaf]:
    try:
        if not path.is_dir() or not any(path.iterdir()):
            raise _Damaged("it is empty")
        if check_files:
            share = dict(part=jax.process_index(), parts=jax.process_count())
            if (name := find_damaged_file(path, **share)) is not None:
                raise _Damaged(f"{name} is missing or has other bytes than were written")
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            leaves = reader.metadata(path).custom_metadata[_METADATA_KEY]["leaves"]
        return {name: Leaf(tuple(x["shape"]), x["dtype"], x["digest"]) for name, x in leaves.items()}
    except (_Damaged, UserError):
        raise
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # orbax raises many kinds, by what is missing or malformed
        raise _Damaged(f"its metadata cannot be read ({_one_line(error)})") from error


def _read_arrays(
    path: epath.Path, wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Leaf]
) -> dict[str, jax.Array]:
    """The arrays named in `wanted`, in its order, verified."""
    item = _nest(wanted)
    args = ocp.args.PyTreeRestore(
        item=item,
        restore_args=ocp.checkpoint_utils.construct_restore_args(item),
        partial_restore=len(wanted) < len(saved),
    )
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            restored = _flatten(reader.restore(path, args=args))
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except jax.errors.JaxRuntimeError:
        raise  # the devices' trouble, such as too little memory, and not the file's
    except Exception as error:
        raise _Damaged(f"its arrays cannot be read ({_one_line(error)})") from error
    arrays = {name: restored[name] for name in wanted}
    digests = array_digests(arrays)
    wrong = [name for name in wanted if digests[name] != saved[name].digest]
    if wrong:
        raise _Damaged(f"the values of {_some(wrong)} are not those that were saved")
    return arrays


def _on_one_device(leaves: Mapping[str, Leaf]) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=sharding)
        for name, leaf in leaves.items()
    }


def _check_structure(
    path: epath.Path, saved: Mapping[str, Leaf], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> None:
    _check_shapes(path, saved, wanted)
    only_here = [name for name in wanted if name not in saved]
    only_there = [name for name in saved if name not in wanted]
    if only_here or only_there:
        differing = [f"it has no {_some(only_here)}"] if only_here else []
        differing += [f"it has {_some(only_there)} beyond this one"] if only_there else []
        raise UserError(f"{path} is of another model or optimizer: {'; '.join(differing)}")
    for name, x in wanted.items():
        if jnp.dtype(saved[name].dtype) != x.dtype:
            raise UserError(f"{path}: {name} is {saved[name].dtype} there and {x.dtype} here")


def _check_shapes(
    path: epath.Path, saved: Mapping[str, Leaf], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> None:
    differing = [name for name, x in wanted.items() if name in saved and saved[name].shape != tuple(x.shape)]
    if differing:
        name, more = differing[0], len(differing) - 1
        raise UserError(
            f"{path} is of another model: {name} has shape {saved[name].shape} there and "
            f"{tuple(wanted[name].shape)} here" + (f", and {more} more differ" if more else "")
        )


def _flatten(tree: PyTree) -> dict[str, Any]:
    """Leaves by name, like `params/encoder/pooler/kernel`, in the order of jax.tree.leaves."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _nest(flat: Mapping[str, Any]) -> dict:
    tree: dict = {}
    for name, leaf in flat.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def _agree(read):
    """Calls `read` in every process; damage seen by one is damage for all, so that all do the same next."""
    damage, result = None, None
    try:
        result = read()
    except _Damaged as error:
        damage = error
    if jax.process_count() > 1:
        seen = multihost_utils.process_allgather(np.array(damage is not None)).any()
        if seen and damage is None:
            damage = _Damaged("another process could not read it")
    if damage is not None:
        raise damage
    return result


def _some(names: Iterable[str], limit: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    # TensorStore tells a page; what the operating system said stands in the middle of it.
    if reason := re.search(r"([^:]+) \[os_error_code", text):
        return reason[1].strip()
    return f"{type(error).__name__}: {text[:160]}"


def _quieten_orbax() -> None:
    """Orbax logs a traceback of what it also raises; the one line that is made of it is enough."""
    logger = logging.getLogger("absl")
    if not any(isinstance(each, _NotOrbax) for each in logger.filters):
        logger.addFilter(_NotOrbax())


class _NotOrbax(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname or record.levelno >= logging.CRITICAL
