"""Finds and names the input files of a corpus, and splits them into ranges."""

from __future__ import annotations

import hashlib
import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import comma_lists, compression, files
from data_pipelines.readers.documents import Fields, Range
from data_pipelines.readers.formats import named
from data_pipelines.readers.listing import aliases_for, finds, matches
from data_pipelines.readers.sources import source_of

_REFUSED = (".zip", ".7z", ".tar", ".tgz", *(".tar" + kind for kind in compression.OPENERS))


def split_patterns(globs: str | Sequence[str]) -> list[str]:
    """Returns the patterns of inputs, from patterns or from strings of patterns separated by commas.

    A local path or pattern with a comma that finds something is one pattern.

    Raises:
        UserError: a folder of a pattern cannot be read.
    """
    patterns = [globs] if isinstance(globs, str) else list(globs)
    return [path for text in patterns for path in comma_lists.paths(text, finds)]


def pattern_for(path: str, globs: str | Sequence[str], inside: Sequence[str] = ()) -> tuple[str, str] | None:
    """Returns the first pattern that finds a path, a folder that it lies in, or a file in it.

    Args:
        path: a local path or a URL, which need not exist yet.
        globs: see `list_inputs`.
        inside: relative paths of files in the path, which need not exist yet.

    Returns:
        The pattern, and the file in the path that it finds, or "" for the path or a folder that it lies in;
        None if no pattern finds anything.
    """
    for pattern in split_patterns(globs):
        aliases = aliases_for(path, pattern)
        for name in ("", *inside):
            if any(_is_found(os.path.join(alias, name), pattern) for alias in aliases):
                return pattern, name
    return None


def _is_found(path: str, pattern: str) -> bool:
    """Returns whether a pattern finds an absolute path or a folder that it lies in."""
    folders = itertools.accumulate(path.rstrip("/").split("/"), "{}/{}".format)
    return any(matches(folder, files.absolute(pattern)) for folder in folders)


def list_inputs(globs: str | Sequence[str], tfds_data_dir: str = "") -> list[str]:
    """Returns the files that match the patterns, sorted and without duplicates.

    Args:
        globs: patterns, or one string of patterns separated by commas. ** matches nested folders, and a
            folder stands for all files under it that are not hidden. A pattern is a local path or a URL
            (gs://...); tfds:NAME is a data set that tensorflow-datasets has prepared.
        tfds_data_dir: the directory of these data sets; "" for the default of tensorflow-datasets.

    Raises:
        UserError: a pattern matches no file, all files are empty, or a file has an unsupported type.
    """
    patterns = split_patterns(globs)
    if not patterns:
        raise UserError("no input given; expected files or patterns such as --input='corpus/*.txt'")
    paths: set[str] = set()
    known: set[str] = set()  # one file may be given by several spellings of its path
    for pattern in patterns:
        given = sorted(source_of(pattern).find(tfds_data_dir), reverse=True)
        found = {identity(path): path for path in given}
        paths.update(path for one, path in found.items() if one not in known)
        known |= found.keys()
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


def identity(path: str) -> str:
    """Returns what all spellings of the path of an input have in common."""
    return path if files.is_remote(path) or not files.exists(path) else os.path.realpath(path)


def file_size(path: str) -> int:
    """Returns the size of a file or a TFDS data set, in bytes.

    Raises:
        OSError: it cannot be read.
    """
    return source_of(path).size()


def file_digest(path: str) -> dict[str, Any]:
    """Returns the size and the SHA-256 of a file, or of the concatenated files of a TFDS data set."""
    digest, size = hashlib.sha256(), 0
    for part in source_of(path).parts():
        with files.open_read(part) as file:
            while data := file.read(1 << 20):
                digest.update(data)
                size += len(data)
    return {"bytes": size, "sha256": digest.hexdigest()}


def checked_digest(given: tuple[str, Fields]) -> dict[str, Any]:
    """Returns the `file_digest` of a path, after a check that it is text, or a table with the fields.

    Raises:
        UserError: it is not, as far as its beginning and its columns show. Otherwise a build would end where
            it reads the file, and the right files would be another build, which begins anew.
    """
    path, fields = given
    source_of(path).check(fields)
    return file_digest(path)


def short_names(paths: Sequence[str]) -> list[str]:
    """Returns the paths without the folder that they have in common; for TFDS data sets, their names."""
    sources = [source_of(path) for path in paths]
    folders = [names for source in sources if (names := source.folders()) is not None]
    shared = len(os.path.commonprefix(folders)) if folders else 0  # noqa: RUF071 (of lists)
    return [source.name(shared) for source in sources]


def split_ranges(paths: Sequence[str], target_bytes: int, format: str = "text") -> list[Range]:
    """Splits inputs into ranges of about `target_bytes`.

    An empty file has no range, and a compressed one usually a single range. The ranges depend only on the
    arguments. Read in this order, they yield the documents in the order of the inputs.

    Args:
        paths: the inputs, as `list_inputs` returns them.
        target_bytes: the size of a range.
        format: one of FORMATS, which determines the files that can be split.
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes must be positive, not {target_bytes}")
    kind = named(format)
    return [
        range_
        for path, name in zip(paths, short_names(paths), strict=True)
        for range_ in source_of(path).split(target_bytes, kind, name)
    ]


def group_ranges(ranges: Sequence[Range], target_bytes: int) -> list[tuple[Range, ...]]:
    """Groups consecutive ranges to up to `target_bytes`, so that many small files make few tasks."""
    groups: list[list[Range]] = []
    size = target_bytes
    for range_ in ranges:
        if size + range_.size > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(range_)
        size += range_.size
    return [tuple(group) for group in groups]


def place(key: str, range_: Range) -> str:
    """Describes where a document begins: the name of the input, and the line, byte, row or record in it.

    Args:
        key: the key of the document, which is returned unchanged unless it is a file name and an offset.
        range_: the range of the document.
    """
    name, _, offset = key.partition("#")[0].rpartition(":")
    if name != range_.name or not offset.isdigit():
        return key
    return f"{name}, {source_of(range_.path).place(int(offset))}"
