"""Divides the documents into held-out and training documents, and each of these into buckets."""

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import google
from data_pipelines import sorted_runs
from data_pipelines.sorted_runs import BIN_SHIFT

MIN_BUCKET_DOCUMENTS = 64  # enough to choose a random next sentence from, also among books
BUCKET_TOKENS = (8 << 20, 64 << 20)  # target size of a bucket: the minimum and the maximum
_MAX_BUCKETS = 1024  # unless the buckets would exceed their maximum size
MOST_BUCKET_DOCUMENTS = 1 << 20  # a document in memory takes about 600 bytes plus its tokens


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The documents with keys in [low, high), from which rows are made together."""

    split: str
    number: int
    low: int
    high: int

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.split}-{self.number:06d}"


def plan(results: Sequence[dict[str, Any]], eval_fraction: float) -> list[Bucket]:
    """Returns the buckets of the split `eval`, if there are any, and of `train`, from results of `tokenize`.

    `eval_fraction` of the keys are held out. If fewer than two documents have such keys, the two with the
    smallest keys are held out, because next-sentence prediction needs two. If there are fewer than 8
    documents, none is held out.
    """
    histogram = sorted_runs.new_histogram()
    for result in results:
        sorted_runs.add_histogram(result["histogram"], histogram)
    documents, tokens = (int(total) for total in histogram.sum(axis=0))
    eval_bins = math.ceil(eval_fraction * len(histogram))
    threshold = eval_bins << BIN_SHIFT
    if eval_bins and documents < 8:
        threshold = 0
    elif eval_bins and histogram[:eval_bins, 0].sum() < 2:
        threshold = sorted(key for result in results for key in result["smallest_keys"])[1] + 1
    smallest, largest = BUCKET_TOKENS
    size = min(max(smallest, tokens // _MAX_BUCKETS), largest)
    edges = {"eval": (0, threshold), "train": (threshold, 1 << sorted_runs.KEY_BITS)}
    return [
        bucket
        for split, (low, high) in edges.items()
        if high > low
        for bucket in _buckets(split, low, high, histogram, size)
    ]


def _buckets(split: str, low: int, high: int, histogram: np.ndarray, size: int) -> list[Bucket]:
    edges, documents, tokens = [low], 0, 0
    for number in range(low >> BIN_SHIFT, -(-high >> BIN_SHIFT)):
        documents += int(histogram[number, 0])
        tokens += int(histogram[number, 1])
        if (tokens >= size and documents >= MIN_BUCKET_DOCUMENTS) or documents >= MOST_BUCKET_DOCUMENTS:
            edges.append(min(high, (number + 1) << BIN_SHIFT))
            documents = tokens = 0
    short = tokens < size // 2 and documents < MOST_BUCKET_DOCUMENTS // 2
    if len(edges) > 1 and (documents < MIN_BUCKET_DOCUMENTS or short):
        edges.pop()  # the rest is too small for a separate bucket
    if edges[-1] < high:
        edges.append(high)
    return [Bucket(split, number, *edge) for number, edge in enumerate(itertools.pairwise(edges))]


@dataclasses.dataclass(frozen=True)
class RowsTask:
    """The arguments of `make_rows` of a schema: a bucket of documents from which one worker makes rows."""

    bucket: Bucket
    runs: tuple[str, ...]
    tokenizer: tokenization.Tokenizer
    settings: Mapping[str, Any]  # the settings in the manifest, without the sources
    output: str
    times: float = 1.0  # how often the documents are used, times `dupe_factor`

    @property
    def passes(self) -> float:
        """The number of passes over the documents; the last pass may be incomplete."""
        return self.settings["dupe_factor"] * self.times

    def rng(self, purpose: str = "") -> random.Random:
        """Returns the random number generator of the bucket.

        In google records, the first bucket of `train` has the same generator as the reference.
        """
        seed, bucket = self.settings["seed"], self.bucket
        if (self.settings["schema"], bucket.split, bucket.number) == (google.SCHEMA, "train", 0):
            return random.Random(seed)
        return random.Random(f"{seed}/{bucket.split}/{bucket.number}{purpose}")
