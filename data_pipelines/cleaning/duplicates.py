"""Drops duplicate documents of a corpus: the steps `exact` and `near` of --clean.

1. `tokenizing.tokenize` writes .npy files next to each run of documents (module `sorted_runs`), in the order
   of its documents: marks; for `exact`, the hashes of the texts; for `near`, their MinHash signatures.
2. `find` pairs the documents with equal hashes, or with similar signatures, in one task for each step. Its
   memory is about 100 bytes for each document.
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epy

from bert_jax.errors import optional_imports
from bert_jax.io import files
from data_pipelines import cleaning, sorted_runs
from data_pipelines.cleaning import Settings, folded_text
from data_pipelines.readers import Document
from data_pipelines.sorted_runs import save_array

with optional_imports("cleaning"):
    import rensa
# Imported at the first use, because every worker imports this module, and scipy takes 30 MB.
with epy.lazy_imports():
    from scipy import sparse
    from scipy.sparse import csgraph

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
        ("documents", "u1"),  # 1, or 0 for a later part of a long document
        ("name", "S120"),  # the key of the document and the beginning of its text, for the report
        ("begin", f"S{2 * cleaning.EXAMPLE_CHARACTERS}"),
    ]
)
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


def row_hashes(values: np.ndarray) -> np.ndarray:
    """Returns uint64 [n], hashes of the rows of a uint32 array [n, k]."""
    state = np.ones(len(values), np.uint64)
    for column in np.moveaxis(values, 1, 0):
        # One step of SplitMix64 (Steele, Lea and Flood, 2014) and its finalizer.
        state = (state ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
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
        self._exact, self._near = "exact" in settings.steps, "near" in settings.steps
        self._marks: list[tuple] = []
        self._hashes: list[bytes] = []
        self._signatures: list[np.ndarray] = []
        self.size = 0

    def add(self, key: int, document: Document, begins: bool, counts: tuple[int, int, int]) -> None:
        """Adds a document, or a part of one, that was added to the run.

        Args:
            key: the key of the document.
            document: the document.
            begins: whether it is the first part of a document.
            counts: its numbers of tokens, of sentences and of [UNK].
        """
        folded = folded_text(document.passages)
        if self._exact:
            encoded = folded.encode("utf-8", "surrogatepass")
            self._hashes.append(hashlib.blake2b(encoded, digest_size=16).digest())
        if self._near:
            self._signatures.append(signature(folded))
        most = cleaning.EXAMPLE_CHARACTERS
        begin = "\n".join(passage[:most] for passage in document.passages[:most])[:most]
        name, text = (one.encode("utf-8", "replace") for one in (document.key, begin))
        self._marks.append((key, *counts, document.size, begins, name, text))
        self.size += 2 * _MARK.itemsize + 4 * PERMUTATIONS * self._near

    def write(self, run: str) -> None:
        """Writes the files next to a run."""
        marks = np.array(self._marks, _MARK)
        order = np.argsort(marks["key"], kind="stable")  # the order of the documents in the run
        save_array(f"{run}.marks", marks[order])
        if self._exact:
            save_array(f"{run}.exact", np.frombuffer(b"".join(self._hashes), "<u8").reshape(-1, 2)[order])
        if self._near:
            save_array(f"{run}.near", np.array(self._signatures, "<u4")[order])


def remove(run: str) -> None:
    """Deletes a run and all files next to it."""
    for suffix in ("", ".marks", ".exact", ".near", ".dropped"):
        files.remove(run + suffix, missing_ok=True)


@dataclasses.dataclass(frozen=True)
class FindTask:
    """The arguments of `find`: the step and the runs of all documents."""

    step: str
    runs: tuple[str, ...]
    threshold: float
    output: str


@dataclasses.dataclass(frozen=True)
class MarkTask:
    """The arguments of `mark_dropped`: runs[first:end] belong to one task of `tokenizing.tokenize`."""

    runs: tuple[str, ...]
    first: int
    end: int
    pairs: dict[str, str]  # the files that `find` wrote, by step
    output: str


def drop(
    tokenized: Sequence[dict[str, Any]], settings: Settings, path: Callable[[str], str], run_stage: RunStage
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
    found = {step: path(f"{step}-pairs") for step in _REASONS if step in settings.steps}
    threshold = settings.near_duplicate_threshold
    finds = [FindTask(step, runs, threshold, output) for step, output in found.items()]
    run_stage("finding duplicates", find, finds)
    ends = list(itertools.accumulate(len(result["runs"]) for result in tokenized))
    marks = [
        MarkTask(runs, end - len(result["runs"]), end, found, path(f"kept-{number:06d}"))
        for number, (end, result) in enumerate(zip(ends, tokenized, strict=True))
    ]
    marked = run_stage("dropping duplicates", mark_dropped, marks)
    results = [_reduced(result, mark) for result, mark in zip(tokenized, marked, strict=True)]
    for step in found:
        counts = results[0]["cleaning"]["steps"][step]
        counts["examples"] = [*_examples(runs, found, step), *counts["examples"]]
    return results


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
        | {name: marked[name] for name in ("histogram", "smallest_keys")}
        | {"cleaning": result["cleaning"] | {"steps": counts_of}}
    )


def find(task: FindTask) -> dict[str, Any]:
    """Writes pairs of duplicates, the kept one first; they are sorted by the other one.

    For `near`, documents are compared that agree in a band of their signatures. The documents of a band are
    sorted by key, which is a random order, and each is compared with the next 64. This covers all pairs of a
    band of up to 65 documents, and bounds the work where a site repeats a template a million times.
    """
    values = [files.load_array(f"{run}.{task.step}") for run in task.runs]
    keys = np.concatenate([files.load_array(f"{run}.marks")["key"] for run in task.runs])
    starts = [np.uint64(number << _POSITION_BITS) for number in range(len(values))]
    ids = np.concatenate(
        [a + np.arange(len(b), dtype=np.uint64) for a, b in zip(starts, values, strict=True)]
    )
    hashes = np.concatenate([one if task.step == "exact" else row_hashes(one)[:, None] for one in values])
    order = np.lexsort((ids, keys, *hashes.T))
    firsts = _first_of_each(*hashes[order].T)
    twins = np.flatnonzero(firsts != np.arange(len(order)))
    forest = _spanning_forest(_pairs(keys[order], ids[order], firsts[twins], twins))
    if task.step == "near":
        unique = np.sort(order[firsts == np.arange(len(order))])
        rows = band_rows(task.threshold)
        for start in range(0, PERMUTATIONS // rows * rows, rows):
            bands = np.concatenate([row_hashes(one[:, start : start + rows]) for one in values])[unique]
            order = np.lexsort((ids[unique], keys[unique], bands))
            bands, band_keys, band_ids = bands[order], keys[unique][order], ids[unique][order]
            for distance in range(1, _NEIGHBORS + 1):
                neighbors = np.flatnonzero(bands[distance:] == bands[:-distance])
                if not len(neighbors):
                    break
                pairs = _pairs(band_keys, band_ids, neighbors, neighbors + distance)
                similar = [
                    some[_similarities(values, some) >= task.threshold]
                    for first in range(0, len(pairs), _PAIRS_AT_ONCE)
                    if len(some := pairs[first : first + _PAIRS_AT_ONCE])
                ]
                forest = _spanning_forest(np.concatenate([forest, *similar]))
    save_array(task.output, np.sort(forest, order="other"))
    return {"dropped": len(forest)}


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


def _similarities(signatures: Sequence[np.ndarray], pairs: np.ndarray) -> np.ndarray:
    """Returns the fraction of equal values in the two signatures of each pair, float [n]."""
    ids, places = np.unique(np.concatenate((pairs["id"], pairs["other"])), return_inverse=True)
    found = np.empty((len(ids), PERMUTATIONS), np.uint32)
    numbers = ids >> np.uint64(_POSITION_BITS)
    for number in np.unique(numbers):
        of_run = numbers == number
        rows = (ids[of_run] & np.uint64((1 << _POSITION_BITS) - 1)).astype(np.int64)
        found[of_run] = signatures[int(number)][rows]
    return (found[places[: len(pairs)]] == found[places[len(pairs) :]]).mean(axis=1)


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


def mark_dropped(task: MarkTask) -> dict[str, Any]:
    """Writes the masks of dropped documents next to the runs of one task.

    A document that repeats another one exactly is counted for the step `exact` only.

    Returns:
        `histogram` and `smallest_keys` of the remaining documents, as `tokenizing.tokenize` returns them;
        `dropped`, the counts of the dropped ones; `steps`, the counts of each step.
    """
    histogram = sorted_runs.new_histogram()
    dropped_counts = dict.fromkeys(("documents", "sentences", "tokens", "unknown_tokens"), 0)
    smallest: list[int] = []
    by_step = {step: {"documents_dropped": 0, "bytes_dropped": 0} for step in task.pairs}
    for number in range(task.first, task.end):
        run = task.runs[number]
        marks = np.array(files.load_array(f"{run}.marks"))
        dropped = np.zeros(len(marks), bool)
        for step, name in task.pairs.items():
            pairs = _of_run(name, number)
            positions = (pairs["other"] & np.uint64((1 << _POSITION_BITS) - 1)).astype(np.int64)
            new = positions[~dropped[positions]]
            dropped[new] = True
            by_step[step]["documents_dropped"] += len(new)
            by_step[step]["bytes_dropped"] += int(marks["bytes"][new].sum(dtype=np.int64))
        for name in dropped_counts:
            dropped_counts[name] += int(marks[name][dropped].sum(dtype=np.int64))
        left = marks[~dropped]
        bins = (left["key"] >> np.uint64(sorted_runs.BIN_SHIFT)).astype(np.int64)
        np.add.at(histogram[:, 0], bins, 1)
        np.add.at(histogram[:, 1], bins, left["tokens"])
        smallest = sorted([*smallest, *left["key"][:2].tolist()])[:2]  # the marks are sorted by key
        save_array(sorted_runs.dropped_path(run), dropped.astype(np.uint8))
    sorted_runs.write_histogram(f"{task.output}.histogram", histogram)
    return {
        "dropped": dropped_counts,
        "smallest_keys": smallest,
        "histogram": files.name(f"{task.output}.histogram"),
        "steps": by_step,
    }


def _of_run(name: str, number: int) -> np.ndarray:
    """Returns the pairs whose dropped document is in a run, sorted by its position."""
    pairs = files.load_array(name)
    low, high = (bisect.bisect_left(pairs["other"], run << _POSITION_BITS) for run in (number, number + 1))
    return np.array(pairs[low:high])


def _examples(runs: Sequence[str], found: Mapping[str, str], step: str) -> list[dict[str, str]]:
    """Returns the entries of the report for the dropped documents of a step that have the smallest keys."""
    pairs = files.load_array(found[step])
    if step == "near" and "exact" in found:  # of which some are dropped already
        pairs = pairs[~np.isin(pairs["other"], files.load_array(found["exact"])["other"])]

    def name_and_begin(document: int) -> list[str]:
        marks = files.load_array(f"{runs[document >> _POSITION_BITS]}.marks")
        mark = marks[document & ((1 << _POSITION_BITS) - 1)]
        return [mark[field].decode("utf-8", "ignore") for field in ("name", "begin")]

    examples = []
    for pair in pairs[np.argsort(pairs["other_key"], kind="stable")[: cleaning.MOST_EXAMPLES]]:
        (kept, _), (name, begin) = name_and_begin(int(pair["id"])), name_and_begin(int(pair["other"]))
        examples.append(cleaning.example(name, _REASONS[step], begin) | {"kept": kept})
    return examples
