"""Steps back from disk: verified, onto explicit shardings, from this run or another."""

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

METADATA_KEY = "bert_jax"
WRITTEN_LAST = ("commit_success.txt", FILES)  # the first by orbax
FROZEN = "frozen"  # beside the steps: what every step shares, and the name of that part of a state
_PARAMS = "params/"
_EXPECTED = "expected a work directory or one of its checkpoints/STEP directories"


class Damaged(Exception):
    """A step that cannot be trusted: incomplete, unreadable, or with other values than were saved."""


def describe(path: files.PathLike) -> dict[str, Leaf]:
    """Every leaf of a step directory, from its metadata; no array is read.

    Raises:
        UserError: `path` is no complete step of bert_jax.
    """
    try:
        return _read_metadata(absolute(path), check_files=False)
    except Damaged as error:
        raise UserError(f"{path}: {error}") from error


def verify(path: files.PathLike) -> dict[str, Leaf]:
    """Reads a whole step directory on one device, compares it with its digests, and describes it.

    Raises:
        UserError: naming what is not as it was saved.
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
    """A state of another run, which is left as it is: (the step directory that was read, the state).

    Args:
        path, log: as for `load_params`.
        abstract_state: pytree of jax.ShapeDtypeStruct with shardings.

    Raises:
        UserError: no checkpoint there, another structure, shape or dtype, no good step.
    """
    return _read_newest(path, lambda step: (str(step), read_state(step, abstract_state)), log)


def load_params(path: files.PathLike, abstract_params: PyTree, *, log=print) -> tuple[dict, Report]:
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
    wanted = {_PARAMS + name: x for name, x in flatten(abstract_params).items()}
    return _read_newest(path, lambda step: _load_params(step, wanted), log)


def read_params(path: files.PathLike, *, log=print) -> tuple[str, dict[str, np.ndarray]]:
    """(the step directory that was read, all its parameters in the host's memory, by name).

    Args:
        path, log: as for `load_params`.

    Raises:
        UserError: no checkpoint there, no good step.
    """

    def read(step: str) -> tuple[str, dict[str, np.ndarray]]:
        saved = _read_metadata(step)
        params = {name: leaf for name, leaf in saved.items() if name.startswith(_PARAMS)}
        arrays = _read_arrays(step, _on_one_device(params), saved)
        return str(step), {name.removeprefix(_PARAMS): np.asarray(array) for name, array in arrays.items()}

    return _read_newest(path, read, log)


def absolute(path: files.PathLike) -> str:
    """The path of checkpoints from the root, as orbax wants it, or their URL.

    Raises:
        UserError: a URL that orbax and TensorStore have no client for.
    """
    checks.check_checkpoint_place(path)
    return files.absolute(path)


def read_state(path: str, abstract_state: PyTree) -> PyTree:
    wanted = flatten(abstract_state)
    saved, shared = _read_metadata(path), _read_frozen_record(path)
    check_structure(path, saved | shared, wanted)
    restored = _read_arrays(path, {name: x for name, x in wanted.items() if name not in shared}, saved)
    if shared:
        restored |= _read_frozen(path, {name: wanted[name] for name in shared}, shared)
        restored = {name: restored[name] for name in wanted}
    return jax.tree.unflatten(jax.tree.structure(abstract_state), list(restored.values()))


def load_frozen(path: files.PathLike, abstract_frozen: PyTree) -> PyTree:
    """Returns the frozen parameters of a run.

    Args:
        path: as for `load_params`; any step of the run has the same.
        abstract_frozen: nested dict of jax.ShapeDtypeStruct with shardings.

    Raises:
        UserError: no checkpoint there, other parameters, or damaged ones.
    """
    step = _find_steps(absolute(path))[0]
    wanted = {f"{FROZEN}/{name}": x for name, x in flatten(abstract_frozen).items()}
    shared = _read_frozen_record(step)
    check_structure(step, shared, wanted)
    arrays = _read_frozen(step, wanted, shared)
    return jax.tree.unflatten(jax.tree.structure(abstract_frozen), list(arrays.values()))


def frozen_directory(step: str) -> str:
    """Returns where the frozen parameters of a step are."""
    return os.path.join(files.parent(step), FROZEN)


def _read_frozen(
    step: str, wanted: Mapping[str, jax.ShapeDtypeStruct], shared: Mapping[str, Leaf]
) -> dict[str, jax.Array]:
    """Returns the frozen parameters of a step, verified by the digests that the step recorded.

    Raises:
        UserError: they are damaged or missing. The step itself may be intact, and other steps need them too,
            so none is set aside.
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
    saved = _read_metadata(path)
    params = {name: leaf for name, leaf in saved.items() if name.startswith(_PARAMS)}
    check_shapes(path, params, wanted)
    common = [name for name in wanted if name in params]
    if not common:
        raise UserError(
            f"{path}: it has none of the {len(wanted)} parameters of this model (it has {some(params)}; "
            f"the model has {some(wanted)})"
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
    return nest({name[strip:]: arrays[name].astype(wanted[name].dtype) for name in common}), report


def _find_steps(path: str) -> list[str]:
    """The step directories that `path` stands for, newest first."""
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
    """The steps in a directory that are whole, oldest first."""
    names = [name for name in files.names(directory) if name.isdigit()]
    return sorted(int(name) for name in names if is_committed(os.path.join(directory, name)))


def is_committed(step: str) -> bool:
    """Whether a step was written to its end. Its name says so, but on gs://, where a directory cannot be
    renamed: there one of the last two files does, of which a step copied from a disk has only our digests.
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
    except Exception as error:  # orbax raises many kinds, by what is missing or malformed
        raise _unreadable(path, "metadata", error) from error


def _read_frozen_record(path: str) -> dict[str, Leaf]:
    """Returns what a step, whose metadata can be read, recorded of the frozen parameters; empty for none."""
    return _leaves(path, FROZEN)


def _leaves(path: str, key: str) -> dict[str, Leaf]:
    with _reader() as reader:
        recorded = reader.metadata(epath.Path(path)).custom_metadata[METADATA_KEY]
    found = recorded["leaves"] if key == "leaves" else recorded.get(key, {})
    return {name: Leaf(tuple(x["shape"]), x["dtype"], x["digest"]) for name, x in found.items()}


def _read_arrays(
    path: str, wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Leaf]
) -> dict[str, jax.Array]:
    """The arrays named in `wanted`, in its order, verified."""
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
        raise  # the devices' trouble, such as too little memory, and not the file's
    except Exception as error:
        raise _unreadable(path, "arrays", error) from error
    arrays = {name: restored[name] for name in wanted}
    digests = array_digests(arrays)
    wrong = [name for name in wanted if digests[name] != saved[name].digest]
    if wrong:
        raise Damaged(f"the values of {some(wrong)} are not those that were saved")
    return arrays


def _unreadable(path: str, what: str, error: Exception) -> Exception:
    """The error of a step whose files are as they were written, or have no digests, and that cannot be read.

    Of a remote one the network is to blame: a step must not be set aside since a bucket could not be reached.
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
    """Calls `read` in every process; damage seen by one is damage for all, so that all do the same next."""
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
    text = " ".join(str(error).split())
    # TensorStore's message is a page long, with the operating system's error somewhere in the middle.
    if code := re.search(r"os_error_code='(\d+)'", text):
        return os.strerror(int(code[1]))
    return f"{type(error).__name__}: {text[:160]}"
