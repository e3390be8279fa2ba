"""Makes rows of the google schema: next-sentence pairs with static masks.

The instances equal google-research/bert's (create_pretraining_data.py): the same random numbers are sampled
in the same order.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax import tokenization
from bert_jax.data import packed, tf_example, tfrecord
from bert_jax.io import files
from data_pipelines import sorted_runs
from data_pipelines.stages import buckets, pairs


class Masker:
    """Masks sequences, one after the other; `rng` is also used to make the pairs."""

    def __init__(self, tokenizer: tokenization.Tokenizer, settings: Mapping[str, Any], rng: random.Random):
        self._rng = rng
        self._vocab_size, self._mask_id = tokenizer.vocab_size, tokenizer.mask_id
        self._special = frozenset(tokenizer.layout.special_ids)
        self._continuations = frozenset(np.flatnonzero(tokenizer.is_continuation).tolist())
        self._prob, self._most = settings["masked_lm_prob"], settings["max_predictions_per_seq"]
        self._whole_words = settings["whole_word_mask"]

    def __call__(self, ids: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Returns (masked ids, positions to predict in ascending order, their labels) of a whole sequence."""
        target = min(self._most, max(1, round(len(ids) * self._prob)))
        masked = list(ids)
        chosen = self._choose(ids, target)
        for position in itertools.chain.from_iterable(chosen):
            masked[position] = self._replacement(ids[position])
        positions = sorted(itertools.chain.from_iterable(chosen))
        return masked, positions, [ids[position] for position in positions]

    def _replacement(self, token: int) -> int:
        """Returns [MASK] (80%), the token itself (10%) or any token (10%)."""
        if self._rng.random() < 0.8:
            return self._mask_id
        if self._rng.random() < 0.5:
            return token
        return self._rng.randint(0, self._vocab_size - 1)

    def _choose(self, ids: Sequence[int], target: int) -> list[list[int]]:
        """Returns the positions of tokens, or of whole words, in random order, at most `target` tokens.

        A continuation whose word was truncated at its beginning belongs to the previous word, even if a [SEP]
        is between them.
        """
        words: list[list[int]] = []
        for position, token in enumerate(ids):
            if token in self._special:
                continue
            if self._whole_words and words and token in self._continuations:
                words[-1].append(position)
            else:
                words.append([position])
        self._rng.shuffle(words)
        chosen, count = [], 0
        for word in words:
            if count >= target:
                break
            if count + len(word) <= target:
                chosen.append(word)
                count += len(word)
        return chosen


class Instance(NamedTuple):
    """A masked sequence."""

    ids: list[int]
    first_length: int  # number of tokens of A, including [CLS] and the first [SEP]
    positions: list[int]
    labels: list[int]
    next_sentence_label: int

    def encode(self, length: int, predictions: int) -> bytes:
        """Returns the tf.train.Example, padded with zeros to `length` tokens and `predictions` labels."""
        size, predicted = len(self.ids), len(self.positions)
        token_padding, padding = [0] * (length - size), [0] * (predictions - predicted)
        return tf_example.encode(
            {
                "input_ids": [*self.ids, *token_padding],
                "input_mask": [1] * size + token_padding,
                "segment_ids": [0] * self.first_length + [1] * (size - self.first_length) + token_padding,
                "masked_lm_positions": [*self.positions, *padding],
                "masked_lm_ids": [*self.labels, *padding],
                "masked_lm_weights": [1.0] * predicted + [0.0] * (predictions - predicted),
                "next_sentence_labels": [self.next_sentence_label],
            }
        )


def instances(
    documents: Sequence[pairs.Document],
    tokenizer: tokenization.Tokenizer,
    settings: Mapping[str, Any],
    rng: random.Random,
    passes: float,
) -> Iterator[Instance]:
    """Yields the instances of at least two documents, in the order in which the reference makes them."""
    layout, mask = tokenizer.layout, Masker(tokenizer, settings, rng)
    before, between, end = (ids.tolist() for ids in (layout.before, layout.between, layout.pair_end))
    factors = settings["short_seq_prob"], passes
    length = settings["max_seq_length"]
    for pair in pairs.make_pairs(documents, length, rng, *factors, template=layout.template):
        ids = [*before, *pair.first, *between, *pair.second, *end]
        first_length = len(before) + len(pair.first) + len(between)
        masked, positions, labels = mask(ids)
        yield Instance(masked, first_length, positions, labels, pair.label)


def make_rows(task: buckets.RowsTask) -> dict[str, Any]:
    """Writes the rows of a bucket in random order; returns their counts, which `manifests.merge_splits` sums.

    The documents of the bucket are in memory. The reference also shuffles all its instances in memory; here
    they are first written to a file.
    """
    tokenizer, bucket = task.tokenizer, task.bucket
    settings = task.settings
    length, predictions = settings["max_seq_length"], settings["max_predictions_per_seq"]
    rng = task.rng()
    dtype = packed.id_dtype(tokenizer.vocab_size)
    documents = sorted_runs.read_documents(task.runs, bucket.low, bucket.high, dtype, in_order=True)
    rng.shuffle(documents)
    lengths = [0] * (length + 1)
    counts = {"documents": len(documents), "tokens": 0, "random_next": 0, "predictions": 0}

    def rows() -> Iterator[bytes]:
        for row in instances(documents, tokenizer, settings, rng, task.passes):
            size = len(row.ids)
            lengths[size] += 1
            counts["tokens"] += size
            counts["random_next"] += row.next_sentence_label
            counts["predictions"] += len(row.positions)
            yield row.encode(length, predictions)

    unshuffled = task.output + "-unshuffled"
    count, _ = tfrecord.write_records(unshuffled, rows())
    order = list(range(count))
    rng.shuffle(order)
    source = tfrecord.RecordFile(unshuffled)
    _, size = tfrecord.write_records(task.output, (source[number] for number in order))
    for path in (unshuffled, unshuffled + tfrecord.INDEX_SUFFIX):
        files.remove(path)
    figures = {"rows": count, "sequences": count, "sequence_lengths": lengths, "bytes": size, "files": []}
    return counts | figures
