"""Finds the steps of a run, and reads what one directory of orbax holds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
from etils import epath

from bert_jax.checkpoint.checksums import array_digests
from bert_jax.checkpoint.leaves import Leaf, flatten, nest
from bert_jax.checkpoint.terminal import ignore_unbegun, quieten_orbax, root_logger_kept
from bert_jax.errors import StorageError, UserError
from bert_jax.io import checks, files
from bert_jax.io.wording import some
from bert_jax.objectives import adapters
from bert_jax.parallel import collective

with root_logger_kept():
    import orbax.checkpoint as ocp

_Result = TypeVar("_Result")

METADATA_KEY = "bert_jax"
WRITTEN_LAST = ("commit_success.txt", "files.json")  # older versions wrote the second
FROZEN = "frozen"  # the directory of the parameters that all steps share, and their name in a state
_STEP = re.compile("0|[1-9][0-9]{0,9}")
# The errors of a damaged file: those of orbax's own files, and those of TensorStore.
_DAMAGES = (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError, KeyError)
_DATA_LOSS = re.compile("DATA_LOSS|NOT_FOUND|OUT_OF_RANGE")
_EXPECTED = "expected a work directory or one of its checkpoints/STEP directories"
# The beginnings of the names of the model's parameters in a step: those of trained ones, and those of frozen
# ones, which are not all that may be frozen.
TRAINED, FROZEN_PARAMS = "params/", f"{FROZEN}/{adapters.PARAMS}/"


class Damaged(Exception):
    """A step that is incomplete or unreadable, or whose values are not those that were saved."""


# The errors of a failed read, from the weakest. A step is set aside only if no process has another error.
_FAILURES = (Damaged, StorageError, UserError)


def agree(read: Callable[[], _Result]) -> _Result:
    """Returns the result of `read`, which every process of the run calls, if it fails in none.

    All processes thus continue in the same way.

    Raises:
        Damaged: `read` raises it in a process, and no other error in any. All processes raise it, with the
            message of the first one.
        StorageError: `read` raises it in a process, and UserError in none.
        UserError: `read` raises it in a process.
    """
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

    Attributes:
        path: its directory.
        own: the leaves in it.
        shared: the frozen parameters in the directory beside it, as they were when the step was saved.
    """

    path: str
    own: Mapping[str, Leaf]
    shared: Mapping[str, Leaf]

    @classmethod
    def open(cls, path: str, alone: bool = False) -> Step:
        """Returns the step in a directory without reading its arrays.

        Unless `alone`, all processes of the run have to call it, and they agree on the result.

        Raises:
            Damaged: the step is incomplete or unreadable.
            UserError: the step may not be read.
            StorageError: the step is remote and cannot be reached.
        """
        found = functools.partial(cls._open, path)
        return found() if alone else agree(found)

    @classmethod
    def _open(cls, path: str) -> Step:
        try:
            if not files.names(path):
                raise Damaged("it is empty" if files.exists(path) else "it is missing")
            with _quiet_orbax(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                recorded = reader.metadata(epath.Path(path)).custom_metadata[METADATA_KEY]
            return cls(path, _leaves(recorded["leaves"]), _leaves(recorded.get(FROZEN, {})))
        except (Damaged, UserError):
            raise
        except PermissionError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        except Exception as error:  # orbax raises many kinds, depending on what is missing or malformed
            raise _unreadable(path, "metadata", error) from error

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The leaves in the step and the frozen parameters beside it."""
        return {**self.own, **self.shared}

    @property
    def params(self) -> dict[str, str]:
        """{name in the model: name of the leaf} of the parameters, trained and frozen."""
        return {model_name(name): name for name in self.leaves if name.startswith((TRAINED, FROZEN_PARAMS))}

    def read(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Returns the verified arrays that are named in `wanted`, in its order.

        Raises:
            Damaged: the step cannot be trusted.
            UserError: the frozen parameters cannot be read.
        """
        own = {name: x for name, x in wanted.items() if name not in self.shared}
        shared = {name: x for name, x in wanted.items() if name in self.shared}
        arrays = _read_arrays(self.path, own, self.own) if own else {}
        if shared:
            arrays |= self._read_shared(shared)
        return {name: arrays[name] for name in wanted}

    def _read_shared(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Returns frozen parameters, verified by the checksums that the step recorded.

        Raises:
            UserError: the parameters are damaged or missing. The step itself may be intact, and other steps
                need the same parameters, so no step is set aside.
        """
        path = os.path.join(files.parent(self.path), FROZEN)
        try:
            saved = Step.open(path).own
            if changed := [name for name in wanted if saved.get(name) != self.shared[name]]:
                raise Damaged(f"{some(changed)} are not those that the step was trained with")
            return _read_arrays(path, wanted, self.shared)
        except Damaged as error:
            raise UserError(
                f"{path}: the frozen parameters of every step here cannot be read: {error}; put a good copy "
                "back"
            ) from error


def model_name(stored: str) -> str:
    """Returns the name in the model of a stored trained or frozen parameter, or of the part of one."""
    return stored.removeprefix(f"{FROZEN}/").removeprefix(TRAINED)


def on_one_device(leaves: Mapping[str, Leaf]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of leaves, to be read onto the first device of this process."""
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=sharding)
        for name, leaf in leaves.items()
    }


def absolute(path: files.PathLike) -> str:
    """Returns the absolute path of checkpoints, which orbax requires, or their URL.

    Raises:
        UserError: orbax and TensorStore have no client for the URL.
    """
    checks.check_checkpoint_place(path)
    return files.absolute(path)


def find_steps(path: str) -> list[str]:
    """Returns the step directories that `path` refers to, newest first."""
    if not files.exists(path):
        raise UserError(f"{path}: no such checkpoint; {_EXPECTED}")
    directory = os.path.join(path, "checkpoints")
    if not files.is_directory(directory):
        directory = path
        if is_step(files.name(path)):
            return [path]
    steps = [os.path.join(directory, str(step)) for step in reversed(list_steps(directory))]
    if not steps:
        raise UserError(f"{path}: no checkpoint in it; {_EXPECTED}")
    return steps


def list_steps(directory: str) -> list[int]:
    """Returns the complete steps in a directory, oldest first."""
    names = filter(is_step, files.names(directory))
    return sorted(int(name) for name in names if is_committed(os.path.join(directory, name)))


def is_step(name: str) -> bool:
    """Returns whether a directory has the name of a step. Others, such as `0040` or `²`, are not of a run."""
    return _STEP.fullmatch(name) is not None and int(name) < 2**31


def is_committed(step: str) -> bool:
    """Returns whether a step was written completely.

    A complete step is known by its name, except on gs://, where a directory cannot be renamed. There, a file
    that is written last must exist. A step that an older version wrote to a disk, and that was copied to
    gs://, has only `files.json`.
    """
    if files.scheme(step) != "gs":
        return True
    return any(files.exists(os.path.join(step, name)) for name in WRITTEN_LAST)


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
    quieten_orbax()
    try:
        with root_logger_kept():
            yield
    except Exception:
        ignore_unbegun()
        raise


def _leaves(recorded: Mapping[str, Mapping]) -> dict[str, Leaf]:
    return {name: Leaf(tuple(x["shape"]), x["dtype"], x["digest"]) for name, x in recorded.items()}


def _read_arrays(
    path: str, wanted: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, Leaf]
) -> dict[str, jax.Array]:
    """Returns the verified arrays that are named in `wanted`, in its order.

    All processes have to call it. They agree on whether all could read their shards before they compute the
    checksums together.
    """
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
        # The method of ocp.Checkpointer waits for all processes, of which one may have failed.
        with _quiet_orbax(), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
            restored = flatten(handler.restore(epath.Path(path), args=args))
        return {name: restored[name] for name in wanted}
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except jax.errors.JaxRuntimeError:
        raise  # an error of the devices, such as too little memory, not of the file
    except Exception as error:
        raise _unreadable(path, "arrays", error) from error


def _unreadable(path: str, what: str, error: Exception) -> Exception:
    """Returns the error for a step that cannot be read.

    For a remote step, an error is attributed to the network unless it says that data is missing or damaged: a
    step must not be set aside because a bucket could not be reached.
    """
    message = f"its {what} cannot be read ({one_line(error)})"
    is_damage = isinstance(error, _DAMAGES) or _DATA_LOSS.search(f"{error} {error.__cause__}")
    if files.is_remote(path) and not is_damage:
        return StorageError(f"{path}: {message}; check the network and run the same command")
    return Damaged(message)


def one_line(error: BaseException) -> str:
    """Returns a short description of an error; if TensorStore names a system error, only that one."""
    text = " ".join(str(error).split())
    # TensorStore's message is a page long, and only the operating system's error in it is useful.
    if code := re.search(r"os_error_code='(\d+)'", text):
        return os.strerror(int(code[1]))
    return f"{type(error).__name__}: {text[:160]}"
