"""Reads and verifies steps, of this run or another, and restores them onto explicit shardings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.checkpoint.checksums import array_digests
from bert_jax.checkpoint.leaves import (
    Leaf,
    PyTree,
    Report,
    check_finite,
    check_leaves,
    flatten,
    nest,
    select_params,
)
from bert_jax.errors import StorageError, UserError
from bert_jax.io import checks, files
from bert_jax.io.wording import some
from bert_jax.objectives import adapters
from bert_jax.objectives.adapters import assemble
from bert_jax.parallel import collective

_Result = TypeVar("_Result")

METADATA_KEY = "bert_jax"
WRITTEN_LAST = "commit_success.txt"  # by orbax in a step on gs://
FROZEN = "frozen"  # the directory of the parameters that all steps share, and their name in a state
_STEP = re.compile("0|[1-9][0-9]{0,9}")
# The errors of a damaged file: exceptions of orbax's own files, and messages of TensorStore.
_DAMAGES = (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError, KeyError)
_DATA_LOSS = re.compile("DATA_LOSS|NOT_FOUND|OUT_OF_RANGE")
# Prefixes of the names of trained and frozen model parameters in a step. Other entries may be frozen, too.
TRAINED, FROZEN_PARAMS = "params/", f"{FROZEN}/{adapters.PARAMS}/"


class Damaged(Exception):
    """A step that is incomplete or unreadable, or whose values differ from the saved ones."""


# The errors of a failed read, weakest first. A step is renamed only if no process has another error.
_FAILURES = (Damaged, StorageError, UserError)


def agree(read: Callable[[], _Result]) -> _Result:
    """Returns the result of `read`, which all processes call; if one fails, all raise the strongest error."""
    error, failure = None, []
    try:
        result = read()
    except _FAILURES as raised:
        error = raised
        failure = [next(i for i, kind in enumerate(_FAILURES) if isinstance(raised, kind)), str(raised)]
    failures = filter(None, map(json.loads, collective.gather(json.dumps(failure).encode())))
    if worst := max(failures, key=lambda found: found[0], default=None):
        if error is not None and failure == worst:
            raise error
        raise _FAILURES[worst[0]](worst[1]) from error
    return result


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, or the frozen parameters of a run, whose metadata can be read.

    `own` are the leaves in its directory, and `shared` the frozen parameters in the directory next to it, as
    they were when the step was saved.
    """

    path: str
    own: Mapping[str, Leaf]
    shared: Mapping[str, Leaf]

    @classmethod
    def open(cls, path: str, alone: bool = False) -> Step:
        """Reads the metadata of a step; unless `alone`, all processes call it and agree on the result.

        It raises Damaged if the step is incomplete or unreadable, UserError if it may not be read, and
        StorageError if it is remote and cannot be reached.
        """
        if not alone:
            return agree(functools.partial(cls.open, path, alone=True))
        try:
            if not files.names(path):
                raise Damaged("it is empty" if files.exists(path) else "it is missing")
            silence_orbax()
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                recorded = reader.metadata(epath.Path(path)).custom_metadata[METADATA_KEY]
            return cls(path, _leaves(recorded["leaves"]), _leaves(recorded.get(FROZEN, {})))
        except (Damaged, UserError):
            raise
        except Exception as error:  # orbax raises many kinds, depending on what is missing or malformed
            raise _unreadable(path, "metadata", error) from error

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The leaves in the step and the frozen parameters next to it."""
        return {**self.own, **self.shared}

    @property
    def params(self) -> dict[str, str]:
        """{name in the model: name of the leaf} of the parameters, trained and frozen."""
        return {_model_name(name): name for name in self.leaves if name.startswith((TRAINED, FROZEN_PARAMS))}

    def read(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Returns the arrays that `wanted` names, verified and in its order; see `read_state` for errors."""
        own = {name: x for name, x in wanted.items() if name not in self.shared}
        shared = {name: x for name, x in wanted.items() if name in self.shared}
        arrays = _read_arrays(self.path, own, self.own) if own else {}
        if shared:
            arrays |= self._read_shared(shared)
        return {name: arrays[name] for name in wanted}

    def _read_shared(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        path = os.path.join(files.parent(self.path), FROZEN)
        try:
            saved = Step.open(path).own
            if changed := [name for name in wanted if saved.get(name) != self.shared[name]]:
                raise Damaged(f"{some(changed)} are not those that the step was trained with")
            return _read_arrays(path, wanted, self.shared)
        except Damaged as error:  # The step may be intact, so it keeps its name.
            raise UserError(f"{path}: the frozen parameters are damaged: {error}") from error


def _model_name(stored: str) -> str:
    return stored.removeprefix(f"{FROZEN}/").removeprefix(TRAINED)


def _on_one_device(leaves: Mapping[str, Leaf]) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=sharding)
        for name, leaf in leaves.items()
    }


def absolute(path: files.PathLike) -> str:
    """Returns the absolute path of checkpoints or their URL; raises UserError if orbax cannot open it."""
    checks.check_checkpoint_place(path)
    return files.absolute(path)


def _find_steps(path: str) -> list[str]:
    directory = os.path.join(path, "checkpoints")
    if not files.is_directory(directory):
        directory = path
        if is_step(files.name(path)) and files.exists(path):
            return [path]
    steps = [os.path.join(directory, str(step)) for step in reversed(list_steps(directory))]
    if not steps:
        raise UserError(
            f"{path}: no checkpoint found; expected a work directory, or one of its checkpoints/STEP"
        )
    return steps


def list_steps(directory: str) -> list[int]:
    """Returns the complete steps in a directory, oldest first."""
    names = filter(is_step, files.names(directory))
    return sorted(int(name) for name in names if is_committed(os.path.join(directory, name)))


def is_step(name: str) -> bool:
    """True if a directory is named as a step; `0040` and `²` are not names of steps."""
    return _STEP.fullmatch(name) is not None and int(name) < 2**31


def is_committed(step: str) -> bool:
    """True if a step was written completely. Except on gs://, its name proves that.

    gs:// cannot rename a directory, so there a file that is written last must exist.
    """
    return files.scheme(step) != "gs" or files.exists(os.path.join(step, WRITTEN_LAST))


@functools.cache
def silence_orbax() -> None:
    """Suppresses what orbax prints about errors that it also raises, until the process ends."""
    logging.getLogger("absl").addFilter(
        lambda record: "orbax" not in record.pathname or record.levelno >= logging.CRITICAL
    )
    # After an error, orbax closes its event loop while tasks are pending, and Python reports each of them.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    report = sys.unraisablehook
    sys.unraisablehook = lambda error: str(error.exc_value) != "Event loop is closed" and report(error)


def _leaves(recorded: Mapping[str, Mapping]) -> dict[str, Leaf]:
    return {name: Leaf(tuple(x["shape"]), x["dtype"], x["digest"]) for name, x in recorded.items()}


def _read_arrays(
    path: str, wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Leaf]
) -> dict[str, jax.Array]:
    # The processes agree on whether all could read their shards before they compute the checksums together.
    arrays = agree(functools.partial(_restore, path, wanted, partial=len(wanted) < len(saved)))
    digests = array_digests(arrays)
    wrong = [name for name in wanted if digests[name] != saved[name].digest]
    if wrong:
        raise Damaged(f"the values of {some(wrong)} are not those that were saved")
    return arrays


def _restore(path: str, wanted: Mapping[str, jax.ShapeDtypeStruct], partial: bool) -> dict[str, jax.Array]:
    item = nest(wanted)
    args = ocp.args.PyTreeRestore(
        item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=partial
    )
    try:
        # The method of ocp.Checkpointer waits for all processes, but one of them may have failed.
        with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
            restored = flatten(handler.restore(epath.Path(path), args=args))
        return {name: restored[name] for name in wanted}
    except jax.errors.JaxRuntimeError:
        raise  # an error of the devices, such as too little memory, not of the file
    except Exception as error:
        raise _unreadable(path, "arrays", error) from error


def _unreadable(path: str, what: str, error: Exception) -> Exception:
    message = f"its {what} cannot be read ({one_line(error)})"
    if isinstance(error, PermissionError):
        return UserError(f"{path}: {message}")
    # A step must not be renamed because a bucket could not be reached.
    is_damage = isinstance(error, _DAMAGES) or _DATA_LOSS.search(f"{error} {error.__cause__}")
    if files.is_remote(path) and not is_damage:
        return StorageError(f"{path}: {message}")
    return Damaged(message)


def one_line(error: BaseException) -> str:
    """Returns a short description of an error; if TensorStore names a system error, only that one."""
    text = " ".join(str(error).split())
    # TensorStore's message is a page long, and only the operating system's error in it is useful.
    if code := re.search(r"os_error_code='(\d+)'", text):
        return os.strerror(int(code[1]))
    return f"{type(error).__name__}: {text[:160]}"


def parameter_names(path: files.PathLike) -> frozenset[str]:
    """Returns the names of the parameters in a checkpoint, trained and frozen; empty if none is intact.

    All processes have to call it, and process 0 reads the names: others may see the checkpoint later.
    """

    def names() -> list[str]:
        steps: list[str] = []
        with contextlib.suppress(UserError):  # There are none.
            steps = _find_steps(absolute(path))
        for step in steps:
            with contextlib.suppress(Damaged):  # Whatever reads the arrays next reports it.
                return list(Step.open(step, alone=True).params)
        return []

    return frozenset(collective.call_in_primary(names))


def verify(path: files.PathLike) -> dict[str, Leaf]:
    """Reads a whole step onto one device and returns its leaves; raises UserError if one is damaged."""
    try:
        step = Step.open(absolute(path))
        step.read(_on_one_device(step.leaves))
    except Damaged as error:
        raise UserError(f"{absolute(path)}: {error}") from error
    return dict(step.own)


def load_state(
    path: files.PathLike, abstract_state: PyTree | Callable[[Mapping[str, Leaf]], PyTree], *, log=print
) -> tuple[str, PyTree]:
    """Returns the step directory that was read and a state of another run; see `read_state`."""
    return _read_newest(path, lambda step: (step, read_state(step, abstract_state)), log)


def load_params(path: files.PathLike, abstract_params: PyTree, *, log=print) -> tuple[dict, Report]:
    """Loads the parameters that `abstract_params` and a checkpoint have in common; see `select_params`.

    `path` is a work directory or its `checkpoints`, whose newest intact step is read, or one step directory.
    `log` is called with one line when a newer step is damaged. It raises UserError if no step is intact, or
    if a value is not finite.
    """
    source, arrays = _read_newest(path, _read_params, log)
    stored = assemble({_model_name(name): array for name, array in arrays.items()})
    return select_params(source, stored, abstract_params)


def read_stored(
    path: files.PathLike, *, log=print
) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the step directory that was read, and its trained and frozen parameters as stored, by name."""
    source, arrays = _read_newest(path, _read_params, log)
    trained, frozen = (
        {_model_name(name): np.asarray(x) for name, x in arrays.items() if name.startswith(prefix)}
        for prefix in (TRAINED, FROZEN_PARAMS)
    )
    return source, trained, frozen


def _read_params(path: str) -> tuple[str, dict[str, jax.Array]]:
    step = Step.open(path)
    arrays = step.read(_on_one_device({name: step.leaves[name] for name in step.params.values()}))
    check_finite(path, arrays)
    return path, arrays


def read_state(path: str, abstract_state: PyTree | Callable[[Mapping[str, Leaf]], PyTree]) -> PyTree:
    """Restores a state from a step directory, verified by its checksums.

    `abstract_state` is a tree of jax.ShapeDtypeStruct with shardings, or maps the saved leaves to one. It
    raises Damaged if the step cannot be trusted, and UserError if the structure, a shape or a dtype differs,
    or the frozen parameters cannot be read.
    """
    step = Step.open(path)
    if callable(abstract_state):
        abstract_state = abstract_state(step.leaves)
    wanted = flatten(abstract_state)
    check_leaves(path, step.leaves, wanted, same_names=True)
    return jax.tree.unflatten(jax.tree.structure(abstract_state), list(step.read(wanted).values()))


def _read_newest(path: files.PathLike, read: Callable[[str], _Result], log) -> _Result:
    damaged = {}
    for step in _agreed_steps(path):
        try:
            found = agree(functools.partial(read, step))
        except Damaged as error:
            damaged[step] = error
            continue
        for other, error in damaged.items():
            log(f"warning: {other} is damaged, and {step} is read: {error}")
        return found
    causes = "; ".join(f"{files.name(step)}: {error}" for step, error in damaged.items())
    raise UserError(f"{path}: all checkpoints are damaged ({causes})")


def _agreed_steps(path: files.PathLike) -> list[str]:
    """Returns the step directories that process 0 finds, newest first; all processes have to call it."""
    # A run may save further steps meanwhile, and the copy of another host may have another path.
    path = absolute(path)
    steps = collective.call_in_primary(lambda: [step.removeprefix(path) for step in _find_steps(path)])
    return [path + step for step in steps]
