"""Encoded rows without texts."""

import numpy as np

from bert_jax.tasks.rows import batches


def rows(lengths, seed=0, **fields):
    """Rows [CLS] ... [SEP] of random tokens with these lengths; the targets are the numbers of the rows.

    `fields` are values of `EncodedRows` that differ.
    """
    rng = np.random.default_rng(seed)
    tokens = [np.concatenate([[1], rng.integers(5, 40, length - 2), [2]]) for length in lengths]
    made = {
        "tokens": np.concatenate(tokens).astype(np.int32),
        "offsets": np.cumsum([0, *lengths]),
        "examples": np.arange(len(lengths)),
        "first_lengths": np.array([rng.integers(2, length + 1) for length in lengths], np.int32),
        "targets": {"targets": np.arange(len(lengths), dtype=np.int32)},
        "pad_id": 0,
        "max_seq_length": 32,
    }
    return batches.EncodedRows(**made | fields)
