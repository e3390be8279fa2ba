"""The masks' distribution, tested statistically, and what must hold in every row."""

import functools

import jax
import numpy as np
import pytest
from support.models import MASK, SPECIAL, VOCAB

from bert_jax.objectives.masking import MaskingOptions, Vocabulary, mask_tokens

LENGTH = 64
CONTINUATION = np.arange(VOCAB) % 3 == 0
CONTINUATION[list(SPECIAL)] = False
VOCABULARY = Vocabulary(VOCAB, MASK, SPECIAL, CONTINUATION)


def rows(count, seed=0, length=LENGTH):
    """Rows of [CLS] a [SEP] b [SEP] and padding, of various lengths."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB, (count, length)).astype(np.int32)
    lengths = rng.integers(4, length + 1, count).astype(np.int32)
    ids[:, 0] = 2
    ids[np.arange(count), lengths // 2] = 3
    ids[np.arange(count), lengths - 1] = 3
    ids[np.arange(length) >= lengths[:, None]] = 0
    return ids, lengths


@functools.cache
def masker(strategy, prob, max_predictions):
    """The program of the masks."""
    options = MaskingOptions(prob, strategy, max_predictions)

    def masked(key, ids, lengths):
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(np.arange(len(ids)))
        return mask_tokens(keys, ids, lengths, VOCABULARY, options)

    return jax.jit(masked)


def mask(ids, lengths, strategy="token", prob=0.15, max_predictions=12, seed=1):
    found = masker(strategy, prob, max_predictions)(jax.random.key(seed), ids, lengths)
    return jax.tree.map(np.asarray, found)


def check_row(ids, length, masked, row, prob, max_predictions, strategy):
    used = masked.weights[row] > 0
    positions = masked.positions[row][used]
    candidates = [i for i in range(length) if ids[row, i] not in SPECIAL]
    wanted = min(max_predictions, max(1, round(length * prob)), len(candidates))
    assert used.sum() == wanted if strategy == "token" else used.sum() <= wanted
    assert set(positions) <= set(candidates) and len(set(positions)) == len(positions)
    assert list(positions) == sorted(positions) and not used[len(positions) :].any()
    assert np.array_equal(masked.labels[row][used], ids[row, positions])
    untouched = np.setdiff1d(np.arange(ids.shape[1]), positions)
    assert np.array_equal(masked.input_ids[row, untouched], ids[row, untouched])


@pytest.mark.parametrize("prob,max_predictions", [(0.9, 80), (0.01, 1), (0.4, 5)])
@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_rules_hold_for_any_share_and_limit(strategy, prob, max_predictions):
    ids, lengths = rows(80, seed=7, length=24)
    masked = mask(ids, lengths, strategy, prob, max_predictions)
    for row in range(80):
        check_row(ids, lengths[row], masked, row, prob, max_predictions, strategy)


def words_of(ids, length):
    words = []
    for i in range(length):
        if ids[i] in SPECIAL:
            continue
        if words and words[-1][-1] == i - 1 and CONTINUATION[ids[i]]:
            words[-1].append(i)
        else:
            words.append([i])
    return words


def test_whole_words_are_masked_whole_and_the_budget_is_used():
    ids, lengths = rows(300)
    masked = mask(ids, lengths, "whole_word")
    left = 0
    for row in range(300):
        chosen = set(masked.positions[row][masked.weights[row] > 0])
        words = words_of(ids[row], lengths[row])
        taken = [word for word in words if word[0] in chosen]
        assert set(sum(taken, [])) == chosen
        wanted = min(12, max(1, round(0.15 * lengths[row])))
        rest = [len(word) for word in words if word[0] not in chosen]
        # What is left of the budget holds no word that was passed over.
        assert all(size > wanted - len(chosen) for size in rest)
        left += wanted - len(chosen)
    assert left / 300 < 0.5


@pytest.mark.long
def test_rows_with_nothing_to_mask():
    ids = np.array([[2, 3, 3, 0, 0, 0], [0] * 6], np.int32)
    for strategy in ("token", "whole_word", "span"):
        masked = mask(ids, np.array([3, 0], np.int32), strategy)
        assert not masked.weights.any() and np.array_equal(masked.input_ids, ids)
