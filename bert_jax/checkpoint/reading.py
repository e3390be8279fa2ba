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
from bert_jax.digests import array_digests, find_damaged_file
from bert_jax.errors import UserError

METADATA_KEY = "bert_jax"
_PARAMS = "params/"
_EXPECTED = "expected a work directory or one of its checkpoints/STEP directories"


class Damaged(Exception):
    """A step that cannot be trusted: incomplete, unreadable, or with other values than were saved."""


def describe(path: epath.PathLike) -> dict[str, Leaf]:
    """Every leaf of a step directory, from its metadata; no array is read.

    Raises:
        UserError: `path` is no complete step of bert_jax.
    """
    try:
        return _read_metadata(absolute(path), check_files=False)
    except Damaged as error:
        raise UserError(f"{path}: {error}") from error


def verify(path: epath.PathLike) -> dict[str, Leaf]:
    """Reads a whole step directory on one device, compares it with its digests, and describes it.

    Raises:
        UserError: naming what is not as it was saved.
    """
    path = absolute(path)
    try:
        leaves = _read_metadata(path)
        _read_arrays(path, _on_one_device(leaves), leaves)
    except Damaged as error:
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
    return _read_newest(path, lambda step: (str(step), read_state(step, abstract_state)), log)


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
    wanted = {_PARAMS + name: x for name, x in flatten(abstract_params).items()}
    return _read_newest(path, lambda step: _load_params(step, wanted), log)


def read_params(path: epath.PathLike, *, log=print) -> tuple[str, dict[str, np.ndarray]]:
    """(the step directory that was read, all its parameters in the host's memory, by name).

    Args:
        path, log: as for `load_params`.

    Raises:
        UserError: no checkpoint there, no good step.
    """

    def read(step: epath.Path) -> tuple[str, dict[str, np.ndarray]]:
        saved = _read_metadata(step)
        params = {name: leaf for name, leaf in saved.items() if name.startswith(_PARAMS)}
        arrays = _read_arrays(step, _on_one_device(params), saved)
        return str(step), {name.removeprefix(_PARAMS): np.asarray(array) for name, array in arrays.items()}

    return _read_newest(path, read, log)


def absolute(path: epath.PathLike) -> epath.Path:
    """Orbax takes absolute paths alone, and `epath.Path.absolute` would take gs:// for a relative one."""
    path = os.fspath(path)
    return epath.Path(path if "://" in path else os.path.abspath(path))


def read_state(path: epath.Path, abstract_state: PyTree) -> PyTree:
    wanted = flatten(abstract_state)
    saved = _read_metadata(path)
    check_structure(path, saved, wanted)
    restored = _read_arrays(path, wanted, saved)
    return jax.tree.unflatten(jax.tree.structure(abstract_state), list(restored.values()))


def _read_newest(path: epath.PathLike, read, log):
    failures = []
    for step in _find_steps(absolute(path)):
        try:
            return agree(lambda step=step: read(step))
        except Damaged as error:
            failures.append(f"{step.name}: {error}")
            log(f"warning: {step} is damaged: {error}")
    raise UserError(f"{path}: no checkpoint is intact ({'; '.join(failures)})")


def _load_params(path: epath.Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[dict, Report]:
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


def _find_steps(path: epath.Path) -> list[epath.Path]:
    """The step directories that `path` stands for, newest first."""
    if not path.exists():
        raise UserError(f"{path}: no such checkpoint; {_EXPECTED}")
    directory = path / "checkpoints"
    if not directory.is_dir():
        directory = path
        if path.name.isdigit():
            return [path]
    steps = [directory / str(step) for step in reversed(list_steps(directory))] if directory.is_dir() else []
    if not steps:
        raise UserError(f"{path}: no checkpoint in it; {_EXPECTED}")
    return steps


def list_steps(directory: epath.Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def _read_metadata(path: epath.Path, check_files: bool = True) -> dict[str, Leaf]:
    try:
        if not path.is_dir() or not any(path.iterdir()):
            raise Damaged("it is empty")
        if check_files:
            share = dict(part=jax.process_index(), parts=jax.process_count())
            if (name := find_damaged_file(path, **share)) is not None:
                raise Damaged(f"{name} is missing or has other bytes than were written")
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            leaves = reader.metadata(path).custom_metadata[METADATA_KEY]["leaves"]
        return {name: Leaf(tuple(x["shape"]), x["dtype"], x["digest"]) for name, x in leaves.items()}
    except (Damaged, UserError):
        raise
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # orbax raises many kinds, by what is missing or malformed
        raise Damaged(f"its metadata cannot be read ({one_line(error)})") from error


def _read_arrays(
    path: epath.Path, wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Leaf]
) -> dict[str, jax.Array]:
    """The arrays named in `wanted`, in its order, verified."""
    item = nest(wanted)
    args = ocp.args.PyTreeRestore(
        item=item,
        restore_args=ocp.checkpoint_utils.construct_restore_args(item),
        partial_restore=len(wanted) < len(saved),
    )
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            restored = flatten(reader.restore(path, args=args))
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except jax.errors.JaxRuntimeError:
        raise  # the devices' trouble, such as too little memory, and not the file's
    except Exception as error:
        raise Damaged(f"its arrays cannot be read ({one_line(error)})") from error
    arrays = {name: restored[name] for name in wanted}
    digests = array_digests(arrays)
    wrong = [name for name in wanted if digests[name] != saved[name].digest]
    if wrong:
        raise Damaged(f"the values of {some(wrong)} are not those that were saved")
    return arrays


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
    # TensorStore tells a page; what the operating system said stands in the middle of it.
    if reason := re.search(r"([^:]+) \[os_error_code", text):
        return reason[1].strip()
    return f"{type(error).__name__}: {text[:160]}"
