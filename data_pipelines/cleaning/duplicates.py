"""Drops duplicate documents of a corpus of any size: the steps `exact` and `near` of --clean.

1. `tokenizing.tokenize` writes .npy files next to each run of documents (module `sorted_runs`): marks, one
   row per document in the order of the run; for `near`, the MinHash signatures in the same order; and for
   each step the entries in which documents are compared, sorted by band. For `exact`, a document has one
   entry, the hash of its text; for `near`, one for each band of its signature.
2. `find` pairs documents with equal entries and, for `near`, documents that share a band and whose signatures
   agree, for one range of the bands of all runs; `unite` joins the results of all ranges to groups.
3. `mark_dropped` writes a mask next to each run that hides the dropped documents from
   `sorted_runs.read_documents`.

The document with the smallest key of each group is kept; among equal keys, the first one in the corpus. So
the result does not depend on the workers or on the ranges into which the corpus was split.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epy

from bert_jax.errors import optional_imports
from bert_jax.io import files
from data_pipelines import sorted_runs
from data_pipelines.cleaning import steps
from data_pipelines.cleaning.steps import Settings, folded_text
from data_pipelines.readers import Document
from data_pipelines.sorted_runs import save_array

with optional_imports("cleaning"):
    import rensa
# Imported at the first use, because every worker imports this module, and scipy takes 30 MB.
with epy.lazy_imports():
    from scipy import sparse
    from scipy.sparse import csgraph

PARTITION_ENTRIES = 2 << 20  # in the memory of one task, about 200 MB
PERMUTATIONS = 126  # number of values in a signature; it is divisible by many band sizes
_SEED = 1
_SHINGLE_WORDS = 5
_RECALL = 0.98  # minimum fraction of pairs with a similarity equal to the threshold that share a band
_NEIGHBORS = 64  # each document is compared with this many that follow it in its band, ordered by key
_PAIRS_AT_ONCE = 1 << 16
_POSITION_BITS = 32
_REASONS = {"exact": "duplicate", "near": "near duplicate"}

# A document's id is the number of its run and, in the low 32 bits, its position in the run.
_MARK = np.dtype(
    [
        ("key", "<u8"),
        ("tokens", "<u4"),
        ("sentences", "<u4"),
        ("unknown_tokens", "<u4"),
        ("bytes", "<u4"),
        ("document", "<u4"),  # number of the document in its task; all parts of a long one have the same
        ("name", "S120"),  # the key of the document and the beginning of its text, for the report
        ("begin", f"S{2 * steps.EXAMPLE_CHARACTERS}"),
    ]
)
# Entries with the same band and content are of duplicates.
_ENTRY = np.dtype([("band", "<u8"), ("content", "<u8"), ("key", "<u8"), ("position", "<u4")])
_PAIR = np.dtype([("key", "<u8"), ("id", "<u8"), ("other_key", "<u8"), ("other", "<u8")])

RunStage = Callable[[str, Callable[[Any], dict[str, Any]], Sequence[Any]], list[dict[str, Any]]]

# A word, or one character of a script without spaces between words.
_WORDS = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)


def shingles(folded: str) -> list[str]:
    """Returns all sequences of five consecutive words of a text; the whole text if it has fewer words."""
    words = (re.findall(r"\w+", folded) if folded.isascii() else _WORDS.findall(folded)) or [folded]
    return [
        " ".join(words[start : start + _SHINGLE_WORDS])
        for start in range(max(1, len(words) - _SHINGLE_WORDS + 1))
    ]


def signature(folded: str) -> np.ndarray:
    """Returns the MinHash signature of a text, uint32 [PERMUTATIONS].

    The fraction of equal values in two signatures estimates the Jaccard similarity of their sets of shingles
    (Broder, On the resemblance and containment of documents, 1997), with a standard error of at most
    1 / (2 sqrt(PERMUTATIONS)) = 0.045.
    """
    minhash = rensa.RMinHash(PERMUTATIONS, _SEED)
    minhash.update(shingles(folded))
    return np.array(minhash.digest(), np.uint32)


@functools.cache
def band_rows(threshold: float) -> int:
    """Returns the largest number of values in a band that finds 98% of the pairs at the threshold."""
    return max(
        rows
        for rows in range(1, PERMUTATIONS + 1)
        if rows == 1 or 1 - (1 - threshold**rows) ** (PERMUTATIONS // rows) >= _RECALL
    )


def band_hashes(signatures: np.ndarray, rows: int) -> np.ndarray:
    """Returns 64-bit hashes of the bands of signatures; equal values in different bands differ.

    Args:
        signatures: uint32 [n, PERMUTATIONS].
        rows: the number of values in a band.

    Returns:
        uint64 [n, PERMUTATIONS // rows].
    """
    bands = PERMUTATIONS // rows
    values = signatures[:, : bands * rows].reshape(len(signatures), bands, rows).astype(np.uint64)
    state = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64), values.shape[:2])
    for row in range(rows):  # one step of SplitMix64 (Steele, Lea and Flood, 2014) and its finalizer
        state = (state ^ values[..., row]) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


class Writer:
    """Collects the hashes and signatures of a run's documents, in the order in which they are added to it.

    Attributes:
        size: the approximate memory of what was collected, in bytes.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self._exact, self._near = "exact" in settings.steps, "near" in settings.steps
        self._marks: list[tuple] = []
        self._hashes: list[bytes] = []
        self._signatures: list[np.ndarray] = []
        self.size = 0

    def add(self, key: int, document: Document, number: int, counts: tuple[int, int, int]) -> None:
        """Adds a document, or a part of one, that was added to the run.

        Args:
            key: the key of the document.
            document: the document.
            number: the number of the document in its task, the same for all its parts.
            counts: its numbers of tokens, of sentences and of [UNK].
        """
        folded = folded_text(document.passages)
        if self._exact:
            encoded = folded.encode("utf-8", "surrogatepass")
            self._hashes.append(hashlib.blake2b(encoded, digest_size=16).digest())
        if self._near:
            self._signatures.append(signature(folded))
        most = steps.EXAMPLE_CHARACTERS
        begin = "\n".join(passage[:most] for passage in document.passages[:most])[:most]
        name, text = (one.encode("utf-8", "replace") for one in (document.key, begin))
        self._marks.append((key, *counts, document.size, number, name, text))
        self.size += 2 * _MARK.itemsize + 4 * PERMUTATIONS * self._near

    def write(self, run: str) -> None:
        """Writes the files next to a run."""
        marks = np.array(self._marks, _MARK)
        order = np.argsort(marks["key"], kind="stable")  # the order of the documents in the run
        marks = marks[order]
        entries = {}
        if self._exact:
            hashes = np.frombuffer(b"".join(self._hashes), "<u8").reshape(-1, 1, 2)[order]
            entries["exact"] = hashes[..., 0], hashes[..., 1]
        if self._near:
            signatures = np.array(self._signatures, "<u4")[order]
            rows = band_rows(self._settings.near_duplicate_threshold)
            entries["near"] = band_hashes(signatures, rows), band_hashes(signatures, PERMUTATIONS)
            save_array(f"{run}.signatures", signatures)
        for step, (bands, content) in entries.items():
            found = np.empty(bands.shape, _ENTRY)
            found["band"], found["content"] = bands, content
            found["key"], found["position"] = marks["key"][:, None], np.arange(len(marks))[:, None]
            save_array(f"{run}.{step}", np.sort(found.ravel(), order="band", kind="stable"))
        save_array(f"{run}.marks", marks)


def remove(run: str) -> None:
    """Deletes a run and all files next to it."""
    for suffix in ("", ".marks", ".exact", ".near", ".signatures", ".dropped"):
        files.remove(run + suffix, missing_ok=True)


@dataclasses.dataclass(frozen=True)
class FindTask:
    """The arguments of `find`: the entries of all runs whose band is in [low, high)."""

    step: str
    runs: tuple[str, ...]
    low: int
    high: int
    threshold: float
    output: str


@dataclasses.dataclass(frozen=True)
class UniteTask:
    """The arguments of `unite`."""

    pairs: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True)
class MarkTask:
    """The arguments of `mark_dropped`: runs[first:end] belong to one task of `tokenizing.tokenize`."""

    runs: tuple[str, ...]
    first: int
    end: int
    pairs: dict[str, str]  # the files that `unite` wrote, by step
    output: str


def drop(
    tokenized: Sequence[dict[str, Any]],
    settings: Settings,
    path: Callable[[str], str],
    run_stage: RunStage,
) -> list[dict[str, Any]]:
    """Marks the duplicates among the documents of all runs as dropped.

    Args:
        tokenized: the results of `tokenizing.tokenize`.
        settings: the cleaning settings.
        path: returns the path of a file, given its name.
        run_stage: runs a stage, given (title, function, tasks), and returns the results in order.

    Returns:
        `tokenized` without the counts of the duplicates, and with the counts of the cleaning steps.
    """
    runs = tuple(path(run) for result in tokenized for run in result["runs"])
    if not runs:
        return list(tokenized)
    documents = sum(result["stored_documents"] for result in tokenized)
    threshold = settings.near_duplicate_threshold
    pairs = {}
    for step, entries in (("exact", 1), ("near", PERMUTATIONS // band_rows(threshold))):
        if step not in settings.steps:
            continue
        count = -(-documents * entries // PARTITION_ENTRIES) or 1
        edges = [(number << sorted_runs.KEY_BITS) // count for number in range(count + 1)]
        tasks = [
            FindTask(step, runs, low, high, threshold, path(f"{step}-{number:06d}"))
            for number, (low, high) in enumerate(itertools.pairwise(edges))
        ]
        run_stage(f"finding {_REASONS[step]}s", find, tasks)
        union = UniteTask(tuple(task.output for task in tasks), path(f"{step}-groups"))
        run_stage(f"grouping {_REASONS[step]}s", unite, [union])
        pairs[step] = union.output
    ends = list(itertools.accumulate(len(result["runs"]) for result in tokenized))
    marks = [
        MarkTask(runs, end - len(result["runs"]), end, pairs, path(f"kept-{number:06d}"))
        for number, (end, result) in enumerate(zip(ends, tokenized, strict=True))
    ]
    marked = run_stage("dropping duplicates", mark_dropped, marks)
    return [_reduced(result, mark) for result, mark in zip(tokenized, marked, strict=True)]


def _reduced(result: dict[str, Any], marked: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a task of `tokenizing.tokenize` without the documents that were dropped."""
    counts = {name: result[name] - count for name, count in marked["dropped"].items()}
    counts_of = copy.deepcopy(result["cleaning"]["steps"])
    for step, found in marked["steps"].items():
        for name in ("documents_dropped", "bytes_dropped"):
            counts_of[step][name] += found[name]
        if found["documents_dropped"]:
            counts_of[step]["reasons"] |= {_REASONS[step]: found["documents_dropped"]}
    return (
        result
        | counts
        | {name: marked[name] for name in ("documents", "histogram", "smallest_keys")}
        | {"cleaning": result["cleaning"] | {"steps": counts_of}}
        | {"duplicates": {step: found["examples"] for step, found in marked["steps"].items()}}
    )


def merged_report(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the report of all cleaning, given the results of `tokenizing.tokenize` or of `drop`.

    The examples of a step that drops duplicates start with those that have the smallest keys.
    """
    merged = steps.merged_report([result["cleaning"] for result in results])
    for step in results[0].get("duplicates", {}):
        found = [shown for result in results for shown in result["duplicates"][step]]
        found = [shown for _, shown in sorted(found, key=lambda item: item[0])]
        examples = found + merged["steps"][step]["examples"]
        merged["steps"][step]["examples"] = examples[: steps.MOST_EXAMPLES]
    return merged


def _entries(task: FindTask) -> tuple[np.ndarray, np.ndarray]:
    """Returns the entries of all runs in the range of a task, and the ids of their documents."""
    ranges = []
    for run in task.runs:
        entries = files.load_array(f"{run}.{task.step}")
        # np.searchsorted would copy the whole field first.
        first = bisect.bisect_left(entries["band"], task.low)
        last_range = task.high >> sorted_runs.KEY_BITS
        end = len(entries) if last_range else bisect.bisect_left(entries["band"], task.high)
        ranges.append(np.array(entries[first:end]))
    found = np.concatenate(ranges)
    numbers = np.repeat(np.arange(len(ranges), dtype=np.uint64), list(map(len, ranges)))
    return found, (numbers << np.uint64(_POSITION_BITS)) | found["position"].astype(np.uint64)


def _first_of_each(*sorted_columns: np.ndarray) -> np.ndarray:
    """Returns, for each row of sorted columns, the index of the first row that is equal to it."""
    new = np.ones(len(sorted_columns[0]), bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in sorted_columns])
    return np.flatnonzero(new)[np.cumsum(new) - 1] if len(new) else np.zeros(0, np.int64)


def _pairs(keys: np.ndarray, ids: np.ndarray, firsts: np.ndarray, others: np.ndarray) -> np.ndarray:
    pairs = np.empty(len(others), _PAIR)
    pairs["key"], pairs["id"] = keys[firsts], ids[firsts]
    pairs["other_key"], pairs["other"] = keys[others], ids[others]
    return pairs


def find(task: FindTask) -> dict[str, Any]:
    """Writes pairs of duplicates: a spanning forest of all of them, with the smallest key in each pair.

    Documents with equal entries are paired, and for `near` those in a band whose estimated similarity reaches
    the threshold. The documents of a band are sorted by key, which is a random order, and each is compared
    with the next 64. This covers all pairs of a band of up to 65 documents, and bounds the work where a site
    repeats a template a million times.
    """
    entries, ids = _entries(task)
    order = np.lexsort((ids, entries["key"], entries["content"], entries["band"]))
    entries, ids = entries[order], ids[order]
    firsts = _first_of_each(entries["band"], entries["content"])
    twins = np.flatnonzero(firsts != np.arange(len(entries)))
    forest = _spanning_forest(_pairs(entries["key"], ids, firsts[twins], twins))
    unique = firsts == np.arange(len(entries)) if task.step == "near" else np.zeros(len(entries), bool)
    entries, ids = entries[unique], ids[unique]
    order = np.lexsort((ids, entries["key"], entries["band"]))
    bands, keys, ids = entries["band"][order], entries["key"][order], ids[order]
    compared = 0
    for distance in range(1, _NEIGHBORS + 1):
        neighbors = np.flatnonzero(bands[distance:] == bands[:-distance])
        if not len(neighbors):
            break
        pairs = _pairs(keys, ids, neighbors, neighbors + distance)
        compared += len(pairs)
        similar = [
            some[_similarities(task.runs, some) >= task.threshold]
            for start in range(0, len(pairs), _PAIRS_AT_ONCE)
            if len(some := pairs[start : start + _PAIRS_AT_ONCE])
        ]
        forest = _spanning_forest(np.concatenate([forest, *similar]))
    save_array(task.output, forest)
    return {"compared": compared, "pairs": len(forest)}


def _similarities(runs: Sequence[str], pairs: np.ndarray) -> np.ndarray:
    """Returns the fraction of equal values in the two signatures of each pair, float [n]."""
    ids, places = np.unique(np.concatenate((pairs["id"], pairs["other"])), return_inverse=True)
    signatures = np.empty((len(ids), PERMUTATIONS), np.uint32)
    numbers = ids >> np.uint64(_POSITION_BITS)
    for number in np.unique(numbers):
        of_run = numbers == number
        rows = (ids[of_run] & np.uint64((1 << _POSITION_BITS) - 1)).astype(np.int64)
        signatures[of_run] = files.load_array(f"{runs[int(number)]}.signatures")[rows]
    return (signatures[places[: len(pairs)]] == signatures[places[len(pairs) :]]).mean(axis=1)


def _spanning_forest(pairs: np.ndarray) -> np.ndarray:
    """Returns pairs that connect the same groups: the smallest key of each with every other one."""
    ids, rows, places = np.unique(
        np.concatenate((pairs["id"], pairs["other"])), return_index=True, return_inverse=True
    )
    keys = np.concatenate((pairs["key"], pairs["other_key"]))[rows]
    edges = places[: len(pairs)], places[len(pairs) :]
    graph = sparse.coo_array((np.ones(len(pairs), bool), edges), (len(ids), len(ids)))
    groups = csgraph.connected_components(graph, directed=False)[1] if len(ids) else np.zeros(0, np.int32)
    order = np.lexsort((ids, keys, groups))
    firsts = _first_of_each(groups[order])
    others = np.flatnonzero(firsts != np.arange(len(order)))
    return _pairs(keys[order], ids[order], firsts[others], others)


def unite(task: UniteTask) -> dict[str, Any]:
    """Writes pairs of duplicates, the kept one first; they are sorted by the other one.

    The memory is about 100 bytes for each document with a duplicate.
    """
    forest = np.zeros(0, _PAIR)
    for name in task.pairs:
        forest = _spanning_forest(np.concatenate([forest, files.load_array(name)]))
    save_array(task.output, np.sort(forest, order="other"))
    return {"dropped": len(forest)}


def mark_dropped(task: MarkTask) -> dict[str, Any]:
    """Writes the masks of dropped documents next to the runs of one task.

    A document that repeats another one exactly is counted for the step `exact` only.

    Returns:
        `documents`, `histogram` and `smallest_keys` of the remaining documents, as `tokenizing.tokenize`
        returns them; `dropped`, the counts of the dropped ones; `steps`, the counts and examples of steps.
    """
    histogram = sorted_runs.new_histogram()
    dropped_counts = dict.fromkeys(("sentences", "tokens", "unknown_tokens"), 0)
    smallest: list[int] = []
    left_numbers = [np.zeros(0, np.uint32)]
    by_step: dict[str, dict[str, Any]] = {
        step: {"documents_dropped": 0, "bytes_dropped": 0, "examples": []} for step in task.pairs
    }
    for number in range(task.first, task.end):
        run = task.runs[number]
        marks = np.array(files.load_array(f"{run}.marks"))
        dropped = np.zeros(len(marks), bool)
        for step, name in task.pairs.items():
            pairs = _of_run(name, number)
            positions = (pairs["other"] & np.uint64((1 << _POSITION_BITS) - 1)).astype(np.int64)
            new = ~dropped[positions]
            dropped[positions] = True
            found, positions = by_step[step], positions[new]
            found["documents_dropped"] += len(positions)
            found["bytes_dropped"] += int(marks["bytes"][positions].sum(dtype=np.int64))
            examples = [
                (int(marks["key"][place]), _example(task.runs, run, place, kept, _REASONS[step]))
                for place, kept in zip(
                    positions[: steps.MOST_EXAMPLES].tolist(), pairs["id"][new].tolist(), strict=False
                )
            ]
            found["examples"] = sorted([*found["examples"], *examples], key=lambda item: item[0])
            del found["examples"][steps.MOST_EXAMPLES :]
        for name in dropped_counts:
            dropped_counts[name] += int(marks[name][dropped].sum(dtype=np.int64))
        left = marks[~dropped]
        left_numbers.append(np.unique(left["document"]))
        bins = (left["key"] >> np.uint64(sorted_runs.BIN_SHIFT)).astype(np.int64)
        np.add.at(histogram[:, 0], bins, 1)
        np.add.at(histogram[:, 1], bins, left["tokens"])
        smallest = sorted([*smallest, *left["key"][:2].tolist()])[:2]  # the marks are sorted by key
        save_array(sorted_runs.dropped_path(run), dropped.astype(np.uint8))
    sorted_runs.write_histogram(f"{task.output}.histogram", histogram)
    return {
        "dropped": dropped_counts,
        "documents": len(np.unique(np.concatenate(left_numbers))),  # parts of one may be in several runs
        "smallest_keys": smallest,
        "histogram": files.name(f"{task.output}.histogram"),
        "steps": by_step,
    }


def _of_run(name: str, number: int) -> np.ndarray:
    """Returns the pairs whose dropped document is in a run, sorted by its position."""
    pairs = files.load_array(name)
    low, high = (bisect.bisect_left(pairs["other"], run << _POSITION_BITS) for run in (number, number + 1))
    return np.array(pairs[low:high])


def _example(runs: Sequence[str], run: str, position: int, kept: int, reason: str) -> dict[str, str]:
    def name_and_begin(run: str, position: int) -> list[str]:
        mark = files.load_array(f"{run}.marks")[position]
        return [mark[field].decode("utf-8", "ignore") for field in ("name", "begin")]

    kept_name, _ = name_and_begin(runs[kept >> _POSITION_BITS], kept & ((1 << _POSITION_BITS) - 1))
    name, begin = name_and_begin(run, position)
    return steps.example(name, reason, begin) | {"kept": kept_name}
