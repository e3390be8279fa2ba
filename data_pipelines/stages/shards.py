"""Divides rows among the final record files."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.data import tfrecord
from bert_jax.io import files

_PIECES = 64  # pieces into which `spread` cuts each part


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """The arguments of `make_shard`: the rows of one output file."""

    parts: tuple[tuple[str, int, int, int], ...]  # (record file, first row, end row, step)
    output: str


def share_rows(
    parts: Sequence[tuple[str, int]], shards: int, round_robin: bool = False
) -> list[tuple[tuple[str, int, int, int], ...]]:
    """Divides the rows of (record file, number of rows) pairs; returns the `ShardTask.parts` of each shard.

    With `round_robin`, row i goes to shard i % shards; otherwise, each shard gets consecutive rows.
    """
    total = sum(rows for _, rows in parts)
    edges = [total * number // shards for number in range(shards + 1)]
    shares: list[list[tuple[str, int, int, int]]] = [[] for _ in range(shards)]
    begin = 0
    for path, rows in parts:
        for number, (share, (low, high)) in enumerate(zip(shares, itertools.pairwise(edges), strict=True)):
            first, end, step = max(low - begin, 0), min(high - begin, rows), 1
            if round_robin:
                first, end, step = (number - begin) % shards, rows, shards
            if first < end:
                share.append((path, first, end, step))
        begin += rows
    return [tuple(share) for share in shares]


def spread(parts: Sequence[tuple[str, int, int, int]]) -> tuple[tuple[str, int, int, int], ...]:
    """Returns the `ShardTask.parts` of a file in pieces, in an order that spreads each part over the file.

    A reader of the first rows then sees rows of all parts.
    """
    placed = []
    for number, (path, first, end, step) in enumerate(parts):
        rows = -(-(end - first) // step)
        count = min(rows, _PIECES)
        edges = [rows * i // count for i in range(count + 1)]
        for low, high in itertools.pairwise(edges):
            piece = (path, first + low * step, min(end, first + high * step), step)
            placed.append(((low + high) / (2 * rows), number, piece))
    return tuple(piece for *_, piece in sorted(placed))


def make_shard(task: ShardTask) -> dict[str, Any]:
    """Copies rows into one record file, and checks their CRCs; returns the manifest's entry for the file."""
    repeated = len({path for path, *_ in task.parts}) < len(task.parts)
    # Files that occur once are closed after their rows, because their indexes are large.
    opened = functools.cache(tfrecord.RecordFile) if repeated else tfrecord.RecordFile
    parts = ((opened(path), np.arange(*numbers)) for path, *numbers in task.parts)
    rows = (file[number] for file, numbers in parts for number in numbers.tolist())
    count, size = tfrecord.write_records(task.output, rows)
    return {"name": files.name(task.output), "rows": count, "bytes": size}
