"""Rows of groups of texts, of which objectives of vectors learn."""

import numpy as np
from support import encoded


def groups(texts, lengths, targets=None, query_length=0):
    """Rows of random tokens for texts [groups, K], equal for equal texts.

    With a `query_length`, the first text of each group is cut, or padded by [MASK] (4), to that length.
    """
    count, tokens = texts.shape[1], []
    for number, (text, length) in enumerate(zip(texts.reshape(-1), lengths, strict=True)):
        row = np.concatenate([[1], np.random.default_rng(int(text)).integers(5, 40, length - 2), [2]])
        if query_length and number % count == 0:
            row = np.concatenate([row[:query_length], np.full(max(0, query_length - length), 4)])
        tokens.append(row)
    found = {"texts": texts.reshape(-1).astype(np.int32)}
    if targets is not None:
        found["targets"] = np.repeat(targets, count)
    lengths = np.array(list(map(len, tokens)), np.int32)
    return encoded.rows(
        lengths,
        tokens=np.concatenate(tokens).astype(np.int32),
        examples=np.repeat(np.arange(len(texts)), count),
        first_lengths=lengths,
        targets=found,
        rows_per_example=count,
    )
