"""Drops duplicate documents of a corpus of any size: the steps `exact` and `near` of `bert-jax data --clean`.

1. `tokenizing.tokenize` writes hashes and MinHash signatures of documents beside its runs (module `minhash`).
2. `find_exact` finds the documents that repeat another one, for one range of the hashes of all runs.
3. `find_near` finds pairs of documents that share a band and whose signatures agree, for one range of the
   band hashes of all runs; `unite` joins the pairs to connected groups.
4. `mark_dropped` writes a mask beside each run that hides the dropped documents from
   `sorted_runs.read_documents`.
Of each group the document with the smallest key is kept; among equal keys, the first one in the corpus. So
the result depends neither on the workers nor on the ranges into which the corpus was split.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import optional_imports
from bert_jax.io import files
from data_pipelines import sorted_runs
from data_pipelines.cleaning import minhash, report
from data_pipelines.cleaning.settings import Settings
from data_pipelines.sorted_runs import save_array

# The import is lazy also because every worker of every build imports this module, and scipy takes 30 MB.
with optional_imports("cleaning"):
    from scipy import sparse
    from scipy.sparse import csgraph

PARTITION_ENTRIES = 2 << 20  # hashes or band hashes in the memory of one task, about 200 MB
_COMPARED = 64  # each document is compared with this many that follow it in its band, ordered by key
_PAIRS_AT_ONCE = 1 << 16
_EDGES_AT_ONCE = 1 << 20
_PLACE_BITS = 32
_REASONS = {"exact": "duplicate", "near": "near duplicate"}

# A document's id holds the number of its run and, in the low 32 bits, its position in the run.
_DROP = np.dtype([("document", "<u8"), ("kept", "<u8")])
_EDGE = np.dtype([("first_key", "<u8"), ("first", "<u8"), ("second_key", "<u8"), ("second", "<u8")])

RunStage = Callable[[str, Callable[[Any], dict[str, Any]], Sequence[Any]], list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class FindTask:
    """The arguments of `find_exact` and `find_near`: the hashes in [low, high) of all runs."""

    runs: tuple[str, ...]
    low: int
    high: int
    threshold: float
    output: str


@dataclasses.dataclass(frozen=True)
class UniteTask:
    """The arguments of `unite`."""

    edges: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True)
class MarkTask:
    """The arguments of `mark_dropped`: runs[first:end] are those of one task of `tokenizing.tokenize`."""

    runs: tuple[str, ...]
    first: int
    end: int
    exact: tuple[str, ...]  # files that `find_exact` wrote
    near: tuple[str, ...]  # files that `unite` wrote
    steps: tuple[str, ...]
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

    def partitions(name: str, entries: int) -> list[FindTask]:
        count = -(-entries // PARTITION_ENTRIES) or 1
        edges = [(number << sorted_runs.KEY_BITS) // count for number in range(count + 1)]
        return [
            FindTask(runs, low, high, threshold, path(f"{name}-{number:06d}"))
            for number, (low, high) in enumerate(itertools.pairwise(edges))
        ]

    exact: list[str] = []
    if "exact" in settings.steps:
        tasks = partitions("exact", documents)
        run_stage("finding duplicates", find_exact, tasks)
        exact = [task.output for task in tasks]
    near: list[str] = []
    if "near" in settings.steps:
        bands = minhash.PERMUTATIONS // minhash.band_rows(threshold)
        tasks = partitions("near", documents * bands)
        run_stage("finding near duplicates", find_near, tasks)
        union = UniteTask(tuple(task.output for task in tasks), path("near-groups"))
        run_stage("grouping near duplicates", unite, [union])
        near = [union.output]
    ends = list(itertools.accumulate(len(result["runs"]) for result in tokenized))
    tasks = [
        MarkTask(
            runs,
            end - len(result["runs"]),
            end,
            tuple(exact),
            tuple(near),
            settings.steps,
            path(f"kept-{number:06d}"),
        )
        for number, (end, result) in enumerate(zip(ends, tokenized, strict=True))
    ]
    marked = run_stage("dropping duplicates", mark_dropped, tasks)
    return [_reduced(result, mark) for result, mark in zip(tokenized, marked, strict=True)]


def _reduced(result: dict[str, Any], marked: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a task of `tokenizing.tokenize` without what `mark_dropped` dropped."""
    counts = {name: result[name] - count for name, count in marked["dropped"].items()}
    steps = {step: dict(one) for step, one in result["cleaning"]["steps"].items()}
    for step, found in marked["steps"].items():
        for name in ("documents_dropped", "bytes_dropped"):
            steps[step][name] += found[name]
        if found["documents_dropped"]:
            steps[step]["reasons"] = steps[step]["reasons"] | found["reasons"]
    return (
        result
        | counts
        | {name: marked[name] for name in ("documents", "histogram", "smallest_keys")}
        | {"cleaning": result["cleaning"] | {"steps": steps}}
        | {"duplicates": {step: found["examples"] for step, found in marked["steps"].items()}}
    )


def merged_report(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the report of all cleaning, given the results of `tokenizing.tokenize` or of `drop`.

    The examples of a step that drops duplicates start with those that have the smallest keys.
    """
    merged = report.merge_counts([result["cleaning"] for result in results])
    for step in results[0].get("duplicates", {}):
        found = [shown for result in results for shown in result["duplicates"][step]]
        found = [shown for _, shown in sorted(found, key=lambda item: item[0])]
        examples = found + merged["steps"][step]["examples"]
        merged["steps"][step]["examples"] = examples[: report.MOST_EXAMPLES]
    return report.with_shares(merged)


def find_exact(task: FindTask) -> dict[str, Any]:
    """Finds exact duplicates: writes the documents whose hash a document with a smaller key has too.

    Among equal keys the smaller id is kept. The written documents are sorted by id.
    """
    entries, ids = _entries(task, "hashes", "high")
    order = np.lexsort((ids, entries["key"], entries["low"], entries["high"]))
    firsts = minhash.first_of_each(entries[["high", "low"]][order])
    repeated = firsts != np.arange(len(order))
    _write_drops(task.output, ids[order][repeated], ids[order][firsts[repeated]])
    return {"entries": len(entries)}


def _entries(task: FindTask, kind: str, field: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the entries of all runs in the range of a task, and the ids of their documents."""
    parts = [minhash.read_range(run, kind, field, task.low, task.high) for run in task.runs]
    entries = np.concatenate(parts)
    numbers = np.repeat(np.arange(len(parts), dtype=np.uint64), [len(part) for part in parts])
    return entries, (numbers << np.uint64(_PLACE_BITS)) | entries["place"].astype(np.uint64)


def _write_drops(name: str, documents: np.ndarray, kept: np.ndarray) -> None:
    drops = np.empty(len(documents), _DROP)
    drops["document"], drops["kept"] = documents, kept
    save_array(name, drops[np.argsort(drops["document"])])


def find_near(task: FindTask) -> dict[str, Any]:
    """Writes the pairs of documents that share a band and whose estimated similarity reaches the threshold.

    Documents with the same signature are paired without a comparison, and only the first of them is compared
    with others. The documents of a band are sorted by key, which is a random order, and each is compared with
    the next 64. This covers all pairs of a band of up to 65 documents, and bounds the work where a site
    repeats a template a million times. If there are very many pairs, they are replaced by a spanning forest:
    pairs that connect the same groups, one fewer per group than it has documents.
    """
    entries, ids = _entries(task, "bands", "band")
    order = np.lexsort((ids, entries["key"], entries["signature"], entries["band"]))
    entries, ids = entries[order], ids[order]
    firsts = minhash.first_of_each(entries[["band", "signature"]])
    twins = np.flatnonzero(firsts != np.arange(len(entries)))
    edges = [_edges(entries["key"], ids, firsts[twins], twins)]
    alone = firsts == np.arange(len(entries))
    entries, ids = entries[alone], ids[alone]
    order = np.lexsort((ids, entries["key"], entries["band"]))
    bands, keys, ids = entries["band"][order], entries["key"][order], ids[order]
    compared = held = 0
    most = _EDGES_AT_ONCE
    for distance in range(1, _COMPARED + 1):
        together = np.flatnonzero(bands[distance:] == bands[:-distance])
        if not len(together):
            break
        pairs = _edges(keys, ids, together, together + distance)
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            some = pairs[start : start + _PAIRS_AT_ONCE]
            compared += len(some)
            edges.append(some[_similarities(task.runs, some) >= task.threshold])
            held += len(edges[-1])
            if held > most:
                edges = [_spanning(np.concatenate(edges))]
                held = len(edges[0])
                most = max(_EDGES_AT_ONCE, 2 * held)
    found = np.concatenate(edges)
    found = found[np.lexsort((found["second"], found["first"]))]
    found = found[minhash.first_of_each(found[["first", "second"]]) == np.arange(len(found))]
    save_array(task.output, found)
    return {"entries": len(order), "compared": compared, "pairs": len(found)}


def _edges(keys: np.ndarray, ids: np.ndarray, firsts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    edges = np.empty(len(firsts), _EDGE)
    edges["first_key"], edges["first"] = keys[firsts], ids[firsts]
    edges["second_key"], edges["second"] = keys[seconds], ids[seconds]
    return edges


def _spanning(edges: np.ndarray) -> np.ndarray:
    """Returns the fewest pairs that connect the same groups of documents."""
    both = np.concatenate((edges["first"], edges["second"]))
    ids, own, places = np.unique(both, return_index=True, return_inverse=True)
    keys = np.concatenate((edges["first_key"], edges["second_key"]))[own]
    first, second = places[: len(edges)], places[len(edges) :]
    links = sparse.coo_array((np.ones(len(edges), bool), (first, second)), (len(ids), len(ids)))
    groups = csgraph.connected_components(links, directed=False)[1]
    order = np.argsort(groups, kind="stable")
    firsts = minhash.first_of_each(groups[order])
    others = np.flatnonzero(firsts != np.arange(len(order)))
    return _edges(keys[order], ids[order], firsts[others], others)


def _similarities(runs: Sequence[str], pairs: np.ndarray) -> np.ndarray:
    """Returns the share of equal values in the two signatures of each pair, float [n]."""
    ids, places = np.unique(np.concatenate((pairs["first"], pairs["second"])), return_inverse=True)
    signatures = np.empty((len(ids), minhash.PERMUTATIONS), np.uint32)
    numbers = ids >> np.uint64(_PLACE_BITS)
    for number in np.unique(numbers):
        own = numbers == number
        rows = (ids[own] & np.uint64((1 << _PLACE_BITS) - 1)).astype(np.int64)
        signatures[own] = minhash.load(runs[int(number)], "signatures")[rows]
    first, second = places[: len(pairs)], places[len(pairs) :]
    return (signatures[first] == signatures[second]).mean(axis=1)


def unite(task: UniteTask) -> dict[str, Any]:
    """Finds near duplicates: writes the documents connected by pairs with a document of a smaller key.

    Among equal keys the smaller id is kept. The written documents are sorted by id. The memory is about 40
    bytes for each document that is in a pair.
    """
    ids = np.zeros(0, np.uint64)
    for edges in _read_edges(task.edges):
        ids = np.union1d(ids, np.concatenate((edges["first"], edges["second"])))
    keys = np.zeros(len(ids), np.uint64)
    groups = np.arange(len(ids), dtype=np.int32)
    for edges in _read_edges(task.edges):
        first, second = np.searchsorted(ids, edges["first"]), np.searchsorted(ids, edges["second"])
        keys[first], keys[second] = edges["first_key"], edges["second_key"]
        links = sparse.coo_array(
            (np.ones(len(edges), bool), (groups[first], groups[second])), (len(ids), len(ids))
        )
        groups = csgraph.connected_components(links, directed=False)[1][groups]
    order = np.lexsort((ids, keys, groups))
    firsts = minhash.first_of_each(groups[order])
    others = firsts != np.arange(len(order))
    _write_drops(task.output, ids[order][others], ids[order][firsts[others]])
    return {"documents": len(ids), "dropped": int(others.sum())}


def _read_edges(names: Sequence[str]) -> Iterator[np.ndarray]:
    for name in names:
        edges = files.load_array(name)
        for start in range(0, len(edges), _EDGES_AT_ONCE):
            yield np.array(edges[start : start + _EDGES_AT_ONCE])


def mark_dropped(task: MarkTask) -> dict[str, Any]:
    """Writes the masks of dropped documents beside the runs of one task.

    A document that repeats another one exactly is counted for the step `exact` only.

    Returns:
        `documents`, `histogram` and `smallest_keys` of what remains, as `tokenizing.tokenize` returns them;
        `dropped`, the counts of what was dropped; `steps`, the counts and examples of each step.
    """
    left = sorted_runs.new_histogram()
    dropped_counts = dict.fromkeys(("sentences", "tokens", "unknown_tokens"), 0)
    smallest: list[int] = []
    left_numbers = [np.zeros(0, np.uint32)]
    steps = {step: _StepFound(reason) for step, reason in _REASONS.items() if step in task.steps}
    for number in range(task.first, task.end):
        run = task.runs[number]
        marks = np.array(minhash.load(run, "marks"))
        dropped = np.zeros(len(marks), bool)
        for step, names in (("exact", task.exact), ("near", task.near)):
            if step in steps:
                places, kept = _dropped(marks[step], number, names)
                new = ~dropped[places]
                dropped[places] = True
                steps[step].add(task.runs, number, marks, places[new], kept[new])
        for name in dropped_counts:
            dropped_counts[name] += int(marks[name][dropped].sum(dtype=np.int64))
        left_numbers.append(np.unique(marks["document"][~dropped]))
        keys, tokens = marks["key"][~dropped], marks["tokens"][~dropped]
        bins = (keys >> np.uint64(sorted_runs.BIN_SHIFT)).astype(np.int64)
        np.add.at(left[:, 0], bins, 1)
        np.add.at(left[:, 1], bins, tokens)
        smallest = sorted([*smallest, *keys[:2].tolist()])[:2]  # the marks are sorted by key
        save_array(sorted_runs.dropped_path(run), dropped.astype(np.uint8))
    sorted_runs.write_histogram(f"{task.output}.histogram", left)
    return {
        "dropped": dropped_counts,
        "documents": len(np.unique(np.concatenate(left_numbers))),  # parts of one may lie in several runs
        "smallest_keys": smallest,
        "histogram": files.name(f"{task.output}.histogram"),
        "steps": {step: found.result() for step, found in steps.items()},
    }


def _dropped(local: np.ndarray, number: int, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of a run's dropped documents, sorted, and the ids of those kept instead.

    Args:
        local: for each position, that of the document of this run that it repeats, or itself.
        number: the number of the run.
        names: the files that `find_exact` or `unite` wrote, each sorted by id.
    """
    base = number << _PLACE_BITS
    kept = local.astype(np.uint64) | np.uint64(base)
    for name in names:
        drops = files.load_array(name)
        first = bisect.bisect_left(drops["document"], base)
        end = bisect.bisect_left(drops["document"], base + (1 << _PLACE_BITS))
        kept[(drops["document"][first:end] - np.uint64(base)).astype(np.int64)] = drops["kept"][first:end]
    own = np.arange(len(local))
    kept = np.where(local == own, kept, kept[local])  # the kept one of this run may itself be dropped
    places = np.flatnonzero(kept != (own.astype(np.uint64) | np.uint64(base)))
    return places, kept[places]


class _StepFound:
    """Counts what a step dropped, and keeps the examples with the smallest keys."""

    def __init__(self, reason: str):
        self._reason = reason
        self._documents = self._bytes = 0
        self._examples: list[tuple[int, dict[str, str]]] = []

    def add(
        self, runs: Sequence[str], number: int, marks: np.ndarray, places: np.ndarray, kept: np.ndarray
    ) -> None:
        self._documents += len(places)
        self._bytes += int(marks["bytes"][places].sum(dtype=np.int64))
        for place, other in list(zip(places.tolist(), kept.tolist(), strict=True))[: report.MOST_EXAMPLES]:
            name, begin = minhash.read_name(runs[number], marks, place)
            run, other_place = runs[other >> _PLACE_BITS], other & ((1 << _PLACE_BITS) - 1)
            other_name, _ = minhash.read_name(run, minhash.load(run, "marks"), other_place)
            shown = report.example(name, self._reason, begin) | {"kept": other_name}
            self._examples.append((int(marks["key"][place]), shown))
        self._examples = sorted(self._examples, key=lambda item: item[0])[: report.MOST_EXAMPLES]

    def result(self) -> dict[str, Any]:
        return {
            "documents_dropped": self._documents,
            "bytes_dropped": self._bytes,
            "reasons": {self._reason: self._documents},
            "examples": self._examples,
        }
