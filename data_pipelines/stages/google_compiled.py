"""The compiled functions of `google_instances`, with a random number generator that is Python's.

They are in one file, because numba checks only that of the function that it loads for changes since then.
"""

from __future__ import annotations

import numpy as np

from bert_jax.data.google.numba_jit import compiled, helper

# Sizes of the Mersenne Twister; the index of its next word is stored after its words.
_WORDS, _SHIFTED = 624, 397
OUTSIDE, CONTINUATION = 1, 2  # kinds of tokens: [CLS] and [SEP]; WordPieces that continue a word
_REDRAWS = 10


@helper
def _word(twister):
    """Returns the next 32 random bits (Matsumoto and Nishimura 1998)."""
    if twister[_WORDS] >= _WORDS:
        for i in range(_WORDS):
            bits = twister[i] & 0x80000000 | twister[(i + 1) % _WORDS] & 0x7FFFFFFF
            twister[i] = twister[(i + _SHIFTED) % _WORDS] ^ (bits >> 1) ^ (0x9908B0DF * (bits & 1))
        twister[_WORDS] = 0
    word = twister[twister[_WORDS]]
    twister[_WORDS] += 1
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return word ^ word >> 18


@helper
def _uniform(twister):
    """Returns what `random.Random.random()` returns."""
    high = _word(twister) >> 5
    return (high * 67108864.0 + (_word(twister) >> 6)) / 9007199254740992.0


@helper
def _below(twister, end):
    """Returns what `random.Random.randrange(end)` returns."""
    bits = 0
    while end >> bits:
        bits += 1
    drawn = _word(twister) >> (32 - bits)
    while drawn >= end:
        drawn = _word(twister) >> (32 - bits)
    return drawn


@helper
def _shuffle(twister, values, count):
    """Shuffles values[:count] in place as `random.Random.shuffle` does."""
    for i in range(count - 1, 0, -1):
        j = _below(twister, i + 1)
        values[i], values[j] = values[j], values[i]


@compiled("void(int64[::1], int64[::1])")
def shuffle_all(twister, values):
    """Shuffles an array in place as `random.Random.shuffle` does."""
    _shuffle(twister, values, len(values))


@helper
def _find_words(ids, size, kinds, whole_words, in_grams, places, starts, stretches):
    """Finds the units that are masked together ("words"): tokens or whole words.

    A continuation piece whose word was cut off at its beginning belongs to the previous word, even if a [SEP]
    is between them. With n-grams, it is a word of its own.

    Args:
        ids: the token ids of a row.
        size: the number of tokens in the row.
        kinds: the kind of each token of the vocabulary.
        whole_words: whether to mask whole words (without n-grams).
        in_grams: whether to find the words of n-grams.
        places: filled with the positions of all tokens except [CLS] and [SEP].
        starts: filled with the index in `places` at which each word starts, and the last one ends.
        stretches: filled with the number of [CLS] and [SEP] before each word.

    Returns:
        The number of words.
    """
    words = tokens = stretch = 0
    for position in range(size):
        kind = kinds[ids[position]]
        if kind == OUTSIDE:
            stretch += 1
            continue
        joined = stretches[words - 1] == stretch if in_grams else whole_words
        if not (kind == CONTINUATION and words and joined):
            starts[words], stretches[words] = tokens, stretch
            words += 1
        places[tokens] = position
        tokens += 1
    starts[words] = tokens
    return words


@helper
def _choose_words(twister, words, starts, wanted, firsts, ends):
    """Chooses words in random order until there are `wanted` tokens; words that would exceed it are skipped.

    Args:
        twister: the random number generator.
        words: the number of words.
        starts: as `_find_words` fills it.
        wanted: the number of tokens to mask.
        firsts: filled with each chosen word.
        ends: filled with the word after each chosen one.

    Returns:
        The number of chosen words.
    """
    for word in range(words):
        firsts[word] = word
    _shuffle(twister, firsts, words)
    count = taken = 0
    for i in range(words):
        if taken >= wanted:
            break
        word = firsts[i]
        size = starts[word + 1] - starts[word]
        if taken + size <= wanted:
            firsts[count], ends[count] = word, word + 1
            count += 1
            taken += size
    return count


@helper
def _choose_grams(twister, words, starts, stretches, wanted, weights, firsts, ends):
    """Chooses n-grams of words that do not overlap or cross a [SEP]; otherwise as `_choose_words`."""
    most = min(len(weights), words)
    grams = np.empty((most, words), np.int64)  # grams[n]: the first words of the (n + 1)-grams
    left = np.zeros(len(weights), np.int64)
    used = np.zeros(words, np.int64)
    total = count = taken = 0
    for n in range(most):
        for word in range(words - n):
            if stretches[word] == stretches[word + n]:
                grams[n, left[n]] = word
                left[n] += 1
        _shuffle(twister, grams[n], left[n])
        total += left[n]
    while taken < wanted and total:
        n, point = 0, _uniform(twister) * weights[-1]  # as random.Random.choices(sizes, weights)
        while n < len(weights) - 1 and weights[n] <= point:
            n += 1
        if taken + n + 1 > wanted:
            total -= left[n]
            left[n] = 0
        elif left[n]:
            total -= 1
            left[n] -= 1
            word = grams[n, left[n]]
            end = word + n + 1
            size = starts[end] - starts[word]
            free = taken + size <= wanted
            for i in range(word, end):
                free = free and not used[i]
            if free:
                for i in range(word, end):
                    used[i] = 1
                firsts[count], ends[count] = word, end
                count += 1
                taken += size
    return count


@helper
def _draw_replacement(twister):
    """Draws the replacement of a token: 0 for [MASK] (80%), 1 for the token itself (10%), 2 for any (10%)."""
    if _uniform(twister) < 0.8:
        return 0
    return 1 if _uniform(twister) < 0.5 else 2


@helper
def _next_segments(twister, place, sentences, documents, budget, short_seq_prob):
    """Draws the segments of the next instance, and moves `place` behind those that it uses.

    Collects sentences up to the target length. The first ones are A; B is the rest, or sentences of another
    document.

    Args:
        twister: the random number generator.
        place: as of `make`.
        sentences: as of `make`.
        documents: as of `make`.
        budget: the number of tokens of A and B in a full row.
        short_seq_prob: the probability of a shorter target length.

    Returns:
        The ranges of the tokens of A and of B (its begin and its end each), and whether B is random.
    """
    document, start = place[1], place[2]
    last_sentence = documents[document + 1]
    if start < 0:
        start, place[3] = documents[document], budget
        if _uniform(twister) < short_seq_prob:
            place[3] = 2 + _below(twister, budget - 1)
    target = place[3]
    stop = start
    while stop < last_sentence and sentences[stop] - sentences[start] < target:
        stop += 1
    split = start + 1
    if stop - start > 1:
        split += _below(twister, stop - start - 1)
    a_low, a_high = sentences[start], sentences[split]
    random_next = stop - start == 1 or _uniform(twister) < 0.5
    if random_next:
        missing = target - (a_high - a_low)
        b_low, b_high = _random_segment(twister, sentences, documents, document, missing)
        start = split
    else:
        b_low, b_high = a_high, sentences[stop]
        start = stop
    place[2] = start
    if start == last_sentence:
        place[1], place[2] = document + 1, -1
        if place[1] == len(documents) - 1:
            place[0], place[1] = place[0] + 1, 0
    return a_low, a_high, b_low, b_high, random_next


@helper
def _random_segment(twister, sentences, documents, document, missing):
    """Draws a range of at least `missing` tokens of another document, or all from a sentence to its end."""
    other = document
    for _ in range(_REDRAWS):
        other = _below(twister, len(documents) - 1)
        if other != document:
            break
    first = documents[other] + _below(twister, documents[other + 1] - documents[other])
    last = first + 1
    while last < documents[other + 1] and sentences[last] - sentences[first] < missing:
        last += 1
    return sentences[first], sentences[last]


@helper
def _truncate(twister, a_low, a_high, b_low, b_high, budget):
    """Truncates the longer of A and B, one token at a time, at its front or its back.

    Args:
        twister: the random number generator.
        a_low: the begin of the range of A.
        a_high: its end.
        b_low: the begin of the range of B.
        b_high: its end.
        budget: the number of tokens that A and B may have together.

    Returns:
        The ranges, of which A and B have at least one token each.
    """
    for _ in range(a_high - a_low + b_high - b_low - budget):
        front = _uniform(twister) < 0.5
        if a_high - a_low > b_high - b_low:
            a_low, a_high = a_low + front, a_high - (not front)
        else:
            b_low, b_high = b_low + front, b_high - (not front)
    return a_low, a_high, b_low, b_high


@helper
def _mask(
    twister, ids, firsts, ends, groups, starts, places, mask, kinds, in_grams, positions, labels, hidden
):
    """Replaces the tokens of the chosen words in a row.

    Args:
        twister: the random number generator.
        ids: the token ids of the row, changed in place.
        firsts: the first word of each chosen word or n-gram.
        ends: the word after each.
        groups: the number of chosen words or n-grams.
        starts: as `_find_words` fills it.
        places: as `_find_words` fills it.
        mask: the id of [MASK].
        kinds: the kind of each token of the vocabulary.
        in_grams: whether all tokens of a group get the same replacement.
        positions: filled with the positions of the replaced tokens, ascending.
        labels: filled with the ids that they had.
        hidden: zeros by position, and again zeros at the end.

    Returns:
        The number of replaced tokens.
    """
    for group in range(groups):
        low, high = starts[firsts[group]], starts[ends[group]]
        replacement = 0
        for i in range(low, high):
            if i == low or not in_grams:
                replacement = _draw_replacement(twister)
            position = places[i]
            hidden[position] = 1 + ids[position]
            if replacement == 0:
                ids[position] = mask
            elif replacement == 2:
                ids[position] = _below(twister, len(kinds))
    count = 0
    for position in range(len(hidden)):
        if hidden[position]:
            positions[count], labels[count] = position, hidden[position] - 1
            hidden[position] = 0
            count += 1
    return count


@compiled(
    "int64(int64[::1], int64[::1], int32[::1], int64[::1], int64[::1], uint8[::1], int64[::1], float64[::1], "
    "int32[::1], int32[::1], int32[::1], int64, float64, int64, boolean, int32[:,::1], int32[::1], "
    "int32[::1], int32[:,::1], int32[:,::1], int32[::1], int32[::1])"
)
def make(
    twister, place, tokens, sentences, documents, kinds, wanted, weights, before, between, end, mask,
    short_seq_prob, passes, whole_words, ids, lengths, first_lengths, positions, labels, predictions,
    next_sentence_labels,
):  # fmt: skip
    """Makes instances until the rows are full or all instances are made; returns the number of instances.

    Args:
        twister: int64 [625], the random number generator, changed in place.
        place: int64 [4], the progress, changed in place: the pass, the document, its next sentence (-1 for
            its first one), and the target length of the document.
        tokens: the ids of all tokens.
        sentences: the index in `tokens` at which each sentence begins, and the last one ends.
        documents: the index in `sentences` at which each document begins, and the last one ends.
        kinds: the kind of each token of the vocabulary.
        wanted: the number of tokens to mask, by the length of the sequence.
        weights: the cumulative weights of the n-gram sizes; empty for no n-grams.
        before: the special tokens before A.
        between: those between A and B.
        end: those after B.
        mask: the id of [MASK].
        short_seq_prob: the probability of a shorter target length.
        passes: the number of passes over the documents.
        whole_words: whether to mask whole words.
        ids: the first output array; the output arrays are those of `google.Rows`, changed in place. It must
            be zero.
        lengths: an output array.
        first_lengths: an output array.
        positions: an output array, which must be zero.
        labels: an output array, which must be zero.
        predictions: an output array.
        next_sentence_labels: an output array.
    """
    length = ids.shape[1]
    budget = length - len(before) - len(between) - len(end)
    places, starts, stretches, firsts, ends, hidden = np.zeros((6, length), np.int64)
    row = 0
    while row < len(ids) and place[0] < passes:
        a_low, a_high, b_low, b_high, random_next = _next_segments(
            twister, place, sentences, documents, budget, short_seq_prob
        )
        a_low, a_high, b_low, b_high = _truncate(twister, a_low, a_high, b_low, b_high, budget)
        first_length = len(before) + a_high - a_low + len(between)
        size = first_length + b_high - b_low + len(end)
        ids[row, : len(before)] = before
        ids[row, len(before) : first_length - len(between)] = tokens[a_low:a_high]
        ids[row, first_length - len(between) : first_length] = between
        ids[row, first_length : size - len(end)] = tokens[b_low:b_high]
        ids[row, size - len(end) : size] = end

        words = _find_words(ids[row], size, kinds, whole_words, len(weights), places, starts, stretches)
        if len(weights):
            groups = _choose_grams(twister, words, starts, stretches, wanted[size], weights, firsts, ends)
        else:
            groups = _choose_words(twister, words, starts, wanted[size], firsts, ends)
        predictions[row] = _mask(
            twister, ids[row], firsts, ends, groups, starts, places, mask, kinds, len(weights),
            positions[row], labels[row], hidden,
        )  # fmt: skip
        lengths[row], first_lengths[row] = size, first_length
        next_sentence_labels[row] = random_next
        row += 1
    return row
