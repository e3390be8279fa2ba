"""Drops duplicate documents of a corpus: the steps `exact` and `near` of --clean.

1. `tokenizing.tokenize` writes .npy files next to each run of documents (module `sorted_runs`), in the order
   of its documents: marks; for `exact`, the hashes of the texts; for `near`, their MinHash signatures.
2. `drop_duplicates`, one task, finds the documents with equal hashes, or with similar signatures, and writes
   a mask next to each run that hides the dropped documents from `sorted_runs.read_documents`. Its memory is
   about 100 bytes for each document.

The document with the smallest key of each group is kept; among equal keys, the first one in the corpus. The
result therefore does not depend on the workers or on the ranges into which the corpus was split.
"""

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
_REASONS = {"exact": "duplicate", "near": "near duplicate"}

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
    """Collects the hashes and signatures of a run's documents, in the order in which they are added to it."""

    def __init__(self, settings: Settings):
        self._exact, self._near = "exact" in settings.steps, "near" in settings.steps
        self._marks: list[tuple] = []
        self._hashes: list[bytes] = []
        self._signatures: list[np.ndarray] = []
        self.size = 0  # approximate size of the collected data in memory, in bytes

    def add(self, key: int, document: Document, begins: bool, counts: tuple[int, int, int]) -> None:
        """Adds a document, or a part (`begins`: the first), with its numbers of tokens, sentences, [UNK]."""
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
class DropTask:
    """The arguments of `drop_duplicates`."""

    groups: tuple[tuple[str, ...], ...]  # the runs of each task of `tokenizing.tokenize`
    settings: Settings
    output: str


def drop(
    tokenized: Sequence[dict[str, Any]], settings: Settings, path: Callable[[str], str], run_stage: RunStage
) -> list[dict[str, Any]]:
    """Marks the duplicates among the documents of all runs as dropped.

    Returns the results of `tokenizing.tokenize` without the counts of the duplicates. `run_stage` runs
    (title, function, tasks) and returns the results in order.
    """
    groups = tuple(tuple(map(path, result["runs"])) for result in tokenized)
    if not any(groups):
        return list(tokenized)
    (made,) = run_stage("dropping duplicates", drop_duplicates, [DropTask(groups, settings, path("kept"))])
    results = []
    for result, group in zip(tokenized, made["groups"], strict=True):
        counts = {name: result[name] - count for name, count in group["dropped"].items()}
        results.append(result | counts | group["kept"])
    report = copy.deepcopy(results[0]["cleaning"])
    for step, found in made["steps"].items():
        counts = report["steps"][step]
        for name in ("documents_dropped", "bytes_dropped"):
            counts[name] += found[name]
        if found["documents_dropped"]:
            counts["reasons"][_REASONS[step]] = found["documents_dropped"]
        counts["examples"] = [*found["examples"], *counts["examples"]]
    results[0]["cleaning"] = report
    return results


def drop_duplicates(task: DropTask) -> dict[str, Any]:
    """Writes a mask of dropped documents next to each run.

    An exact duplicate is counted only for the step `exact`. Returns the counts of `dropped` documents and the
    histogram and keys of `kept` ones by group, and the counts and examples of each step.
    """
    runs = list(itertools.chain.from_iterable(task.groups))
    marks = [files.load_array(f"{run}.marks") for run in runs]
    keys = np.concatenate([one["key"] for one in marks])
    sizes = np.concatenate([one["bytes"] for one in marks])
    starts = np.cumsum([0, *map(len, marks)])
    dropped = np.zeros(len(keys), bool)

    def mark(document: int) -> np.void:
        run = int(np.searchsorted(starts, document, side="right")) - 1
        return marks[run][document - starts[run]]

    steps = {}
    for step in (step for step in _REASONS if step in task.settings.steps):
        values = [files.load_array(f"{run}.{step}") for run in runs]
        pairs = find(step, keys, values, task.settings.near_duplicate_threshold)
        pairs = pairs[~dropped[pairs[:, 1]]]
        dropped[pairs[:, 1]] = True
        shown = pairs[np.lexsort((pairs[:, 1], keys[pairs[:, 1]]))[: cleaning.MOST_EXAMPLES]]
        steps[step] = {
            "documents_dropped": len(pairs),
            "bytes_dropped": int(sizes[pairs[:, 1]].sum(dtype=np.int64)),
            "examples": [
                cleaning.example(_text(other["name"]), _REASONS[step], _text(other["begin"]))
                | {"kept": _text(kept["name"])}
                for kept, other in (map(mark, pair) for pair in shown)
            ],
        }
    by_run = (np.split(values, starts[1:-1]) for values in (keys, dropped))
    masks = iter(zip(runs, marks, *by_run, strict=True))
    groups = []
    for number, group in enumerate(task.groups):
        histogram = sorted_runs.new_histogram()
        smallest: list[int] = []
        counts = dict.fromkeys(("documents", "sentences", "tokens", "unknown_tokens"), 0)
        for run, of_run, run_keys, mask in itertools.islice(masks, len(group)):
            save_array(sorted_runs.dropped_path(run), mask.astype(np.uint8))
            for name in counts:
                counts[name] += int(of_run[name][mask].sum(dtype=np.int64))
            left = run_keys[~mask]
            bins = (left >> np.uint64(sorted_runs.BIN_SHIFT)).astype(np.int64)
            np.add.at(histogram[:, 0], bins, 1)
            np.add.at(histogram[:, 1], bins, of_run["tokens"][~mask])
            smallest = sorted([*smallest, *left[:2].tolist()])[:2]  # the marks are sorted by key
        path = f"{task.output}-{number:06d}.histogram"
        sorted_runs.write_histogram(path, histogram)
        kept = {"smallest_keys": smallest, "histogram": files.name(path)}
        groups.append({"dropped": counts, "kept": kept})
    return {"groups": groups, "steps": steps}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "ignore")


def find(step: str, keys: np.ndarray, values: Sequence[np.ndarray], threshold: float) -> np.ndarray:
    """Returns pairs of duplicates, int64 [n, 2]: the kept and the other document, as positions in `keys`.

    For `near`, documents are compared if they agree in a band of their signatures. The documents of a band
    are sorted by key, which is a random order, and each is compared with the next 64. This covers all pairs
    of a band of up to 65 documents, and bounds the work if a site repeats a template a million times. Two
    signatures are near duplicates from the fraction `threshold` of equal values.

    `keys` are uint64 [documents]; `values` are for each run its hashes uint64 [n, 2] or signatures uint32 [n,
    PERMUTATIONS].
    """
    hashes = np.concatenate([one if step == "exact" else row_hashes(one)[:, None] for one in values])
    order = np.lexsort((keys, *hashes.T))
    firsts = _first_of_each(*hashes[order].T)
    repeats = firsts != np.arange(len(order))
    forest = _spanning_forest(np.column_stack((order[firsts], order))[repeats], keys)
    if step == "near":
        unique = np.sort(order[~repeats])
        rows = band_rows(threshold)
        for start in range(0, PERMUTATIONS // rows * rows, rows):
            bands = np.concatenate([row_hashes(one[:, start : start + rows]) for one in values])[unique]
            order = np.lexsort((keys[unique], bands))
            bands, documents = bands[order], unique[order]
            for distance in range(1, _NEIGHBORS + 1):
                neighbors = np.flatnonzero(bands[distance:] == bands[:-distance])
                if not len(neighbors):
                    break
                pairs = np.column_stack((documents[neighbors], documents[neighbors + distance]))
                similar = [
                    some[_similarities(values, some) >= threshold]
                    for first in range(0, len(pairs), _PAIRS_AT_ONCE)
                    if len(some := pairs[first : first + _PAIRS_AT_ONCE])
                ]
                forest = _spanning_forest(np.concatenate([forest, *similar]), keys)
    return forest


def _first_of_each(*sorted_columns: np.ndarray) -> np.ndarray:
    """Returns, for each row of sorted columns, the index of the first row that is equal to it."""
    new = np.ones(len(sorted_columns[0]), bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in sorted_columns])
    return np.flatnonzero(new)[np.cumsum(new) - 1] if len(new) else np.zeros(0, np.int64)


def _similarities(signatures: Sequence[np.ndarray], pairs: np.ndarray) -> np.ndarray:
    """Returns the fraction of equal values in the two signatures of each pair, float [n]."""
    documents, places = np.unique(pairs, return_inverse=True)
    edges = np.cumsum([0, *map(len, signatures)])
    found = np.concatenate(
        [
            one[documents[slice(*np.searchsorted(documents, (low, high)))] - low]
            for one, (low, high) in zip(signatures, itertools.pairwise(edges), strict=True)
        ]
    )
    first, second = places.reshape(-1, 2).T
    return (found[first] == found[second]).mean(axis=1)


def _spanning_forest(pairs: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns pairs that connect the same groups: the smallest key of each group with every other key."""
    if not len(pairs):
        return pairs
    documents, places = np.unique(pairs, return_inverse=True)
    shape = len(documents), len(documents)
    graph = sparse.coo_array((np.ones(len(pairs), bool), places.reshape(-1, 2).T), shape)
    _, groups = csgraph.connected_components(graph, directed=False)
    order = np.lexsort((keys[documents], groups))
    firsts = _first_of_each(groups[order])
    others = firsts != np.arange(len(order))
    return documents[np.column_stack((order[firsts], order))[others]]
