"""Reads and verifies steps, of this run or another, and restores them onto explicit shardings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from bert_jax.checkpoint.checksums import FILES, array_digests, find_damaged_file
from bert_jax.checkpoint.leaves import (
    Leaf,
    PyTree,
    Report,
    check_shapes,
    check_structure,
    flatten,
    nest,
    some,
)
from bert_jax.checkpoint.terminal import quieten_orbax
from bert_jax.errors import StorageError, UserError
from bert_jax.io import checks, files
from bert_jax.objectives import adapters
from bert_jax.objectives.adapters import assemble, group_parts

METADATA_KEY = "bert_jax"
WRITTEN_LAST = ("commit_success.txt", FILES)  # orbax writes the first
FROZEN = "frozen"  # the directory of the parameters that all steps share, and their name in a state
_PARAMS = "params/"
_FROZEN = (
    f"{FROZEN}/{adapters.PARAMS}/"  # frozen parameters of the model, which is not all that may be frozen
)
_EXPECTED = "expected a work directory or one of its checkpoints/STEP directories"


class Damaged(Exception):
    """A step that is incomplete or unreadable, or whose values are not those that were saved."""


def describe(path: files.PathLike) -> dict[str, Leaf]:
    """Returns every leaf of a step directory from its metadata, without reading any array.

    Raises:
        UserError: `path` is not a complete step of bert_jax.
    """
    try:
        return _read_metadata(absolute(path), check_files=False)
    except Damaged as error:
        raise UserError(f"{path}: {error}") from error


def parameter_names(path: files.PathLike, *, log=print) -> frozenset[str]:
    """Returns the names of the parameters in a checkpoint, trained and frozen, without reading any array.

    Args:
        path: See `load_params`. If there is no checkpoint, the result is empty.
        log: See `load_params`.
    """
    try:
        _find_steps(absolute(path))
    except UserError:
        return frozenset()

    def read(step: str) -> frozenset[str]:
        leaves = _read_metadata(step, check_files=False) | _read_frozen_record(step)
        return frozenset(_model_name(name) for name in leaves if name.startswith((_PARAMS, _FROZEN)))

    return _read_newest(path, read, log)


def verify(path: files.PathLike) -> dict[str, Leaf]:
    """Reads a whole step onto one device, verifies its checksums, and returns its leaves.

    Raises:
        UserError: A file or a leaf differs from what was saved; the message names it.
    """
    path = absolute(path)
    try:
        leaves = _read_metadata(path)
        _read_arrays(path, _on_one_device(leaves), leaves)
        if shared := _read_frozen_record(path):
            _read_frozen(path, _on_one_device(shared), shared)
    except Damaged as error:
        raise UserError(f"{path}: {error}") from error
    return leaves


def load_state(path: files.PathLike, abstract_state: PyTree, *, log=print) -> tuple[str, PyTree]:
    """Restores a state of another run, whose checkpoints are not modified.

    Args:
        path: See `load_params`.
        abstract_state: Pytree of jax.ShapeDtypeStruct with shardings.
        log: See `load_params`.

    Returns:
        The step directory that was read, and the state.

    Raises:
        UserError: There is no checkpoint, no step is intact, or the structure, a shape or a dtype differs.
    """
    return _read_newest(path, lambda step: (str(step), read_state(step, abstract_state)), log)


def load_params(path: files.PathLike, abstract_params: PyTree, *, log=print) -> tuple[dict, Report]:
    """Loads the parameters that `abstract_params` and a checkpoint have in common.

    Args:
        path: A work directory or its `checkpoints`, whose newest intact step is read, or one step directory.
        abstract_params: Nested dict of jax.ShapeDtypeStruct. A parameter without a sharding is placed on the
            default device; a parameter saved with another dtype is cast.
        log: Called with one line when a newer step is damaged and an older one is read.

    Returns:
        The nested dict of the loaded parameters, without those that are new, and the report.

    Raises:
        UserError: There is no checkpoint, no step is intact, a shape differs, or there is no common
            parameter.
    """
    wanted = flatten(abstract_params)
    return _read_newest(path, lambda step: _load_params(step, wanted), log)


def read_params(path: files.PathLike, *, log=print) -> tuple[str, dict[str, np.ndarray]]:
    """Reads all parameters of the model of a checkpoint into the host's memory.

    Args:
        path: See `load_params`.
        log: See `load_params`.

    Returns:
        The step directory that was read, and the arrays by name.

    Raises:
        UserError: There is no checkpoint, or no step is intact.
    """
    source, trained, frozen = read_stored(path, log=log)
    return source, assemble(trained | frozen)


def read_stored(
    path: files.PathLike, *, log=print
) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Reads the trained and the frozen parameters of a checkpoint as they are stored; see `assemble`.

    Args:
        path: See `load_params`.
        log: See `load_params`.

    Returns:
        The step directory that was read, and the arrays of both by name.

    Raises:
        UserError: There is no checkpoint, or no step is intact.
    """

    def read(step: str) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
        saved, shared = _read_metadata(step), _read_frozen_record(step)
        leaves = {
            name: leaf for name, leaf in (saved | shared).items() if name.startswith((_PARAMS, _FROZEN))
        }
        arrays = _read_shared_too(step, _on_one_device(leaves), saved, shared)
        trained, frozen = (
            {_model_name(name): np.asarray(x) for name, x in arrays.items() if name.startswith(prefix)}
            for prefix in (_PARAMS, _FROZEN)
        )
        return str(step), trained, frozen

    return _read_newest(path, read, log)


def absolute(path: files.PathLike) -> str:
    """Returns the absolute path of checkpoints, which orbax requires, or their URL.

    Raises:
        UserError: orbax and TensorStore have no client for the URL.
    """
    checks.check_checkpoint_place(path)
    return files.absolute(path)


def read_state(path: str, abstract_state: PyTree) -> PyTree:
    """Restores a state from a step directory, verified by its checksums.

    Args:
        path: The step directory.
        abstract_state: Pytree of jax.ShapeDtypeStruct with shardings.

    Raises:
        Damaged: The step cannot be trusted.
        UserError: The structure, a shape or a dtype differs, or the frozen parameters cannot be read.
    """
    wanted = flatten(abstract_state)
    saved, shared = _read_metadata(path), _read_frozen_record(path)
    frozen = group_parts(name.removeprefix(f"{FROZEN}/") for name in wanted if name.startswith(_FROZEN))
    if trained := [name for name in frozen if name in saved]:
        raise UserError(
            f"{path}: {some(trained)} are trained there and frozen here, by another optimizer.freeze or by "
            "another version of bert-jax; start another work directory from it with --config.init_from"
        )
    check_structure(path, saved | shared, wanted)
    restored = _read_shared_too(path, wanted, saved, shared)
    return jax.tree.unflatten(jax.tree.structure(abstract_state), list(restored.values()))


def _read_shared_too(
    path: str,
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    saved: Mapping[str, Leaf],
    shared: Mapping[str, Leaf],
) -> dict[str, jax.Array]:
    """Returns the arrays of a step, in the order of `wanted`, with frozen ones from beside the step.

    Raises:
        Damaged: the step cannot be trusted.
        UserError: the frozen parameters cannot be read.
    """
    of_step = {name: x for name, x in wanted.items() if name not in shared}
    frozen = {name: x for name, x in wanted.items() if name in shared}
    restored = _read_arrays(path, of_step, saved) if of_step else {}
    if frozen:
        restored |= _read_frozen(path, frozen, shared)
    return {name: restored[name] for name in wanted}


def frozen_directory(step: str) -> str:
    """Returns the directory that holds the frozen parameters of a step."""
    return os.path.join(files.parent(step), FROZEN)


def _read_frozen(
    step: str, wanted: Mapping[str, jax.ShapeDtypeStruct], shared: Mapping[str, Leaf]
) -> dict[str, jax.Array]:
    """Returns the frozen parameters of a step, verified by the checksums that the step recorded.

    Raises:
        UserError: The parameters are damaged or missing. The step itself may be intact, and other steps need
            the same parameters, so no step is set aside.
    """
    path = frozen_directory(step)
    try:
        saved = _read_metadata(path)
        if changed := [name for name in wanted if saved.get(name) != shared[name]]:
            raise Damaged(f"{some(changed)} are not those that the step was trained with")
        return _read_arrays(path, wanted, shared)
    except Damaged as error:
        raise UserError(
            f"{path}: the frozen parameters of every step here cannot be read: {error}; put a good copy back"
        ) from error


def _read_newest(path: files.PathLike, read, log):
    failures = []
    for step in _find_steps(absolute(path)):
        try:
            return agree(lambda step=step: read(step))
        except Damaged as error:
            failures.append(f"{files.name(step)}: {error}")
            log(f"warning: {step} is damaged: {error}")
    raise UserError(f"{path}: no checkpoint is intact ({'; '.join(failures)})")


def _load_params(path: str, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[dict, Report]:
    saved, shared = _read_metadata(path), _read_frozen_record(path)
    leaves = saved | shared
    stored = {_model_name(name): name for name in leaves if name.startswith((_PARAMS, _FROZEN))}
    abstract = _on_one_device({name: leaves[at] for name, at in stored.items()})
    params = jax.eval_shape(assemble, abstract)
    check_shapes(
        path,
        {_PARAMS + name: Leaf(x.shape, str(x.dtype), "") for name, x in params.items()},
        {_PARAMS + name: x for name, x in wanted.items()},
    )
    common = [name for name in wanted if name in params]
    if not common:
        raise UserError(
            f"{path}: it has none of the {len(wanted)} parameters of this model (it has {some(params)}; "
            f"the model has {some(wanted)})"
        )
    groups, onto = group_parts(stored), {}
    for name in common:
        sharding = getattr(wanted[name], "sharding", None)
        for part in groups[name]:
            like = abstract[part]
            if sharding is not None and len(like.shape) != len(wanted[name].shape):  # of a low-rank update
                sharding_of_part = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
                onto[stored[part]] = like.update(sharding=sharding_of_part)
            else:
                onto[stored[part]] = like if sharding is None else like.update(sharding=sharding)
    arrays = _read_shared_too(path, onto, saved, shared)
    loaded = assemble({_model_name(name): array for name, array in arrays.items()})
    report = Report(
        source=str(path),
        loaded=tuple(common),
        new=tuple(name for name in wanted if name not in params),
        unused=tuple(name for name in params if name not in wanted),
    )
    placed = {
        name: jax.device_put(loaded[name].astype(wanted[name].dtype), getattr(wanted[name], "sharding", None))
        for name in common
    }
    return nest(placed), report


def _model_name(stored: str) -> str:
    """Returns the name in the model of a stored trained or frozen parameter, or of the part of one."""
    return stored.removeprefix(f"{FROZEN}/").removeprefix(_PARAMS)


def _find_steps(path: str) -> list[str]:
    """Returns the step directories that `path` refers to, newest first."""
    if not files.exists(path):
        raise UserError(f"{path}: no such checkpoint; {_EXPECTED}")
    directory = os.path.join(path, "checkpoints")
    if not files.is_directory(directory):
        directory = path
        if files.name(path).isdigit():
            return [path]
    steps = [os.path.join(directory, str(step)) for step in reversed(list_steps(directory))]
    if not steps:
        raise UserError(f"{path}: no checkpoint in it; {_EXPECTED}")
    return steps


def list_steps(directory: str) -> list[int]:
    """Returns the complete steps in a directory, oldest first."""
    names = [name for name in files.names(directory) if name.isdigit()]
    return sorted(int(name) for name in names if is_committed(os.path.join(directory, name)))


def is_committed(step: str) -> bool:
    """Returns whether a step was written completely.

    A complete step is known by its name, except on gs://, where a directory cannot be renamed. There, one of
    the two files that are written last must exist; a step copied from a disk has only the second,
    `files.json`.
    """
    if files.scheme(step) != "gs":
        return True
    return any(files.exists(os.path.join(step, name)) for name in WRITTEN_LAST)


def _reader() -> ocp.Checkpointer:
    quieten_orbax()
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def _read_metadata(path: str, check_files: bool = True) -> dict[str, Leaf]:
    try:
        if not files.names(path):
            raise Damaged("it is empty")
        if check_files:
            share = dict(part=jax.process_index(), parts=jax.process_count())
            if (name := find_damaged_file(path, **share)) is not None:
                raise Damaged(f"{name} is missing or has other bytes than were written")
        return _leaves(path, "leaves")
    except (Damaged, UserError):
        raise
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # orbax raises many kinds, depending on what is missing or malformed
        raise _unreadable(path, "metadata", error) from error


def _read_frozen_record(path: str) -> dict[str, Leaf]:
    """Returns what a step with readable metadata recorded of its frozen parameters; empty if nothing."""
    return _leaves(path, FROZEN)


def _leaves(path: str, key: str) -> dict[str, Leaf]:
    with _reader() as reader:
        recorded = reader.metadata(epath.Path(path)).custom_metadata[METADATA_KEY]
    found = recorded["leaves"] if key == "leaves" else recorded.get(key, {})
    return {name: Leaf(tuple(x["shape"]), x["dtype"], x["digest"]) for name, x in found.items()}


def _read_arrays(
    path: str, wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Leaf]
) -> dict[str, jax.Array]:
    """Returns the verified arrays that are named in `wanted`, in its order."""
    item = nest(wanted)
    args = ocp.args.PyTreeRestore(
        item=item,
        restore_args=ocp.checkpoint_utils.construct_restore_args(item),
        partial_restore=len(wanted) < len(saved),
    )
    try:
        with _reader() as reader:
            restored = flatten(reader.restore(epath.Path(path), args=args))
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except jax.errors.JaxRuntimeError:
        raise  # an error of the devices, such as too little memory, not of the file
    except Exception as error:
        raise _unreadable(path, "arrays", error) from error
    arrays = {name: restored[name] for name in wanted}
    digests = array_digests(arrays)
    wrong = [name for name in wanted if digests[name] != saved[name].digest]
    if wrong:
        raise Damaged(f"the values of {some(wrong)} are not those that were saved")
    return arrays


def _unreadable(path: str, what: str, error: Exception) -> Exception:
    """Returns the error for a step that cannot be read although its files match their checksums or have none.

    For a remote step, any error but a missing file is attributed to the network: a step must not be set aside
    because a bucket could not be reached.
    """
    message = f"its {what} cannot be read ({one_line(error)})"
    if files.is_remote(path) and not isinstance(error, FileNotFoundError):
        return StorageError(f"{path}: {message}; check the network and run the same command")
    return Damaged(message)


def _on_one_device(leaves: Mapping[str, Leaf]) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=sharding)
        for name, leaf in leaves.items()
    }


def agree(read):
    """Calls `read` in every process and raises Damaged in all of them if it fails in one.

    All processes thus continue in the same way.
    """
    damage, result = None, None
    try:
        result = read()
    except Damaged as error:
        damage = error
    if jax.process_count() > 1:
        seen = multihost_utils.process_allgather(np.array(damage is not None)).any()
        if seen and damage is None:
            damage = Damaged("another process could not read it")
    if damage is not None:
        raise damage
    return result


def one_line(error: BaseException) -> str:
    """Returns a short description of an error; if TensorStore names a system error, only that one."""
    text = " ".join(str(error).split())
    # TensorStore's message is a page long, and only the operating system's error in it is useful.
    if code := re.search(r"os_error_code='(\d+)'", text):
        return os.strerror(int(code[1]))
    return f"{type(error).__name__}: {text[:160]}"
