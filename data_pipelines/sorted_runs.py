"""Stores tokenized documents between the two passes over a corpus, in files ("runs") sorted by document key.

A key is a 64-bit hash of the document's name, so a range of keys is a random sample of the corpus. A bucket
of documents is such a range, and is contiguous in every run.
"""

import array
import hashlib
import itertools
import os
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import atomic, files

KEY_BITS = 64
BIN_SHIFT = KEY_BITS - 16  # the bin of a key in a histogram is its first 16 bits
_HEADER = struct.Struct("<8sQQQ")
_MAGIC = b"bjspill2"


def document_key(name: str) -> int:
    """Returns the key of a document: a hash of its name, uniform in [0, 2**64)."""
    content = name.encode("utf-8", "surrogatepass")  # file names need not be UTF-8
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def dropped_path(run: str) -> str:
    """Returns the path of a run's .npy mask: one byte per document of the run, 1 if it is dropped."""
    return f"{run}.dropped"


def save_array(path: str, values: np.ndarray) -> None:
    """Writes a .npy file atomically."""
    with atomic.replace_file(path) as file:
        np.save(file, values)


def new_histogram() -> np.ndarray:
    """Returns an empty histogram: the numbers of documents and of tokens by bin of keys, int64 [bins, 2]."""
    return np.zeros((1 << (KEY_BITS - BIN_SHIFT), 2), np.int64)


def write_histogram(path: str, histogram: np.ndarray) -> None:
    """Writes the non-empty bins of a histogram."""
    bins = np.flatnonzero(histogram[:, 0])
    save_array(path, np.column_stack((bins, histogram[bins])))


def add_histogram(path: str, histogram: np.ndarray) -> None:
    """Adds a histogram that `write_histogram` wrote to `histogram`, in place."""
    entries = files.load_array(path)
    histogram[entries[:, 0]] += entries[:, 1:]


class RunWriter:
    """Collects documents and writes them as one sorted run."""

    def __init__(self, dtype: np.dtype):
        self._dtype = dtype
        self._keys: list[int] = []
        self._sentence_counts: list[int] = []
        self._sentence_lengths: list[array.array] = []
        self._tokens: list[np.ndarray] = []
        self.size = 0  # tokens
        self.documents = 0

    def add(self, key: int, sentences: Sequence[Sequence[int]]) -> None:
        """Adds a document, given the token ids of its sentences, none of which is empty."""
        flat = np.array(list(itertools.chain.from_iterable(sentences)), self._dtype)
        self._keys.append(key)
        self._sentence_counts.append(len(sentences))
        self._sentence_lengths.append(array.array("I", map(len, sentences)))
        self._tokens.append(flat)
        self.size += len(flat)
        self.documents += 1

    def write(self, path: str) -> None:
        """Writes the run atomically. Documents with equal keys stay in the order in which they were added."""
        keys = np.array(self._keys, np.uint64)
        order = np.argsort(keys, kind="stable")
        lengths = [np.array(self._sentence_lengths[i], "<u4") for i in order]
        tokens = [self._tokens[i] for i in order]
        sentence_ends = np.cumsum(np.array(self._sentence_counts, np.int64)[order])
        token_ends = np.cumsum([len(document) for document in tokens])
        sentences = int(sentence_ends[-1]) if len(keys) else 0
        with atomic.replace_file(path) as file:
            file.write(_HEADER.pack(_MAGIC, len(keys), sentences, self.size))
            for values in (keys[order], sentence_ends, token_ends):
                file.write(values.astype("<u8").tobytes())
            for values in (order.astype("<u4"), *lengths, *tokens):
                file.write(values.tobytes())


class StoredDocument(Sequence):
    """A document whose sentences are converted to lists of token ids on access."""

    __slots__ = ("_edges", "_tokens")

    def __init__(self, tokens: np.ndarray, edges: list[int]):
        self._tokens, self._edges = tokens, edges

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __getitem__(self, index: int) -> list[int]:  # type: ignore[override]  # no slices
        return self._tokens[self._edges[index] : self._edges[index + 1]].tolist()


def read_documents(
    paths: Sequence[str], low: int, high: int, dtype: np.dtype, in_order: bool = False
) -> list[StoredDocument]:
    """Returns the documents of all runs with keys in [low, high), without those marked in `dropped_path`.

    They are sorted by key, and equal keys by run and position; if `in_order`, by run and by the order in
    which they were added to it.
    """
    pieces = [
        (run if in_order else 0, place if in_order else key, StoredDocument(tokens, edges))
        for run, path in enumerate(paths)
        for key, place, tokens, edges in _read_range(path, low, high, dtype)
    ]
    pieces.sort(key=lambda piece: piece[:2])  # stable, so equal keys stay in the order of the runs
    return [document for *_, document in pieces]


def _read_range(
    path: str, low: int, high: int, dtype: np.dtype
) -> Iterator[tuple[int, int, np.ndarray, list[int]]]:
    """Yields (key, order of addition, tokens, sentence edges) of documents with keys in [low, high)."""
    with files.open_read(path) as file:
        header = file.read(_HEADER.size).ljust(_HEADER.size, b"\0")
        magic, documents, sentences, tokens = _HEADER.unpack(header)
        places = [_HEADER.size]
        words = (2 * documents, 2 * documents, 2 * documents, documents, sentences)
        for size in (*(4 * count for count in words), dtype.itemsize * tokens):
            places.append(places[-1] + size)
        if magic != _MAGIC or file.seek(0, 2) != places[-1]:
            raise UserError(f"{path} is truncated; delete {os.path.dirname(path)} and run the command again")

        def read(part: int, start: int, end: int, kind: np.dtype) -> np.ndarray:
            file.seek(places[part] + start * kind.itemsize)
            return np.frombuffer(file.read((end - start) * kind.itemsize), kind)

        u8, u4 = np.dtype("<u8"), np.dtype("<u4")
        if files.is_remote(path):
            keys = read(0, 0, documents, u8)
        else:  # memory-mapped, since the search reads few of the keys, and there may be many runs
            keys = np.memmap(file, u8, "r", places[0], (documents,))
        first = int(np.searchsorted(keys, np.uint64(low)))
        end = documents if high >> KEY_BITS else int(np.searchsorted(keys, np.uint64(high)))
        if first == end:
            return
        # The end of the previous document is the start of the first one; the first document of the run has no
        # previous one and starts at 0.
        before, origin = (first - 1, []) if first else (0, [0])
        sentence_ends = origin + read(1, before, end, u8).tolist()
        token_ends = origin + read(2, before, end, u8).tolist()
        order = read(3, first, end, u4).tolist()
        lengths = read(4, sentence_ends[0], sentence_ends[-1], u4)
        ids = read(5, token_ends[0], token_ends[-1], dtype)
    dropped = np.zeros(end - first, np.uint8)
    if files.exists(dropped_path(path)):
        dropped = files.load_array(dropped_path(path))[first:end]
    for i, key in enumerate(keys[first:end].tolist()):
        if dropped[i]:
            continue
        own = lengths[sentence_ends[i] - sentence_ends[0] : sentence_ends[i + 1] - sentence_ends[0]]
        start, stop = token_ends[i] - token_ends[0], token_ends[i + 1] - token_ends[0]
        yield key, order[i], ids[start:stop], [0, *np.cumsum(own).tolist()]
