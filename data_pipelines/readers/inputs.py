"""The files of a corpus: found, cut into ranges, opened; on a local disk or wherever fsspec reads."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import itertools
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, BinaryIO

from bert_jax.errors import UserError, file_error
from bert_jax.io import compression, files
from data_pipelines.readers import prepared

_REFUSED = (".zip", ".7z", ".tar", ".tgz", *(".tar" + kind for kind in compression.OPENERS))
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # a bzip2 stream and its first block begin
_COUNTED_BYTES = 64 << 20  # of a file are read to tell the number of a line
_LONGEST_STREAM = 32 << 20  # compressed; what is longer isn't looked for


@dataclasses.dataclass(frozen=True)
class Range:
    """The documents of a file that start at bytes [start, end) of it.

    Attributes:
        path: The file, or a data set as `prepared.find` names it.
        name: A short name of the file, the same wherever the corpus lies; part of the keys of documents.
        start: First byte; of a data set, first record.
        end: The byte or record after the last; None in a compressed file that is one range.
        size: How many bytes of the file this is.
    """

    path: str
    name: str
    start: int
    end: int | None
    size: int


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
        if pattern.startswith(prepared.PREFIX):
            paths.add(prepared.find(pattern, tfds_data_dir))
            continue
        remote = files.is_remote(pattern)
        found = _remote_files(pattern) if remote else _local_files(pattern)
        if not found:
            where = "" if remote else f" (from {os.getcwd()})"
            raise UserError(f"no input file matches {pattern!r}{where}; expected text files")
        paths.update(found)
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


def _local_files(pattern: str) -> list[str]:
    found = [os.fspath(pattern)] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
    found = filter(os.path.lexists, found)  # glob gives NAME/ for NAME/** without looking
    return [file for path in found for file in _files_under(path)]


def _files_under(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(folder, name) for name in names if not name.startswith(".")]
    return found


def _remote_files(pattern: str) -> list[str]:
    scheme = files.scheme(pattern)
    try:
        system, bare = files.file_system(pattern)
        found = []
        with files.remote_errors(pattern):
            for path in system.glob(bare):
                if not system.isdir(path):
                    found.append(path)
                    continue
                under = [file for file in system.find(path) if "/." not in file[len(path) :]]
                found += [file for file in under if system.size(file) is not None]
    except OSError as error:
        message = f"can't list {pattern} ({error.strerror}); is it there, and allowed?"
        raise file_error(message, error) from None
    return [f"{scheme}://{path.lstrip('/')}" for path in found]


def file_size(path: str) -> int:
    """The bytes of a file or data set.

    Raises:
        OSError: it can't be read.
    """
    if path.startswith(prepared.PREFIX):
        return prepared.size(path)
    return files.size(path)


def file_digest(path: str) -> dict[str, Any]:
    """The size and the SHA-256 of a file, or of the files of a data set one after the other."""
    digest, size = hashlib.sha256(), 0
    for part in prepared.files(path) if path.startswith(prepared.PREFIX) else [path]:
        with files.open_read(part) as file:
            while data := file.read(1 << 20):
                digest.update(data)
                size += len(data)
    return {"bytes": size, "sha256": digest.hexdigest()}


def short_names(paths: Sequence[str]) -> list[str]:
    """The paths without the folder that they have in common; of data sets, their names."""
    parts = [files.absolute(path).replace(os.sep, "/").split("/") for path in paths]
    folders = [
        part[:-1] for path, part in zip(paths, parts, strict=True) if not path.startswith(prepared.PREFIX)
    ]
    shared = len(os.path.commonprefix(folders)) if folders else 0  # noqa: RUF071 (of lists)
    return [
        prepared.name(path) if path.startswith(prepared.PREFIX) else "/".join(part[shared:])
        for path, part in zip(paths, parts, strict=True)
    ]


def split_ranges(
    paths: Sequence[str], target_bytes: int, whole: bool = False, streams: bool = False
) -> list[Range]:
    """Cuts files into ranges of about `target_bytes`; empty files give none, compressed ones one each.

    The ranges depend on the files and `target_bytes` alone. Read in this order, they give the documents in
    the order of the files.

    Args:
        paths: Files, as `list_inputs` gives them.
        target_bytes: The size of a range.
        whole: Cut no file.
        streams: Cut .bz2 files of several streams where one begins.
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes must be positive, not {target_bytes}")
    ranges = []
    for path, name in zip(paths, short_names(paths), strict=True):
        size = file_size(path)
        number = -(-size // target_bytes)
        if path.startswith(prepared.PREFIX):
            records = prepared.length(path)
            edges = sorted({records * i // number for i in range(number + 1)}) if number else []
            ranges += [
                Range(path, name, a, b, size * b // records - size * a // records)
                for a, b in itertools.pairwise(edges)
            ]
            continue
        edges = [size * i // number for i in range(number + 1)] if number else []
        kind = compression.suffix(path)
        if kind == ".bz2" and streams and number > 1:
            edges = _stream_edges(path, edges)
        elif whole or kind:
            edges = [0, size] if size else []
        one = len(edges) == 2 and bool(kind)
        ranges += [Range(path, name, a, None if one else b, b - a) for a, b in itertools.pairwise(edges)]
    return ranges


def _stream_edges(path: str, edges: list[int]) -> list[int]:
    """The edges moved on to where bzip2 streams begin; those that have none soon after are left out."""
    found = {0, edges[-1]}
    with files.open_read(path) as file:
        for edge in edges[1:-1]:
            start = _next_stream(file, edge)
            if start is None:
                break  # a file of one stream isn't searched at every edge
            found.add(start)
    return sorted(found)


def _next_stream(file: BinaryIO, offset: int) -> int | None:
    file.seek(offset)
    end, tail = offset + _LONGEST_STREAM, b""
    while offset < end and (data := file.read(1 << 20)):
        match = _STREAM.search(tail + data)
        if match:
            return offset - len(tail) + match.start()
        offset += len(data)
        tail = (tail + data)[-9:]
    return None


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
