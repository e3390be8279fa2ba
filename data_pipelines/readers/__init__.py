"""Reads corpora as streams of documents, from files of several formats, plain or compressed, by byte ranges.

A file is split into byte ranges for several workers. A range contains the documents that start in it, and its
reader reads the last of them to its end, so the documents of a file do not depend on how it is split. Text is
cleaned while it is read: undecodable bytes become U+FFFD, and control characters are dropped; the `counts` of
`read_documents` count both.
"""

import bisect
import collections
import dataclasses
import functools
import glob
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from bert_jax import hub
from bert_jax.errors import UserError, check_flag
from bert_jax.io import columnar, comma_lists, compression, files, json_files, remote, tfds
from bert_jax.io.progress import log
from bert_jax.io.wording import counted, some
from data_pipelines.readers import books, tables, wikipedia
from data_pipelines.readers.documents import Document, Range, read_text

_STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # the beginning of a bzip2 stream and of its first block
_LONGEST_STREAM = 32 << 20  # compressed bytes; longer streams are not searched for
_HIGH_SKIPPED_FRACTION = 0.01  # of the records; some corpora have a few without text
AUTO = "auto"
TEXT_FIELD = "text"
_BY_SUFFIX = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".xml": "wikipedia_xml",
    **dict.fromkeys(json_files.LINES_SUFFIXES, "jsonl"),
}

# The counts of `read_documents` in addition to "documents" and "bytes".
COUNTS: tuple[str, ...] = (
    *"undecodable control_characters long_lines long_documents unclosed outside other_namespaces".split(),
    *"redirects disambiguations broken_pages latin_1_books boilerplate headings".split(),
    *"bad_lines without_text empty_pages sentences_with_holes".split(),
)


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of a corpus."""

    read: Callable[[Range, collections.Counter[str], str, bool], Iterator[Document]]  # updates the counts
    splits: str = "bytes"  # the unit at which a file can be split: "bytes", "records", or "" for none
    bzip2_streams: bool = False  # whether a .bz2 file may be split where one of its streams begins
    has_fields: bool = False
    sentence_lines: bool = False  # whether a line is a sentence; in other formats, lines are split


# By the value of --input_format.
FORMATS: dict[str, Format] = {
    "text": Format(read_text, sentence_lines=True),
    "paragraphs": Format(functools.partial(read_text, presplit=False)),
    "wikiextractor": Format(wikipedia.read_extracted),
    "wikipedia_xml": Format(wikipedia.read_xml, bzip2_streams=True),
    "books": Format(books.read, splits=""),
    "jsonl": Format(tables.read_jsonl, has_fields=True),
    "csv": Format(tables.read_csv, splits="", has_fields=True),
}
_COLUMNS = Format(tables.read_columns, splits="records", has_fields=True)
_TFDS = Format(tables.read_tfds, splits="records", has_fields=True)


def format_of(path: str, name: str) -> Format:
    """Returns the format of a path: `name`, unless the path is a Parquet or Arrow file or a TFDS data set."""
    if path.startswith(tfds.PREFIX):
        return _TFDS
    return _COLUMNS if columnar.is_columnar(path) else FORMATS[name]


def has_fields(paths: Sequence[str], name: str) -> bool:
    """Returns True if a text field of any of the inputs is read."""
    return any(format_of(path, name).has_fields for path in paths)


def presplit(paths: Sequence[str], name: str) -> bool:
    """Returns True if all lines of the inputs are sentences, so that no sentences are split."""
    return FORMATS[name].sentence_lines and not has_fields(paths, name)


def resolve_format(paths: Sequence[str], name: str, text_field: str) -> str:
    """Returns the format in which the inputs are read: `name`, or for AUTO the one that suffixes imply."""
    if name == AUTO:
        others = [path for path in paths if not (path.startswith(tfds.PREFIX) or columnar.is_columnar(path))]
        suffixes = {files.suffix(compression.strip_suffix(path)): path for path in others}
        names = {_BY_SUFFIX.get(suffix) for suffix in suffixes} or {"text"}
        if len(names) > 1 or None in names:
            raise UserError(
                f"the suffixes of {some(suffixes.values())} imply no single format; set --input_format"
            )
        name = str(names.pop())
    is_used = text_field == TEXT_FIELD or has_fields(paths, name)
    check_flag("text_field", text_field, is_used, f"no value with --input_format={name}")
    return name


def no_text(paths: Sequence[str], name: str) -> UserError:
    """Returns the error for files without text in their format."""
    return UserError(f"no text in {some(paths)}; check --input_format={name}, --text_field and --clean")


def read_documents(
    range_: Range,
    format: str,
    counts: collections.Counter[str] | None = None,
    text_field: str = TEXT_FIELD,
    spaces: bool = False,
) -> Iterator[Document]:
    """Yields the documents that start in a range, which `split_ranges` returned for this format.

    It keeps at most one document and one line, page or record in memory. `counts` is updated with
    "documents", "bytes" and COUNTS; "outside", lines outside <doc> elements, is a lower bound: the split into
    ranges can hide some. For `spaces` see `documents.clean`.
    """
    counts = collections.Counter() if counts is None else counts
    for document in format_of(range_.path, format).read(range_, counts, text_field, spaces):
        counts["documents"] += document.part == 0
        yield document


def skipped(counts: Mapping[str, int]) -> list[str]:
    """Returns a message if over 1% of the records (lines of JSON, rows of a table) were skipped."""
    bad, without = (counts.get(name, 0) for name in ("bad_lines", "without_text"))
    records = counts.get("documents", 0) + bad + without
    if bad + without <= _HIGH_SKIPPED_FRACTION * records:
        return []
    return [
        f"{(bad + without) / records:.1%} of the {counted(records, 'record')} were skipped: {bad:,} are "
        f"damaged or too long, and {without:,} have no text in --text_field"
    ]


def list_inputs(globs: str | Sequence[str], exclude: str = "") -> list[str]:
    """Returns the files that match the patterns, sorted and without duplicates.

    Patterns are local paths, URLs, or names (tfds:NAME, hf:ORG/NAME), in one or several strings, in which
    commas separate them. ** matches nested folders, and a folder means all files under it that are not
    hidden. `exclude` is a file or a folder that the command writes; its files are not inputs.
    """
    patterns = [globs] if isinstance(globs, str) else globs
    patterns = [path for text in patterns for path in comma_lists.paths(text, lambda path: bool(_glob(path)))]
    paths: dict[str, str] = {}  # by identity, since one file may be given by several spellings of its path
    for pattern in patterns:
        for path in sorted(_find(pattern, exclude)):
            # Text is read more than once.
            check_flag("input", path, os.path.isfile(path) or not os.path.exists(path), "a file, not a pipe")
            paths.setdefault(identity(path), path)
    has_text = any(map(file_size, paths.values()))
    check_flag("input", some(patterns), has_text, "a file with text")
    return sorted(paths.values())


def _find(pattern: str, exclude: str) -> list[str]:
    if pattern.startswith(tfds.PREFIX):
        return [tfds.find(pattern)]
    if (named := hub.data_set(pattern)) and not named.task:
        pattern = named.source
    if pattern.startswith(hub.DATA):
        return hub.data_files(pattern, "train")
    if files.is_remote(pattern):
        paths = _remote_files(pattern)
    else:
        paths = [path for each in _glob(pattern) for path in _of_data_set(each, _files_under(each))]
    own = f"{identity(exclude)}/" if exclude else ""
    paths = [path for path in paths if not own or not f"{identity(path)}/".startswith(own)]
    check_flag("input", pattern, paths, "existing files or the name of a corpus")
    return paths


def _glob(pattern: str) -> list[str]:
    return [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)


def _files_under(path: str) -> list[str]:
    """Returns the files in a folder and in the folders and links in it; for a file, the file itself."""
    if not os.path.isdir(path):
        return [path]
    found: list[str] = []
    for folder, folders, names in os.walk(path, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(folder, name) for name in names if not name.startswith(".")]
    return found


def _raise(error: OSError) -> None:
    raise error


def _of_data_set(folder: str, paths: list[str]) -> list[str]:
    """Returns the Parquet and Arrow files of a folder if it has any, else all of its files."""
    data_set = columnar.of_data_set(paths)
    others = [path for path in paths if not (columnar.is_columnar(path) or path.endswith((".json", ".md")))]
    if data_set and others:
        log(f"warning: of {folder}, only the Parquet and Arrow files are read, not {others[0]}")
    return data_set or paths


def _remote_files(pattern: str) -> list[str]:
    system, bare = remote.file_system(pattern)
    found = []
    with remote.errors(pattern):
        for path in system.glob(bare):
            if not system.isdir(path):
                found.append(path)
                continue
            under = [file for file in system.find(path) if "/." not in file[len(path) :]]
            found += _of_data_set(path, [file for file in under if system.size(file) is not None])
    url, place = pattern.rstrip("/"), bare.rstrip("/")
    if place and url.endswith(place):
        # File systems omit the scheme from their paths, and some of them the host.
        return [f"{url.removesuffix(place)}{path}" for path in found]
    return [f"{files.scheme(pattern)}://{path.lstrip('/')}" for path in found]


def identity(path: str) -> str:
    """Returns a value that all spellings of the path of an input have in common."""
    return path if files.is_remote(path) or path.startswith(tfds.PREFIX) else os.path.realpath(path)


def file_size(path: str) -> int:
    """Returns the size of a file or a TFDS data set, in bytes."""
    return tfds.size(path) if path.startswith(tfds.PREFIX) else files.size(path)


def file_digest(path: str) -> dict[str, Any]:
    """Returns the size and the SHA-256 of a file, or of all files of a TFDS data set."""
    digest = hashlib.sha256()
    for each in tfds.files(path) if path.startswith(tfds.PREFIX) else [path]:
        with files.open_read(each) as file:
            while data := file.read(1 << 20):
                digest.update(data)
    return {"bytes": file_size(path), "sha256": digest.hexdigest()}


def short_names(paths: Sequence[str]) -> list[str]:
    """Returns the paths without the folder that they have in common; for TFDS data sets, their names."""
    names = [
        None if path.startswith(tfds.PREFIX) else files.absolute(path).replace(os.sep, "/").split("/")
        for path in paths
    ]
    folders = [name[:-1] for name in names if name]
    shared = len(os.path.commonprefix(folders)) if folders else 0  # noqa: RUF071 (of lists)
    return [
        "/".join(name[shared:]) if name else tfds.builder(path).info.full_name
        for path, name in zip(paths, names, strict=True)
    ]


def split_ranges(paths: Sequence[str], target_bytes: int, format: str = "text") -> list[Range]:
    """Splits inputs into ranges of about `target_bytes`, which depend only on the arguments.

    An empty file has no range, and a compressed one usually a single range. Read in this order, they yield
    the documents in the order of the inputs.
    """
    return [
        range_
        for path, name in zip(paths, short_names(paths), strict=True)
        for range_ in _split(path, target_bytes, format, name)
    ]


def _split(path: str, target_bytes: int, format: str, name: str) -> list[Range]:
    size = file_size(path)
    number = -(-size // target_bytes)
    if not number:
        return []
    kind = format_of(path, format)
    if kind.splits == "records":
        return _split_records(path, name, size, number)
    compressed = compression.suffix(path)
    edges = [size * i // number for i in range(number + 1)]
    if compressed == ".bz2" and kind.bzip2_streams and number > 1:
        edges = _stream_edges(path, edges)
    elif not kind.splits or compressed:
        edges = [0, size]
    whole = len(edges) == 2 and bool(compressed)
    return [Range(path, name, a, None if whole else b, b - a) for a, b in itertools.pairwise(edges)]


def _split_records(path: str, name: str, size: int, number: int) -> list[Range]:
    """Returns about `number` ranges of records; ranges of a Parquet file begin with a row group."""
    starts: list[int] = []
    if path.startswith(tfds.PREFIX):
        records = tfds.builder(path).info.splits[tfds.SPLIT].num_examples
    else:
        table = tables.table(path)
        records, starts = len(table), table.group_starts
    edges = sorted({records * i // number for i in range(number + 1)}) if records else []
    if starts and edges:
        inside = {starts[bisect.bisect_right(starts, edge) - 1] for edge in edges[:-1]}
        edges = sorted({*inside, records})
    return [
        Range(path, name, a, b, size * b // records - size * a // records)
        for a, b in itertools.pairwise(edges)
    ]


def _stream_edges(path: str, edges: list[int]) -> list[int]:
    """Moves each edge to the next start of a bzip2 stream, and drops edges without a stream soon after."""
    found = {0, edges[-1]}
    with files.open_read(path) as file:
        for edge in edges[1:-1]:
            start = _next_stream(file, edge)
            if start is None:
                break  # avoids searching a file of one stream from every edge
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


def group_ranges(ranges: Sequence[Range], target_bytes: int) -> list[tuple[Range, ...]]:
    """Groups consecutive ranges up to `target_bytes`, so that many small files make few tasks."""
    groups: list[list[Range]] = []
    size = target_bytes
    for range_ in ranges:
        if size + range_.size > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(range_)
        size += range_.size
    return [tuple(group) for group in groups]
