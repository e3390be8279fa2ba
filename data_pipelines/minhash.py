"""What duplicates are known by: hashes and MinHash signatures of documents, and the files that hold them.

Beside a run of documents (`spill`) lie, as .npy files: its marks, a row a document in the order of the run;
the hashes of their text, sorted; the signatures, in the order of the run; the hashes of the signatures'
bands, sorted. A sorted file gives a range of hashes in one piece, so one task can compare all documents of
the corpus that have their hashes in it.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np

from bert_jax.errors import optional_imports
from bert_jax.io import atomic, files
from data_pipelines import cleaning, sorted_runs
from data_pipelines.readers import Document

with optional_imports("cleaning"):
    import rensa

KINDS = ("marks", "names", "hashes", "signatures", "bands", "dropped")  # of files beside a run
PERMUTATIONS = 126  # values of a signature; many numbers of rows divide it
_SEED = 1
_SHINGLE_WORDS = 5
_RECALL = 0.98  # of pairs whose similarity is the threshold: at least so many share a band

MARK = np.dtype(
    [
        ("key", "<u8"),
        ("exact", "<u4"),  # the place in the run of the document that this one repeats; its own place if none
        ("near", "<u4"),
        ("tokens", "<u4"),
        ("sentences", "<u4"),
        ("unknown_tokens", "<u4"),
        ("bytes", "<u4"),
        ("documents", "u1"),  # 1; 0 for a further part of a long document
        ("name_end", "<u8"),  # where in the file of names this one's ends
    ]
)
HASH = np.dtype([("high", "<u8"), ("low", "<u8"), ("key", "<u8"), ("place", "<u4")])
BAND = np.dtype([("band", "<u8"), ("signature", "<u8"), ("key", "<u8"), ("place", "<u4")])


def text_hash(folded: str) -> bytes:
    """16 bytes of a folded text: equal for equal texts, and in effect only for these."""
    return hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# A word, or one character of a script that puts no spaces between words.
_WORDS = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)


def shingles(folded: str) -> list[str]:
    """The runs of five words of a text; all of it, if it has fewer."""
    words = (re.findall(r"\w+", folded) if folded.isascii() else _WORDS.findall(folded)) or [folded]
    return [
        " ".join(words[start : start + _SHINGLE_WORDS])
        for start in range(max(1, len(words) - _SHINGLE_WORDS + 1))
    ]


def signature(folded: str) -> np.ndarray:
    """The MinHash signature of a text, uint32 [PERMUTATIONS].

    The share of values that two of them have in common estimates the Jaccard similarity of the two sets of
    shingles (Broder, On the resemblance and containment of documents, 1997), with a standard error of
    at most 1 / (2 sqrt(PERMUTATIONS)) = 0.045. By rensa: 99 MB of text a second, where datasketch does 4.4.
    """
    minhash = rensa.RMinHash(PERMUTATIONS, _SEED)
    minhash.update(shingles(folded))
    return np.array(minhash.digest(), np.uint32)


@functools.cache
def band_rows(threshold: float) -> int:
    """How many values a band has: as many as still let pairs at the threshold share a band almost always."""
    return max(
        rows
        for rows in range(1, PERMUTATIONS + 1)
        if rows == 1 or 1 - (1 - threshold**rows) ** (PERMUTATIONS // rows) >= _RECALL
    )


def band_hashes(signatures: np.ndarray, rows: int) -> np.ndarray:
    """64-bit hashes of the bands of signatures, uint64 [n, PERMUTATIONS // rows]; bands differ in theirs."""
    bands = PERMUTATIONS // rows
    values = signatures[:, : bands * rows].reshape(len(signatures), bands, rows).astype(np.uint64)
    state = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64), values.shape[:2])
    for row in range(rows):
        state = _mixed(state ^ values[..., row])
    return state


def _mixed(state: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), after its step."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class Writer:
    """Collects the fingerprints of a run's documents, in the order in which the run gets them."""

    def __init__(self, steps: Sequence[str], threshold: float):
        self._exact, self._near, self._threshold = "exact" in steps, "near" in steps, threshold
        self._marks: list[tuple] = []
        self._hashes: list[bytes] = []
        self._signatures: list[np.ndarray] = []
        self._names: list[bytes] = []
        self.size = 0  # bytes held

    def add(self, key: int, document: Document, sentences: Sequence[Sequence[int]], unknown_id: int) -> None:
        """Adds a document that has been given to the run under this key."""
        folded = cleaning.folded_text(document.passages)
        if self._exact:
            self._hashes.append(text_hash(folded))
        if self._near:
            self._signatures.append(signature(folded))
        begin = document.passages[0][: cleaning.EXAMPLE_CHARACTERS]
        for passage in document.passages[1:]:
            if len(begin) >= cleaning.EXAMPLE_CHARACTERS:
                break
            begin = f"{begin}\n{passage[: cleaning.EXAMPLE_CHARACTERS]}"
        self._names.append(json.dumps([document.key, begin[: cleaning.EXAMPLE_CHARACTERS]]).encode())
        unknown = sum(sentence.count(unknown_id) for sentence in sentences)
        size = cleaning.size(document.passages)
        self._marks.append(
            (key, 0, 0, sum(map(len, sentences)), len(sentences), unknown, size, document.part == 0, 0)
        )
        self.size += 2 * MARK.itemsize + 4 * PERMUTATIONS * self._near + len(self._names[-1])

    def write(self, run: str) -> None:
        """Writes the files beside a run."""
        marks = np.array(self._marks, MARK)
        order = np.argsort(marks["key"], kind="stable")  # as the run sorts its documents
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
            # What repeats a document of this run never is the one to keep, so other runs need not know it.
            # It also keeps the entries of one hash as few as there are runs.
            _save(path(run, "hashes"), hashes[firsts == np.arange(len(hashes))])
        if self._near:
            self._write_bands(run, marks, np.array(self._signatures, "<u4")[order])
        with atomic.replace_file(path(run, "names")) as file:
            file.writelines(names)
        _save(path(run, "marks"), marks)

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
        _save(path(run, "bands"), entries[np.argsort(entries["band"], kind="stable")])
        _save(path(run, "signatures"), signatures)


def first_of_each(values: np.ndarray) -> np.ndarray:
    """For each of sorted values, the index of the first that is equal to it."""
    if not len(values):
        return np.zeros(0, np.int64)
    new = np.concatenate(([True], values[1:] != values[:-1]))
    return np.flatnonzero(new)[np.cumsum(new) - 1]


def path(run: str, kind: str) -> str:
    """The file of one of KINDS beside a run."""
    return sorted_runs.dropped_path(run) if kind == "dropped" else f"{run}.{kind}"


def _save(name: str, values: np.ndarray) -> None:
    with atomic.replace_file(name) as file:
        np.save(file, values)


def load(run: str, kind: str) -> np.ndarray:
    """A .npy file beside a run, mapped."""
    return files.load_array(path(run, kind))


def read_range(run: str, kind: str, field: str, low: int, high: int) -> np.ndarray:
    """The entries of a sorted file whose `field` is in [low, high)."""
    entries = load(run, kind)
    # numpy's own search would first copy the whole field.
    first = bisect.bisect_left(entries[field], low)
    end = len(entries) if high >> sorted_runs.KEY_BITS else bisect.bisect_left(entries[field], high)
    return np.array(entries[first:end])


def read_name(run: str, marks: np.ndarray, place: int) -> tuple[str, str]:
    """The name of a document of a run, and how its text begins."""
    start = int(marks["name_end"][place - 1]) if place else 0
    with files.open_read(path(run, "names")) as file:
        file.seek(start)
        name, begin = json.loads(file.read(int(marks["name_end"][place]) - start))
    return name, begin


def remove(run: str) -> None:
    """Deletes a run and all files beside it."""
    for name in (run, *(path(run, kind) for kind in KINDS)):
        with contextlib.suppress(FileNotFoundError):
            files.remove(name)
