"""The registry of model file formats, which every command uses.

To add a format, write a module with a subclass of `Format` and register it below, or call `register` from any
other package.
"""

from __future__ import annotations

from bert_jax.convert.formats import huggingface, peft, tensorflow1, work_directory
from bert_jax.convert.formats.base import Format
from bert_jax.errors import UserError
from bert_jax.io import atomic, files

_FORMATS: dict[str, Format] = {}


def register(one: Format) -> Format:
    """Registers a format, which every command can then read and write, and returns it.

    Raises:
        ValueError: another format has the same name.
    """
    if one.name in _FORMATS:
        raise ValueError(f"a format with the name {one.name!r} is registered already")
    _FORMATS[one.name] = one
    return one


def get(name: str) -> Format:
    """Returns the format with this name.

    Raises:
        UserError: no format has this name.
    """
    if name not in _FORMATS:
        raise UserError(f"--to={name}: no such format; choose one of {', '.join(_FORMATS)}")
    return _FORMATS[name]


def find(path: files.PathLike) -> Format | None:
    """Returns the format of the checkpoint at a path; None if there is no checkpoint.

    A directory is restored first if the command that was replacing it was killed.

    Raises:
        UserError: it has to be restored by hand; see `atomic.restore_directory`.
    """
    atomic.restore_directory(path)
    return next((one for one in _FORMATS.values() if one.detect(path)), None)


def examples() -> str:
    """Returns a list of what a checkpoint may be, for messages."""
    *most, last = [one.example for one in _FORMATS.values()]
    return f"{', '.join(most)}, or {last}"


# `find` tries the formats in this order.
for _module in (work_directory, peft, tensorflow1, huggingface):
    register(_module.FORMAT)

__all__ = ["Format", "examples", "find", "get", "register"]
