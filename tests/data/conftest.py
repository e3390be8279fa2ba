"""A small record directory with known rows."""

import numpy as np
import pytest
from support import processes


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
            split: [[processes.random_row(rng, vocab_size, length) for _ in range(size)] for size in sizes]
            for split, sizes in splits
        }
        vocabulary = {"kind": "wordpiece", "file": "vocab.txt", "digest": "d", "size": vocab_size}
        vocabulary |= {"lower_case": True, "strip_accents": True}
        fields = {"vocabulary": vocabulary, "sources": [{"name": name}], "fingerprint": name, "seed": 1}
        processes.write_splits(directory, rows, length, **fields | manifest)
        return directory, {split: [row for part in parts for row in part] for split, parts in rows.items()}

    return make
