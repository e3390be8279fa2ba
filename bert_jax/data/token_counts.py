"""How often each token of the vocabulary occurs in a corpus."""

from __future__ import annotations

import numpy as np

from bert_jax.data import google
from bert_jax.data.records import Dataset

_ROWS = 1024  # rows that are read together


def count(dataset: Dataset, vocab_size: int, limit: int = 2**24) -> np.ndarray:
    """Counts the tokens of evenly spaced rows, so that every process and every resumed run has the same.

    The tokens of masked rows are those from before they were masked.

    Args:
        dataset: the records.
        vocab_size: number of tokens of the vocabulary, V.
        limit: about the largest number of tokens to read.

    Returns:
        int64 [V].
    """
    rows = min(len(dataset), max(1, limit // dataset.max_seq_length))
    indices = np.linspace(0, len(dataset) - 1, rows).round().astype(np.int64)
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, rows, _ROWS):
        chunk = indices[start : start + _ROWS]
        counts += _count(dataset, chunk, vocab_size)
    return counts


def _count(dataset: Dataset, indices: np.ndarray, vocab_size: int) -> np.ndarray:
    batch = google.without_masks(dataset.batch(indices))
    ids = batch["input_ids"]
    real = np.arange(ids.shape[1]) < batch["lengths"][:, None]
    return np.bincount(ids[real], minlength=vocab_size)


def cross_entropy(counts: np.ndarray, known: np.ndarray, smoothing: float = 1.0) -> float:
    """Returns the loss, in nats per token, of predicting each token by its frequency alone.

    A model that uses the context has to be better. The lowest such loss, the entropy of the tokens, is
    `cross_entropy(counts, counts, smoothing=0)`.

    Args:
        counts: [V], how often each token has to be predicted.
        known: [V], the counts that the frequencies are taken from; 0 for what is never predicted.
        smoothing: is added to each of `known`, so that no token has the probability 0.
    """
    shares = (known + smoothing) / (known + smoothing).sum()
    predicted = counts > 0
    return float(-(counts[predicted] * np.log(shares[predicted])).sum() / counts.sum())
