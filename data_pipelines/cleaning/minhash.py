"""Computes and stores hashes and MinHash signatures of documents, by which duplicates are found.

Beside a run of documents (module `sorted_runs`) there are these .npy files: its marks, one row per document
in the order of the run; the hashes of their texts, sorted; their signatures, in the order of the run; the
hashes of the bands of the signatures, sorted. In a sorted file a range of hashes is contiguous, so one task
can compare all documents of the corpus whose hashes are in that range.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np

from bert_jax.errors import optional_imports
from bert_jax.io import atomic, files
from data_pipelines import sorted_runs
from data_pipelines.cleaning import report
from data_pipelines.cleaning.steps import folded_text
from data_pipelines.readers import Document
from data_pipelines.sorted_runs import save_array

with optional_imports("cleaning"):
    import rensa

KINDS = ("marks", "names", "hashes", "signatures", "bands", "dropped")  # kinds of files beside a run
PERMUTATIONS = 126  # number of values in a signature; it is divisible by many band sizes
_SEED = 1
_SHINGLE_WORDS = 5
_RECALL = 0.98  # minimum share of pairs with a similarity equal to the threshold that share a band

MARK = np.dtype(
    [
        ("key", "<u8"),
        ("exact", "<u4"),  # position in the run of the document that this one repeats, or its own position
        ("near", "<u4"),
        ("tokens", "<u4"),
        ("sentences", "<u4"),
        ("unknown_tokens", "<u4"),
        ("bytes", "<u4"),
        ("document", "<u4"),  # number of the document in its task; all parts of a long one have the same
        ("name_end", "<u8"),  # offset in the file of names at which the name of this document ends
    ]
)
HASH = np.dtype([("high", "<u8"), ("low", "<u8"), ("key", "<u8"), ("place", "<u4")])
BAND = np.dtype([("band", "<u8"), ("signature", "<u8"), ("key", "<u8"), ("place", "<u4")])


def text_hash(folded: str) -> bytes:
    """Returns a 16-byte hash of a text that `steps.folded_text` returned."""
    return hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=16).digest()


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

    The share of equal values in two signatures estimates the Jaccard similarity of the two sets of shingles
    (Broder, On the resemblance and containment of documents, 1997), with a standard error of at most
    1 / (2 sqrt(PERMUTATIONS)) = 0.045. The package rensa processes 99 MB of text per second, datasketch 4.4.
    """
    minhash = rensa.RMinHash(PERMUTATIONS, _SEED)
    minhash.update(shingles(folded))
    return np.array(minhash.digest(), np.uint32)


@functools.cache
def band_rows(threshold: float) -> int:
    """Returns the number of values in a band.

    It is the largest number with which a pair whose similarity equals the threshold shares a band with a
    probability of at least 98%.
    """
    return max(
        rows
        for rows in range(1, PERMUTATIONS + 1)
        if rows == 1 or 1 - (1 - threshold**rows) ** (PERMUTATIONS // rows) >= _RECALL
    )


def band_hashes(signatures: np.ndarray, rows: int) -> np.ndarray:
    """Returns 64-bit hashes of the bands of signatures.

    Each band has a hash function of its own, so equal values in different bands have different hashes.

    Args:
        signatures: uint32 [n, PERMUTATIONS].
        rows: the number of values in a band.

    Returns:
        uint64 [n, PERMUTATIONS // rows].
    """
    bands = PERMUTATIONS // rows
    values = signatures[:, : bands * rows].reshape(len(signatures), bands, rows).astype(np.uint64)
    state = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64), values.shape[:2])
    for row in range(rows):
        state = _mixed(state ^ values[..., row])
    return state


def _mixed(state: np.ndarray) -> np.ndarray:
    """Applies one step of SplitMix64 (Steele, Lea and Flood, 2014) and its finalizer."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class Writer:
    """Collects the hashes and signatures of a run's documents, in the order in which they are added to it.

    Args:
        steps: the cleaning steps; "exact" needs hashes, "near" signatures.
        threshold: the similarity from which two documents are near duplicates.

    Attributes:
        size: the approximate memory of what was collected, in bytes.
    """

    def __init__(self, steps: Sequence[str], threshold: float):
        self._exact, self._near, self._threshold = "exact" in steps, "near" in steps, threshold
        self._marks: list[tuple] = []
        self._hashes: list[bytes] = []
        self._signatures: list[np.ndarray] = []
        self._names: list[bytes] = []
        self.size = 0

    def add(
        self,
        key: int,
        document: Document,
        number: int,
        sentences: Sequence[Sequence[int]],
        unknown_id: int,
    ) -> None:
        """Adds a document, or a part of one, that was added to the run.

        Args:
            key: the key of the document.
            document: the document.
            number: the number of the document in its task, the same for all its parts.
            sentences: the token ids of its sentences.
            unknown_id: the id of [UNK].
        """
        folded = folded_text(document.passages)
        if self._exact:
            self._hashes.append(text_hash(folded))
        if self._near:
            self._signatures.append(signature(folded))
        # No more passages than an example has characters can be shown.
        most = report.EXAMPLE_CHARACTERS
        begin = "\n".join(passage[:most] for passage in document.passages[:most])
        self._names.append(json.dumps([document.key, begin[:most]]).encode())
        unknown = sum(sentence.count(unknown_id) for sentence in sentences)
        size = document.size
        self._marks.append((key, 0, 0, sum(map(len, sentences)), len(sentences), unknown, size, number, 0))
        self.size += 2 * MARK.itemsize + 4 * PERMUTATIONS * self._near + len(self._names[-1])

    def write(self, run: str) -> None:
        """Writes the files beside a run."""
        marks = np.array(self._marks, MARK)
        order = np.argsort(marks["key"], kind="stable")  # the order of the documents in the run
        marks = marks[order]
        places = np.arange(len(marks), dtype=np.uint32)
        marks["exact"] = marks["near"] = places
        names = [self._names[i] for i in order]
        marks["name_end"] = np.cumsum([len(name) for name in names])
        if self._exact:
            hashes = np.empty(len(marks), HASH)
            content = np.frombuffer(b"".join(self._hashes), "<u8").reshape(-1, 2)[order]
            hashes["high"], hashes["low"] = content[:, 0], content[:, 1]
            hashes["key"], hashes["place"] = marks["key"], places
            hashes = hashes[np.lexsort((places, hashes["low"], hashes["high"]))]
            firsts = first_of_each(hashes[["high", "low"]])
            marks["exact"][hashes["place"]] = hashes["place"][firsts]
            # A document that repeats another one of this run is never the one to keep, so its hash is left
            # out. It also limits the entries of one hash to the number of runs.
            save_array(path(run, "hashes"), hashes[firsts == np.arange(len(hashes))])
        if self._near:
            self._write_bands(run, marks, np.array(self._signatures, "<u4")[order])
        with atomic.replace_file(path(run, "names")) as file:
            file.writelines(names)
        save_array(path(run, "marks"), marks)

    def _write_bands(self, run: str, marks: np.ndarray, signatures: np.ndarray) -> None:
        whole = band_hashes(signatures, PERMUTATIONS)[:, 0]
        own = np.flatnonzero(marks["exact"] == np.arange(len(marks)))
        order = own[np.lexsort((own, whole[own]))]
        firsts = order[first_of_each(whole[order])]
        marks["near"][order] = firsts
        kept = order[firsts == order]
        bands = band_hashes(signatures[kept], band_rows(self._threshold))
        entries = np.empty(bands.shape, BAND)
        entries["band"] = bands
        for name, values in (("signature", whole[kept]), ("key", marks["key"][kept]), ("place", kept)):
            entries[name] = values[:, None]
        entries = entries.ravel()
        save_array(path(run, "bands"), entries[np.argsort(entries["band"], kind="stable")])
        save_array(path(run, "signatures"), signatures)


def first_of_each(values: np.ndarray) -> np.ndarray:
    """Returns, for each of the sorted values, the index of the first value that is equal to it."""
    if not len(values):
        return np.zeros(0, np.int64)
    new = np.concatenate(([True], values[1:] != values[:-1]))
    return np.flatnonzero(new)[np.cumsum(new) - 1]


def path(run: str, kind: str) -> str:
    """Returns the path of a file beside a run; `kind` is one of KINDS."""
    return sorted_runs.dropped_path(run) if kind == "dropped" else f"{run}.{kind}"


def load(run: str, kind: str) -> np.ndarray:
    """Returns the memory-mapped array in a .npy file beside a run."""
    return files.load_array(path(run, kind))


def read_range(run: str, kind: str, field: str, low: int, high: int) -> np.ndarray:
    """Returns the entries of a sorted file whose `field` is in [low, high)."""
    entries = load(run, kind)
    # np.searchsorted would copy the whole field first.
    first = bisect.bisect_left(entries[field], low)
    end = len(entries) if high >> sorted_runs.KEY_BITS else bisect.bisect_left(entries[field], high)
    return np.array(entries[first:end])


def read_name(run: str, marks: np.ndarray, place: int) -> tuple[str, str]:
    """Returns the name of the document at a position of a run, and the beginning of its text."""
    start = int(marks["name_end"][place - 1]) if place else 0
    with files.open_read(path(run, "names")) as file:
        file.seek(start)
        name, begin = json.loads(file.read(int(marks["name_end"][place]) - start))
    return name, begin


def remove(run: str) -> None:
    """Deletes a run and all files beside it."""
    for name in (run, *(path(run, kind) for kind in KINDS)):
        files.remove(name, missing_ok=True)
