"""The registry of model file formats: a module with a `Format` for each."""

from __future__ import annotations

from bert_jax.convert.formats import huggingface, peft, tensorflow1, work_directory
from bert_jax.convert.formats.base import Format
from bert_jax.io import files

# `find` tries the formats in this order.
FORMATS: dict[str, Format] = {
    each.FORMAT.name: each.FORMAT for each in (work_directory, peft, tensorflow1, huggingface)
}


def find(path: files.PathLike) -> Format | None:
    """Returns the format of the checkpoint at a path; None if there is no checkpoint."""
    return next((each for each in FORMATS.values() if each.detect(path)), None)


__all__ = ["FORMATS", "Format", "find"]
