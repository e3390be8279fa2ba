"""The inputs of a corpus: found, named, and cut into ranges."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import compression, files
from data_pipelines.readers.documents import Range
from data_pipelines.readers.formats import Format
from data_pipelines.readers.sources import source_of

_REFUSED = (".zip", ".7z", ".tar", ".tgz", *(".tar" + kind for kind in compression.OPENERS))
_COUNTED_BYTES = 64 << 20  # of a file are read to tell the number of a line


def list_inputs(globs: str | Sequence[str], tfds_data_dir: str = "") -> list[str]:
    """The files that patterns match, sorted, each once.

    Args:
        globs: Patterns, or one string of patterns separated by commas; ** matches folders in folders, and a
            folder stands for all the files under it that aren't hidden. Patterns may be of local paths or
            URLs (gs://...); tfds:NAME is a data set that tensorflow-datasets has prepared.
        tfds_data_dir: Where such data sets lie; "": where tensorflow-datasets looks.

    Raises:
        UserError: A pattern matches no file, all the files are empty, or one is of a kind that isn't read.
    """
    patterns = [globs] if isinstance(globs, str) else list(globs)
    patterns = [p for text in patterns for p in ([text] if os.path.exists(text) else text.split(",")) if p]
    if not patterns:
        raise UserError("no input given; expected files or patterns such as --input='corpus/*.txt'")
    paths: set[str] = set()
    for pattern in patterns:
        paths.update(source_of(pattern).find(tfds_data_dir))
    for path in sorted(paths):
        if not files.is_remote(path) and pathlib.Path(path).is_fifo():
            raise UserError(f"{path} is a pipe, and text is read more than once; write it to a file first")
        if path.endswith(_REFUSED):
            raise UserError(
                f"can't read {path}; expected plain text, .gz, .bz2, .xz or .zst: unpack it first"
            )
    if not any(file_size(path) for path in paths):
        several = f"all {len(paths)} input files are empty, {min(paths)} first"
        raise UserError(f"{several if len(paths) > 1 else f'{min(paths)} is empty'}; expected text")
    return sorted(paths)


def file_size(path: str) -> int:
    """Returns the bytes of a file or data set.

    Raises:
        OSError: it can't be read.
    """
    return source_of(path).size()


def file_digest(path: str) -> dict[str, Any]:
    """The size and the SHA-256 of a file, or of the files of a data set one after the other."""
    digest, size = hashlib.sha256(), 0
    for part in source_of(path).parts():
        with files.open_read(part) as file:
            while data := file.read(1 << 20):
                digest.update(data)
                size += len(data)
    return {"bytes": size, "sha256": digest.hexdigest()}


def short_names(paths: Sequence[str]) -> list[str]:
    """The paths without the folder that they have in common; of data sets, their names."""
    sources = [source_of(path) for path in paths]
    folders = [names for source in sources if (names := source.folders()) is not None]
    shared = len(os.path.commonprefix(folders)) if folders else 0  # noqa: RUF071 (of lists)
    return [source.name(shared) for source in sources]


def split_ranges(paths: Sequence[str], target_bytes: int, format: Format) -> list[Range]:
    """Cuts inputs into ranges of about `target_bytes`; empty files give none, compressed ones one each.

    The ranges depend on the inputs and `target_bytes` alone. Read in this order, they give the documents in
    the order of the inputs.

    Args:
        paths: Inputs, as `list_inputs` gives them.
        target_bytes: The size of a range.
        format: Says which files may be cut.
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes must be positive, not {target_bytes}")
    names = short_names(paths)
    return [
        range_
        for path, name in zip(paths, names, strict=True)
        for range_ in source_of(path).split(target_bytes, format, name)
    ]


def place(key: str, range_: Range) -> str:
    """Where a document begins, for a person to look it up: its line, or its byte far into a file.

    Args:
        key: Of the document, which is returned as it is unless it is a name and an offset.
        range_: The document is of.
    """
    name, _, offset = key.partition("#")[0].rpartition(":")
    if name != range_.name or not offset.isdigit():
        return key
    if int(offset) > _COUNTED_BYTES:
        return f"{name}, byte {int(offset):,}"
    with compression.opened(range_.path) as file:
        lines = file.read(int(offset)).count(b"\n")
    return f"{name}, line {lines + 1:,}"
