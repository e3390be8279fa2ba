"""The masks' distribution, tested statistically, and what must hold in every row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import MASK, SPECIAL, VOCAB

from bert_jax.objectives.masking import MaskingOptions, Vocabulary, mask_tokens
from bert_jax.parallel.sharding import batch_sharding, make_mesh

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


@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_every_row_keeps_the_rules(strategy):
    ids, lengths = rows(200)
    masked = mask(ids, lengths, strategy)
    for row in range(200):
        check_row(ids, lengths[row], masked, row, 0.15, 12, strategy)


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        *({"strategy": strategy} for strategy in ("token", "whole_word", "span", "ngram")),
        *({"count": count, "exclude_special": True} for count in ("fairseq", "electra", "bernoulli")),
        {"smoothing": 0.5},
    ],
)
def test_masks_are_the_same_with_64_bits(fields):
    ids, lengths = rows(8)
    vocabulary = Vocabulary(VOCAB, MASK, SPECIAL, CONTINUATION, counts=np.arange(1, VOCAB + 1))
    options = MaskingOptions(max_predictions=12, **fields)

    def masked():
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(1), row))(np.arange(8, dtype=np.int32))
        return jax.jit(lambda *arrays: mask_tokens(*arrays, vocabulary, options))(keys, ids, lengths)

    expected = masked()
    with jax.enable_x64(True):
        found = masked()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("prob,max_predictions", [(0.9, 80), (0.01, 1), (0.4, 5)])
@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_rules_hold_for_any_share_and_limit(strategy, prob, max_predictions):
    ids, lengths = rows(80, seed=7, length=24)
    masked = mask(ids, lengths, strategy, prob, max_predictions)
    for row in range(80):
        check_row(ids, lengths[row], masked, row, prob, max_predictions, strategy)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_80_10_10(strategy):
    ids, lengths = rows(6000, length=LENGTH)
    masked = mask(ids, lengths, strategy)
    used = masked.weights > 0
    now = np.take_along_axis(masked.input_ids, masked.positions, 1)[used]
    labels = masked.labels[used]
    count = len(labels)
    # A random id is the [MASK]'s or the token's own once in VOCAB times each.
    expected = {"mask": 0.8 + 0.1 / VOCAB, "kept": 0.1 + 0.1 / VOCAB}
    # Spans decide once for several tokens, so their shares vary more.
    slack = 5 * np.sqrt(0.25 / count) * (3 if strategy == "span" else 1)
    assert abs((now == MASK).mean() - expected["mask"]) < slack
    assert abs((now == labels).mean() - expected["kept"]) < slack
    random = now[(now != MASK) & (now != labels)]
    histogram = np.bincount(random, minlength=VOCAB)
    assert histogram[list(SPECIAL)].min() > 0  # random ids come from the whole vocabulary
    assert np.abs(histogram[5:] - histogram[5:].mean()).max() < 7 * np.sqrt(histogram[5:].mean()) * (
        2 if strategy == "span" else 1
    )


@pytest.mark.long
def test_every_candidate_is_equally_likely():
    ids, lengths = rows(1)
    ids, lengths = np.repeat(ids, 20000, 0), np.repeat(lengths, 20000)
    masked = mask(ids, lengths)
    counts = np.zeros(LENGTH)
    np.add.at(counts, masked.positions[masked.weights > 0], 1)
    candidates = (np.arange(LENGTH) < lengths[0]) & ~np.isin(ids[0], SPECIAL)
    assert not counts[~candidates].any()
    share = counts[candidates] / 20000
    expected = round(0.15 * lengths[0]) / candidates.sum()
    assert np.abs(share - expected).max() < 5 * np.sqrt(expected / 20000)


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
def test_spans_are_runs_of_whole_words_of_the_published_lengths():
    ids, lengths = rows(1000, length=128)
    ids[:] = np.where(
        (ids >= 5) & CONTINUATION[ids], ids + 1, ids
    )  # every token a word: a span's words are its tokens
    masked = mask(ids, lengths, "span", prob=0.15, max_predictions=19)
    runs = []
    for row in range(1000):
        positions = masked.positions[row][masked.weights[row] > 0]
        if len(positions):
            runs += [len(run) for run in np.split(positions, np.where(np.diff(positions) > 1)[0] + 1)]
    # Geometric(0.2) cut at 10 has mean 3.8; the last span of a row is cut at the budget, neighbors may
    # touch.
    assert 2.6 < np.mean(runs) < 3.8


@pytest.mark.long
def test_masks_depend_on_the_rows_key_and_tokens_alone():
    ids, lengths = rows(8)
    whole = mask(ids, lengths)
    part = mask(ids[:3], lengths[:3])
    for a, b in zip(whole, part, strict=True):
        assert np.array_equal(a[:3], b)
    assert not np.array_equal(whole.positions, mask(ids, lengths, seed=2).positions)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_masks_are_the_same_on_one_device_and_on_eight(strategy):
    ids, lengths = rows(16)
    options = MaskingOptions(strategy=strategy)
    sharding = batch_sharding(make_mesh())
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(1), row))(np.arange(16))
    function = jax.jit(lambda *a: mask_tokens(*a, VOCABULARY, options))
    one = function(keys, ids, lengths)
    eight = function(*(jax.device_put(x, sharding) for x in (keys, jnp.asarray(ids), jnp.asarray(lengths))))
    assert len(eight.input_ids.sharding.device_set) == 8
    for a, b in zip(one, eight, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.long
def test_rows_with_nothing_to_mask():
    ids = np.array([[2, 3, 3, 0, 0, 0], [0] * 6], np.int32)
    for strategy in ("token", "whole_word", "span"):
        masked = mask(ids, np.array([3, 0], np.int32), strategy)
        assert not masked.weights.any() and np.array_equal(masked.input_ids, ids)
