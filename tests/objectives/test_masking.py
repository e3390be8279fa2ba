"""Selection, rate and replacement of masked tokens agree with their definitions, by row and on average."""

import functools
import itertools
import types

import jax
import numpy as np
import pytest
from scipy import stats
from support.models import MASK, SPECIAL, VOCAB

from bert_jax.objectives.masking import (
    STRATEGIES,
    MaskingOptions,
    Vocabulary,
    default_max_predictions,
    mask_tokens,
)

CONTINUATION = np.arange(VOCAB) % 3 == 0
CONTINUATION[[*SPECIAL, 1, MASK]] = False
VOCABULARY = Vocabulary(VOCAB, MASK, SPECIAL, CONTINUATION, (1, MASK))


@functools.cache
def program(options, vocabulary):
    return jax.jit(lambda *arrays: mask_tokens(*arrays, vocabulary, options))


def mask(ids, options, lengths=None, vocabulary=VOCABULARY):
    ids = np.asarray(ids, np.int32)
    lengths = np.full(len(ids), ids.shape[1], np.int32) if lengths is None else lengths
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(1), row))(np.arange(len(ids)))
    return jax.tree.map(np.asarray, program(options, vocabulary)(keys, ids, lengths))


def chosen(masked):
    """Returns the chosen positions of each row."""
    return [
        tuple(positions[weights > 0].tolist())
        for positions, weights in zip(masked.positions, masked.weights, strict=True)
    ]


def words_of(ids):
    """Returns the token positions of each word of a row, and the number of its passage."""
    words, passage = [], 0
    for place, token in enumerate(ids):
        if token in SPECIAL:
            passage += 1
        elif words and words[-1][0][-1] == place - 1 and CONTINUATION[token]:
            words[-1][0].append(place)
        else:
            words.append(([place], passage))
    return words


def rows(count, length, seed=0):
    """Returns rows of [CLS] a [SEP] b [SEP] and padding, of various lengths."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB, (count, length)).astype(np.int32)
    lengths = rng.integers(4, length + 1, count).astype(np.int32)
    ids[:, 0] = 2
    ids[np.arange(count), lengths // 2] = 3
    ids[np.arange(count), lengths - 1] = 3
    ids[np.arange(length) >= lengths[:, None]] = 0
    return ids, lengths


@pytest.mark.parametrize("prob, most", [(0.9, 80), (0.01, 1), (0.4, 5)])
@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_rules_hold_for_any_share_and_limit(strategy, prob, most):
    ids, lengths = rows(80, 24, seed=7)
    masked = mask(ids, MaskingOptions(prob, strategy, most), lengths)
    for row, length in enumerate(lengths):
        used = masked.weights[row] > 0
        positions = masked.positions[row][used]
        candidates = np.flatnonzero(~np.isin(ids[row, :length], SPECIAL))
        wanted = min(most, max(1, round(length * prob)), len(candidates))
        assert used.sum() == wanted if strategy == "token" else used.sum() <= wanted
        assert set(positions) <= set(candidates) and not used[len(positions) :].any()
        assert np.all(np.diff(positions) > 0)
        assert np.array_equal(masked.labels[row][used], ids[row, positions])
        untouched = np.setdiff1d(np.arange(ids.shape[1]), positions)
        assert np.array_equal(masked.input_ids[row, untouched], ids[row, untouched])


def test_whole_words_are_masked_whole_and_the_budget_is_used():
    ids, lengths = rows(300, 64)
    masked = mask(ids, MaskingOptions(strategy="whole_word", max_predictions=12), lengths)
    left = 0
    for row, places in enumerate(map(set, chosen(masked))):
        words = [word for word, _ in words_of(ids[row, : lengths[row]])]
        assert set(sum((word for word in words if word[0] in places), [])) == places
        rest = min(12, max(1, round(0.15 * lengths[row]))) - len(places)
        # What is left of the budget holds no word that was passed over.
        assert all(len(word) > rest for word in words if word[0] not in places)
        left += rest
    assert left / 300 < 0.5


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_rows_with_nothing_to_mask(strategy):
    ids = np.array([[2, 3, 3, 0, 0, 0], [0] * 6], np.int32)
    masked = mask(ids, MaskingOptions(strategy=strategy), np.array([3, 0], np.int32))
    assert not masked.weights.any() and np.array_equal(masked.input_ids, ids)


def chi_square(counts, shares):
    """Returns the p-value of counts: the probability of at least this distance from the expectation."""
    assert len(counts) == len(shares)
    return stats.chisquare(counts, np.asarray(shares) * sum(counts)).pvalue


def test_every_set_of_tokens_is_equally_likely():
    rows, ids = 20_000, [2, 7, 8, 10, 3, 11, 13, 3]
    masked = mask([ids] * rows, MaskingOptions(prob=0.3))  # round(2.4) = 2 of 5 candidates
    sets, counts = np.unique(chosen(masked), axis=0, return_counts=True)
    assert [tuple(each) for each in sets] == list(itertools.combinations((1, 2, 3, 5, 6), 2))
    assert chi_square(counts, [1 / 10] * 10) > 1e-3


def test_smoothed_choice_is_that_of_successive_draws():
    counts = np.zeros(VOCAB)
    counts[[7, 8, 10, 11]] = 1000, 100, 10, 0  # a token without a count is treated as if it occurs once
    weights = np.array([1000.0, 100, 10, 1]) ** -0.7
    vocabulary = Vocabulary(VOCAB, MASK, SPECIAL, CONTINUATION, (1, MASK), counts)
    ids = [2, 7, 8, 10, 11, 3]
    masked = mask([ids] * 20_000, MaskingOptions(prob=0.33, smoothing=0.7), vocabulary=vocabulary)
    sets, found = np.unique(chosen(masked), axis=0, return_counts=True)
    shares = {}
    for first, second in itertools.permutations(range(4), 2):
        share = weights[first] / weights.sum() * weights[second] / (weights.sum() - weights[first])
        key = tuple(sorted((first + 1, second + 1)))
        shares[key] = shares.get(key, 0) + share
    assert set(map(tuple, sets)) == set(shares)
    assert chi_square(found, [shares[tuple(each)] for each in sets]) > 1e-3


def choose_ngrams(ids, uniforms, scores, wanted):
    """Selects n-grams like google-research/albert, word by word, with given order and uniform numbers."""
    words = words_of(ids)
    heads = {word[0]: number for number, (word, _) in enumerate(words)}
    taken = []
    for place in sorted(heads, key=lambda place: (scores[place] >> 1, place)):
        number = heads[place]
        rest = [word for word, passage in words[number : number + 3] if passage == words[number][1]]
        totals = np.cumsum(1 / np.arange(1, len(rest) + 1))
        n = 1 + int(np.sum(totals[:-1] <= uniforms[place] * totals[-1]))
        while n and len(taken) + sum(map(len, rest[:n])) > wanted:
            n -= 1
        places = sum(rest[:n], [])
        if n and not set(places) & set(taken):
            taken += places
    return sorted(taken)


@pytest.mark.parametrize("wanted", [1, 2, 5, 9, 40])
def test_ngrams_are_those_of_the_algorithm_word_by_word(wanted):
    rng = np.random.default_rng(wanted)
    rows, length = 200, 40
    ids = rng.integers(5, VOCAB, (rows, length))
    ids[:, [0, -1]] = 2, 3
    ids[np.arange(rows), rng.integers(1, length, rows)] = 3
    candidate = ~np.isin(ids, SPECIAL)
    uniforms = rng.random((rows, length)).astype(np.float32)
    scores = rng.integers(0, 2**32, (rows, length), dtype=np.uint32)
    choose = jax.jit(jax.vmap(STRATEGIES["ngram"].choose, (0, 0, 0, 0, 0, None)))
    continuation = CONTINUATION[ids] & candidate
    selected = np.asarray(choose(scores, uniforms, candidate, continuation, ~candidate, wanted)[0])
    lengths = []
    for row in range(rows):
        assert np.flatnonzero(selected[row]).tolist() == choose_ngrams(
            ids[row], uniforms[row], scores[row], wanted
        )
        lengths.append(selected[row].sum())
    assert max(lengths) <= wanted


@pytest.mark.parametrize(
    "strategy, shares",
    [
        ("token", (0.8, 0, 0.2)),
        ("token", (0.8, 0.2, 0)),
        ("ngram", (0, 0.2, 0.8)),
        ("span", (0.1, 0.6, 0.3)),
    ],
)
def test_shares_of_replacements(strategy, shares):
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCAB, (2000, 32))
    ids[:, [0, -1]] = 2, 3
    masked = mask(ids, MaskingOptions(strategy=strategy, replace=shares, prob=0.3, max_predictions=12))
    used = masked.weights > 0
    now = np.take_along_axis(masked.input_ids, masked.positions, 1)[used]
    before = masked.labels[used]
    # A random token is [MASK] or the original token with probability 1 / VOCAB each.
    random = shares[1] / VOCAB
    expected = (shares[0] + random, shares[1] - 2 * random, shares[2] + random)
    found = (now == MASK).mean(), ((now != MASK) & (now != before)).mean(), (now == before).mean()
    # A span samples one replacement type for all its tokens: at most 10 words of 1.5 tokens on average.
    draws = len(now) / (8 if strategy == "span" else 1)
    for share, wanted in zip(found, expected, strict=True):
        assert abs(share - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / draws), (found, expected)
        assert wanted or share == 0


def test_random_tokens_without_special_ones():
    ids = np.full((6000, 32), 7)
    options = MaskingOptions(replace=(0, 1, 0), prob=0.5, max_predictions=16, exclude_special=True)
    counts = np.bincount(mask(ids, options).input_ids.ravel(), minlength=VOCAB)
    assert not counts[[0, 1, 2, 3]].any() and counts[MASK] > 0  # padding, [UNK], [CLS] and [SEP]
    others = np.delete(counts, [0, 1, 2, 3, 7])
    assert chi_square(others, [1 / len(others)] * len(others)) > 1e-3


@pytest.mark.parametrize(
    "which, never", [("layout", {0, 2, 3}), ("special", {0, 1, 2, 3, MASK}), ("none", set())]
)
def test_tokens_that_are_never_chosen(which, never):
    ids = np.tile([2, 1, MASK, 7, 3, 8, 0, 3], (200, 1))  # a padding token within the row is a special token
    options = MaskingOptions(prob=0.9, never_chosen=which)
    found = set(ids[0][list(set(sum(chosen(mask(ids, options)), ())))])
    assert found == set(ids[0]) - never


def test_words_end_at_special_tokens_that_may_be_chosen():
    """Words end at special tokens, although in byte-level BPE the first token of a text continues a word."""
    ids = np.tile([2, 9, 12, 7, 3, 3, 12, 8, 3], (2000, 1))  # 9 and 12 are continuation tokens
    options = MaskingOptions(prob=0.4, strategy="whole_word", never_chosen="none")
    words = [{0}, {1, 2}, {3}, {4}, {5}, {6}, {7}, {8}]
    found = [set(each) for each in set(chosen(mask(ids, options)))]
    assert all(word <= each or not word & each for word in words for each in found)
    assert set.union(*found) == set(range(9))


def test_words_of_sentence_piece_are_those_of_albert():
    special = ["<pad>", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, "\u2581the", "ing", "'s", ",", "\u4e2d\u6587", "caf\u00e9", "<x>"]

    def vocabulary(word_start):
        tokenizer = types.SimpleNamespace(
            tokens=pieces,
            is_continuation=np.arange(len(pieces)) > 4,
            word_start=word_start,
            vocab_size=len(pieces),
            pad_id=0,
            mask_id=3,
            special_ids={"pad": 0, "cls": 1, "sep": 2, "mask": 3},
            layout=types.SimpleNamespace(special_ids=(1, 2)),
        )
        return Vocabulary.from_tokenizer(tokenizer)

    def continuing(word_start):
        flags = vocabulary(word_start).is_continuation
        return [token for token, flag in zip(pieces, flags, strict=True) if flag]

    assert continuing("\u2581") == ["ing", "'s"]
    assert continuing("\u0120") == pieces[5:]
    found = vocabulary("\u2581")
    assert (found.special_ids, found.other_special_ids) == ((0, 1, 2), (3,))


def test_counts_of_google_and_electra():
    ids = np.full((512, 512), 7)
    lengths = np.arange(1, 513, dtype=np.int32)
    for name, most in (("google", 80), ("electra", 79)):
        options = MaskingOptions(count=name, max_predictions=default_max_predictions(512, 0.15, name))
        assert options.max_predictions == most
        found = mask(ids, options, lengths).weights.sum(axis=1)
        if name == "google":
            rounded = [round(n * 0.15) for n in lengths.tolist()]
        else:
            rounded = np.round(lengths.astype(np.float32) * np.float32(0.15))
        np.testing.assert_array_equal(found, np.clip(rounded, 1, most))
    # ELECTRA's table: 19 of 128, 79 of 512, 130 of 512 with 25%.
    sizes = [default_max_predictions(n, p, "electra") for n, p in ((128, 0.15), (512, 0.15), (512, 0.25))]
    assert sizes == [19, 79, 130]


@pytest.mark.long
def test_counts_of_fairseq():
    """floor(0.15 x 30 + U) is 4 or 5 with equal probability; 0.125 x 40 = 5 is always 5."""
    counts = mask(np.full((20_000, 30), 7), MaskingOptions(count="fairseq")).weights.sum(axis=1)
    assert set(counts) == {4, 5} and chi_square(np.bincount(counts.astype(int))[4:], [0.5, 0.5]) > 1e-3
    counts = mask(np.full((2000, 40), 7), MaskingOptions(count="fairseq", prob=0.125)).weights.sum(axis=1)
    assert set(counts) == {5}


def test_counts_of_independent_choices():
    """Special tokens are never chosen, counts are binomial, and subsets of equal size are equally likely."""
    ids = [2, *range(5, 13), 3]
    masked = mask([ids] * 20_000, MaskingOptions(count="bernoulli", prob=0.25, max_predictions=8))
    counts = np.bincount(masked.weights.sum(axis=1).astype(int), minlength=9)
    shares = stats.binom.pmf(range(9), 8, 0.25)
    assert chi_square([*counts[:6], counts[6:].sum()], [*shares[:6], shares[6:].sum()]) > 1e-3
    each = np.bincount(masked.positions[masked.weights > 0], minlength=10)[1:9]
    assert np.abs(each / 20_000 - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 20_000)
    assert default_max_predictions(128, 0.15, "bernoulli") == 36  # 19.2 + 4 x 4.04, in multiples of 4
    assert default_max_predictions(8, 0.5, "bernoulli") == 8
