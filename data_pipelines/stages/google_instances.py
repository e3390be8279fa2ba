"""Makes masked next-sentence pairs exactly as google-research/bert does (create_pretraining_data.py).

The compiled functions of `google_compiled` draw from Python's random number generator in the order of the
reference, and write rows as arrays. All documents are concatenated in one array, so that a segment, which
spans several sentences, is a range of tokens, and truncating it moves the ends of the range. Module `pairs`
has the same algorithm for sequences of lists.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import google
from data_pipelines.stages import google_compiled, pairs

_BLOCK_TOKENS = 1 << 19


class Instances:
    """Makes all instances of some documents, in the order of the reference.

    Args:
        documents: at least two documents, in their order, none of them empty.
        tokenizer: the tokenizer of the documents.
        settings: `max_seq_length`, `short_seq_prob`, `dupe_factor`, `masked_lm_prob`,
            `max_predictions_per_seq`, `whole_word_mask` and `max_ngram`. If `max_ngram` is not 0, masks are
            those of tensorflow/models (official/nlp/data/create_pretraining_data.py): n-grams of whole words,
            where n is drawn with a weight of 1/n and all tokens of an n-gram get the same replacement.
        rng: the generator whose state the draws continue from; it is not changed itself.
    """

    def __init__(
        self,
        documents: Sequence[pairs.Document],
        tokenizer: tokenization.Tokenizer,
        settings: Mapping[str, Any],
        rng: random.Random,
    ):
        self._length, self._predictions = settings["max_seq_length"], settings["max_predictions_per_seq"]
        self._twister = np.array(rng.getstate()[1], np.int64)
        self._place = np.array([0, 0, -1, 0], np.int64)
        sentences = [len(sentence) for document in documents for sentence in document]
        self._sentences = np.cumsum([0, *sentences])
        self._documents = np.cumsum([0, *map(len, documents)])
        self._tokens = np.empty(self._sentences[-1], np.int32)
        at = 0
        for document in documents:
            for sentence in document:
                self._tokens[at : at + len(sentence)] = sentence
                at += len(sentence)
        kinds = np.where(tokenizer.is_continuation, google_compiled.CONTINUATION, 0).astype(np.uint8)
        layout = tokenizer.layout
        kinds[list(layout.special_ids)] = google_compiled.OUTSIDE
        prob = settings["masked_lm_prob"]
        wanted = [min(self._predictions, max(1, round(n * prob))) for n in range(self._length + 1)]
        weights = itertools.accumulate(1 / size for size in range(1, settings["max_ngram"] + 1))
        self._settings = (
            kinds,
            np.array(wanted, np.int64),
            np.array(list(weights), np.float64),
            *(ids.astype(np.int32) for ids in (layout.before, layout.between, layout.pair_end)),
            tokenizer.mask_id,
            settings["short_seq_prob"],
            settings["dupe_factor"],
            settings["whole_word_mask"],
        )

    def blocks(self) -> Iterator[google.Rows]:
        """Yields the instances in blocks of rows."""
        most = max(1, _BLOCK_TOKENS // max(self._length, self._predictions))
        while True:
            by_row = [np.zeros(most, np.int32) for _ in range(4)]
            ids, positions, labels = (
                np.zeros((most, width), np.int32)
                for width in (self._length, self._predictions, self._predictions)
            )
            lengths, first_lengths, predictions, next_labels = by_row
            rows = google.Rows(ids, lengths, first_lengths, positions, labels, predictions, next_labels)
            corpus = self._tokens, self._sentences, self._documents
            count = google_compiled.make(self._twister, self._place, *corpus, *self._settings, *rows)
            if count:
                yield google.Rows(*(values[:count] for values in rows))
            if count < most:
                return

    def order(self, count: int) -> np.ndarray:
        """Returns the order in which the reference shuffles `count` instances, int64 [count].

        It continues the draws of `blocks`, so it must be called after all blocks were made.
        """
        order = np.arange(count)
        google_compiled.shuffle_all(self._twister, order)
        return order
