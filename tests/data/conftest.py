"""A small record directory with known rows."""

import numpy as np
import pytest
from support import processes

from bert_jax.data import packed


@pytest.fixture
def make_records(tmp_path):
    """Writes a record directory of random rows; returns (directory, {split: rows as lists of
    PackedSequence})."""

    def make(
        name="records",
        splits=(("train", (40, 23)), ("eval", (11,))),
        vocab_size=1000,
        length=32,
        seed=0,
        **manifest,
    ):
        rng, directory = np.random.default_rng(seed), str(tmp_path / name)
        rows = {
            split: [[_random_row(rng, length, vocab_size) for _ in range(size)] for size in sizes]
            for split, sizes in splits
        }
        vocabulary = {"kind": "wordpiece", "file": "vocab.txt", "digest": "d", "size": vocab_size}
        vocabulary |= {"lower_case": True, "strip_accents": True}
        fields = {"vocabulary": vocabulary, "sources": [{"name": name}], "fingerprint": name, "seed": 1}
        processes.write_splits(directory, rows, length, **fields | manifest)
        return directory, {split: [row for part in parts for row in part] for split, parts in rows.items()}

    return make


def _random_row(rng, length, vocab_size):
    row, room = [], length
    while room >= 5 and len(row) < 4:
        size = int(rng.integers(5, room + 1))
        ids = rng.integers(5, vocab_size, size).astype(packed.id_dtype(vocab_size))
        row.append(packed.PackedSequence(ids, int(rng.integers(2, size)), int(rng.integers(2))))
        room -= size
        if rng.random() < 0.3:
            break
    return row
