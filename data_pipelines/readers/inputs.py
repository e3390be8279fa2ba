"""The files of a corpus: found, cut into byte ranges, opened."""

import bz2
import dataclasses
import glob
import gzip
import lzma
import os
from collections.abc import Callable, Sequence
from typing import BinaryIO

from bert_jax.errors import UserError

OPENERS: dict[str, Callable[[str], BinaryIO]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclasses.dataclass(frozen=True)
class Range:
    """The documents of a file that start at bytes [start, end) of it.

    Attributes:
        path: The file.
        name: A short name of the file, the same wherever the corpus lies; part of the keys of documents.
        start: First byte.
        end: The byte after the last; None in a compressed file, which is one range.
        size: How many bytes of the file this is.
    """

    path: str
    name: str
    start: int
    end: int | None
    size: int


def list_inputs(globs: str | Sequence[str]) -> list[str]:
    """The files that patterns match, sorted, each once.

    Args:
        globs: Patterns, or one string of patterns separated by commas; ** matches folders in folders, and a
            folder stands for all the files under it that aren't hidden.

    Raises:
        UserError: A pattern matches no file, all the files are empty, or one is of a kind that isn't read.
    """
    patterns = [globs] if isinstance(globs, str) else list(globs)
    patterns = [p for text in patterns for p in ([text] if os.path.exists(text) else text.split(",")) if p]
    if not patterns:
        raise UserError("no input given; expected files or patterns such as --input='corpus/*.txt'")
    paths: set[str] = set()
    for pattern in patterns:
        if "://" in pattern:
            raise UserError(f"{pattern} is not a local path; copy the corpus to this machine's disk first")
        found = [os.fspath(pattern)] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        files = [file for path in found for file in _files_under(path)]
        if not files:
            raise UserError(f"no input file matches {pattern!r} (from {os.getcwd()}); expected text files")
        paths.update(files)
    for path in sorted(paths):
        if path.endswith((".zst", ".zip", ".7z", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")):
            raise UserError(f"can't read {path}; expected plain text, .gz, .bz2 or .xz: unpack it first")
    if not any(os.path.getsize(path) for path in paths):
        raise UserError(f"all of the {len(paths)} input files are empty, {min(paths)} first; expected text")
    return sorted(paths)


def _files_under(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(folder, name) for name in names if not name.startswith(".")]
    return found


def split_ranges(paths: Sequence[str], target_bytes: int) -> list[Range]:
    """Cuts files into ranges of about `target_bytes`; empty files give none, compressed ones one each.

    The ranges depend on the files' sizes and `target_bytes` alone. Read in this order, they give the
    documents in the order of the files.
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes must be positive, not {target_bytes}")
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths]) if paths else ""
    ranges = []
    for path in paths:
        name = os.path.relpath(os.path.abspath(path), folder).replace(os.sep, "/")
        size = os.path.getsize(path)
        if os.path.splitext(path)[1] in OPENERS:
            ranges += [Range(path, name, 0, None, size)] if size else []
            continue
        number = -(-size // target_bytes)
        edges = [size * i // number for i in range(number + 1)] if number else []
        ranges += [Range(path, name, a, b, b - a) for a, b in zip(edges, edges[1:], strict=False)]
    return ranges


def broken_archive(path: str, error: Exception) -> UserError:
    kind = os.path.splitext(path)[1]
    return UserError(f"{path} is cut short or not a {kind} file ({error}); compress or copy it again")
