"""google-research/bert's instances in plain Python, draw by draw: what the compiled ones must equal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax import tokenization
from bert_jax.data import tf_example
from data_pipelines.stages import pairs


class Masked(NamedTuple):
    """A sequence after masking, and the positions and the labels of what is to be predicted, by position."""

    ids: list[int]
    positions: list[int]
    labels: list[int]


class Masker:
    """Draws the masks of one sequence after the other.

    Args:
        settings: `masked_lm_prob`, `max_predictions_per_seq`, `whole_word_mask` and `max_ngram`. With an
            n-gram, masks are those of tensorflow/models (official/nlp/data/create_pretraining_data.py): grams
            of whole words, one of n words with a weight of 1/n, each replaced as one.
        rng: the generator that pairs are drawn from too.
    """

    def __init__(self, tokenizer: tokenization.Tokenizer, settings: Mapping[str, Any], rng: random.Random):
        self._rng = rng
        self._vocab_size, self._mask_id = tokenizer.vocab_size, tokenizer.mask_id
        self._outside = {tokenizer.cls_id, tokenizer.sep_id}
        self._continuations = set(np.flatnonzero(tokenizer.is_continuation).tolist())
        self._prob, self._most = settings["masked_lm_prob"], settings["max_predictions_per_seq"]
        self._whole_words, self._max_ngram = settings["whole_word_mask"], settings["max_ngram"]

    def __call__(self, ids: Sequence[int]) -> Masked:
        """Masks a sequence with its [CLS] and [SEP]."""
        wanted = min(self._most, max(1, round(len(ids) * self._prob)))
        masked = list(ids)
        if self._max_ngram:
            chosen = self._choose_grams(ids, wanted)
            for gram in chosen:
                replacement = self._replacement()
                for position in gram:
                    masked[position] = replacement(ids[position])
        else:
            chosen = self._choose_words(ids, wanted)
            for word in chosen:
                for position in word:
                    masked[position] = self._replacement()(ids[position])
        positions = sorted(position for group in chosen for position in group)
        return Masked(masked, positions, [ids[position] for position in positions])

    def _replacement(self) -> Callable[[int], int]:
        """What becomes of a token: [MASK] in 80% of the draws, itself in 10%, any word in 10%."""
        if self._rng.random() < 0.8:
            return lambda token: self._mask_id
        if self._rng.random() < 0.5:
            return lambda token: token
        return lambda token: self._rng.randint(0, self._vocab_size - 1)

    def _choose_words(self, ids: Sequence[int], wanted: int) -> list[list[int]]:
        """Positions of tokens, or words, in random order until there are enough; a word that would be too
        much is left out. A piece that has lost its word's beginning belongs to the word before, be a [SEP]
        between them."""
        words: list[list[int]] = []
        for position, token in enumerate(ids):
            if token in self._outside:
                continue
            if self._whole_words and words and token in self._continuations:
                words[-1].append(position)
            else:
                words.append([position])
        self._rng.shuffle(words)
        chosen, count = [], 0
        for word in words:
            if count >= wanted:
                break
            if count + len(word) <= wanted:
                chosen.append(word)
                count += len(word)
        return chosen

    def _choose_grams(self, ids: Sequence[int], wanted: int) -> list[range]:
        """Positions of n-grams of words, none of them over a [SEP], that do not overlap."""
        stretches: list[list[int]] = [[]]  # where words begin, and where the last one ends
        for position, token in enumerate(ids):
            if token in self._outside:
                if stretches[-1]:
                    stretches[-1].append(position)
                    stretches.append([])
            elif not (stretches[-1] and token in self._continuations):
                stretches[-1].append(position)
        sizes = range(1, self._max_ngram + 1)
        grams = {
            size: [range(*edge) for s in stretches for edge in zip(s, s[size:], strict=False)]
            for size in sizes
        }
        for candidates in grams.values():
            self._rng.shuffle(candidates)
        weights = [1 / size for size in sizes]
        chosen: list[range] = []
        taken: set[int] = set()
        while len(taken) < wanted and any(grams.values()):
            size = self._rng.choices(sizes, weights)[0]
            if len(taken) + size > wanted:
                grams[size].clear()
            elif grams[size]:
                gram = grams[size].pop()
                if len(taken) + len(gram) <= wanted and taken.isdisjoint(gram):
                    chosen.append(gram)
                    taken.update(gram)
        return chosen


class Instance(NamedTuple):
    ids: list[int]  # after masking
    first_length: int  # tokens of A with [CLS] and the first [SEP]
    positions: list[int]
    labels: list[int]
    next_sentence_label: int


def instances(
    documents: Sequence[pairs.Document],
    tokenizer: tokenization.Tokenizer,
    settings: Mapping[str, Any],
    rng: random.Random,
) -> Iterator[Instance]:
    """Yields the instances of documents in their order; `settings` are those of a manifest."""
    mask, cls, sep = Masker(tokenizer, settings, rng), tokenizer.cls_id, tokenizer.sep_id
    factors = settings["short_seq_prob"], settings["dupe_factor"]
    for pair in pairs.make_pairs(documents, settings["max_seq_length"], rng, *factors):
        masked = mask([cls, *pair.first, sep, *pair.second, sep])
        yield Instance(masked.ids, len(pair.first) + 2, masked.positions, masked.labels, pair.label)


def encode(instance: Instance, length: int, predictions: int) -> bytes:
    """The record of an instance, padded with zeros."""
    ids, first_length, positions, labels, label = instance

    def varints(values: Sequence[int], width: int) -> bytes:
        return b"".join(map(tf_example.varint, values)) + bytes(width - len(values))

    weights = np.zeros(predictions, "<f4")
    weights[: len(positions)] = 1
    features = {
        "input_ids": varints(ids, length),
        "input_mask": varints([1] * len(ids), length),
        "segment_ids": varints([0] * first_length + [1] * (len(ids) - first_length), length),
        "masked_lm_positions": varints(positions, predictions),
        "masked_lm_ids": varints(labels, predictions),
        "masked_lm_weights": weights.tobytes(),
        "next_sentence_labels": varints([label], 1),
    }
    kinds = dict.fromkeys(features, tf_example.INT64) | {"masked_lm_weights": tf_example.FLOAT}
    return tf_example.encode_example(features, kinds)
