"""The file formats of models, and the registry that every command looks them up in.

A format is added by a module with a subclass of `Format` and by a line below, or by a call of `register` from
any other package.
"""

from __future__ import annotations

from bert_jax.convert.formats import huggingface, tensorflow1, work_directory
from bert_jax.convert.formats.base import Format
from bert_jax.errors import UserError
from bert_jax.io import files

_FORMATS: dict[str, Format] = {}


def register(one: Format) -> Format:
    """Adds a format, which every command can then read and write; returns it.

    Raises:
        ValueError: another format has the name.
    """
    if one.name in _FORMATS:
        raise ValueError(f"a format with the name {one.name!r} is registered already")
    _FORMATS[one.name] = one
    return one


def unregister(name: str) -> None:
    """Takes a format out of the registry again."""
    del _FORMATS[name]


def names() -> tuple[str, ...]:
    """Returns the names of all formats."""
    return tuple(_FORMATS)


def get(name: str) -> Format:
    """Returns the format with a name.

    Raises:
        UserError: none has it.
    """
    if name not in _FORMATS:
        raise UserError(f"format {name!r} is unknown; choose one of {', '.join(_FORMATS)}")
    return _FORMATS[name]


def find(path: files.PathLike) -> Format | None:
    """Returns the format of what is at a path; None where it is no checkpoint."""
    return next((one for one in _FORMATS.values() if one.detect(path)), None)


def examples() -> str:
    """Returns what a checkpoint may be, for messages."""
    *most, last = [one.example for one in _FORMATS.values()]
    return f"{', '.join(most)}, or {last}"


# In the order in which a path is asked for its format.
register(work_directory.FORMAT)
register(tensorflow1.FORMAT)
register(huggingface.FORMAT)

__all__ = ["Format", "examples", "find", "get", "names", "register", "unregister"]
