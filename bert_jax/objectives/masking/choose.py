"""The choice of the tokens to predict in one row: tokens, words, spans or n-grams of words.

Each function maps scores (uint32 [L]), candidates (bool [L], the tokens that may be chosen) and the number of
tokens wanted (int32) to the chosen tokens. Those of words also take the continuation pieces (bool [L]) and
the tokens that are apart (bool [L]): they belong to no word, and spans and n-grams end before them. Those of
several words take uniform numbers (float32 [L]), one for each possible start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from etils import epy

with epy.lazy_imports():  # the options are read before jax may be imported
    import jax
    import jax.numpy as jnp

# SpanBERT: span lengths in words ~ Geometric(0.2), at most 10.
_SPAN_CONTINUE = 0.8
_SPAN_MAX_WORDS = 10

# ALBERT: n-grams of n words with a probability in proportion to 1/n: 6/11, 3/11 and 2/11.
_NGRAM_MAX_WORDS = 3


class Choice(NamedTuple):
    """The chosen tokens of a row.

    Attributes:
        selected: bool [L].
        group: int32 [L], tokens with the same number share one draw of the replacement; None if each token
            has a draw of its own.
    """

    selected: jax.Array
    group: jax.Array | None = None


class Strategy(NamedTuple):
    """A way to choose tokens.

    Attributes:
        choose: a function described in the module's docstring.
        words: whether the function takes the continuation pieces, and the tokens that are apart.
        lengths: whether it takes uniform numbers.
    """

    choose: Callable[..., Choice]
    words: bool = True
    lengths: bool = False


def _by_score(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns the positions [L] in random order, allowed positions first."""
    return jnp.argsort(jnp.where(allowed, scores >> 1, jnp.uint32(0xFFFFFFFF)), stable=True)


def _tokens(scores, candidate, wanted):
    """Chooses `wanted` candidates; if the scores are uniform, every subset of that size is equally likely."""
    rank = jnp.argsort(_by_score(scores, candidate))
    return Choice(candidate & (rank < wanted))


def _word_starts(candidate, continuation, apart):
    """Returns bool [L] first pieces of words, and int32 [L] the position of the first piece of each word.

    A candidate that is apart counts as a word of its own.
    """
    length = candidate.shape[0]
    follows = continuation & ~apart & jnp.concatenate([jnp.zeros(1, bool), ~apart[:-1]])
    starts = candidate & ~follows
    return starts, jax.lax.cummax(jnp.where(starts | ~candidate, jnp.arange(length), 0))


def _words(scores, candidate, continuation, apart, wanted):
    """Chooses whole words in random order.

    A word that would exceed the budget is skipped, and a shorter one may follow it.
    """
    starts, first = _word_starts(candidate, continuation, apart)
    sizes = jnp.zeros(candidate.shape[0], jnp.int32).at[first].add(candidate.astype(jnp.int32))

    def take(used, position):
        fits = starts[position] & (used + sizes[position] <= wanted)
        return used + jnp.where(fits, sizes[position], 0), fits

    order = _by_score(scores, starts)
    _, fits = jax.lax.scan(take, jnp.int32(0), order)
    chosen = jnp.zeros_like(candidate).at[order].set(fits)
    return Choice(candidate & chosen[first])


def _spans(scores, uniforms, candidate, continuation, apart, wanted):
    """Chooses spans of whole words from random starts (SpanBERT, Joshi et al. 2020, section 3.1).

    The last span is cut at the budget. The tokens of a span have its start as their group.
    """
    length = candidate.shape[0]
    starts, _ = _word_starts(candidate, continuation, apart)
    word = jnp.cumsum(starts)
    # One that is apart is a passage of its own.
    passage = 2 * jnp.cumsum(apart, dtype=jnp.int32) - apart.astype(jnp.int32)
    order = _by_score(scores, starts)
    cumulative = 1 - _SPAN_CONTINUE ** np.arange(1, _SPAN_MAX_WORDS + 1)
    words = 1 + jnp.searchsorted(jnp.asarray(cumulative / cumulative[-1], jnp.float32), uniforms)

    def take(carry, position):
        selected, group, used = carry
        inside = (
            candidate
            & (word >= word[position])
            & (word < word[position] + words[position])
            & (passage == passage[position])
            & ~selected
            & starts[position]
            & ~selected[position]
        )
        inside &= used + jnp.cumsum(inside) <= wanted
        used += jnp.sum(inside, dtype=jnp.int32)
        return (selected | inside, jnp.where(inside, position, group), used), None

    carry = (jnp.zeros_like(candidate), jnp.arange(length), jnp.int32(0))
    (selected, group, _), _ = jax.lax.scan(take, carry, order)
    return Choice(selected, group)


def _ngrams(scores, uniforms, candidate, continuation, apart, wanted):
    """Chooses n-grams of whole words from random starts (google-research/albert).

    An n-gram has n words with a probability in proportion to 1/n, of at most 3 words and of those that are
    left until the next [SEP]. One that exceeds the budget is shortened until it fits; one that does not fit
    at any length, or has a word that is chosen already, is skipped.
    """
    length = candidate.shape[0]
    place = jnp.arange(length)
    starts, _ = _word_starts(candidate, continuation, apart)
    # The first position after each one where a word starts or no word can be; `length` behind the last one.
    boundary = jnp.append(jnp.where(starts | ~candidate, place, length), length)
    after = jax.lax.cummin(boundary, reverse=True)[1:]
    starts_or_end = jnp.append(starts & ~apart, False)
    ends = [after]
    for _ in range(_NGRAM_MAX_WORDS - 1):
        more = starts_or_end[ends[-1]] & ~apart
        ends.append(jnp.where(more, jnp.append(after, length)[ends[-1]], ends[-1]))
    sizes = jnp.stack(ends) - place  # [n, L], the tokens of the n-gram that starts at each position
    available = 1 + jnp.sum(jnp.diff(sizes, axis=0) > 0, axis=0)
    totals = jnp.asarray(np.cumsum(1 / np.arange(1, _NGRAM_MAX_WORDS + 1)), jnp.float32)
    words = 1 + jnp.sum(totals[:-1, None] <= uniforms * totals[available - 1], axis=0)
    words = jnp.minimum(words, available)
    numbers = jnp.arange(1, _NGRAM_MAX_WORDS + 1)

    def take(carry, position):
        selected, used = carry
        fits = (numbers <= words[position]) & (used + sizes[:, position] <= wanted)
        size = jnp.max(jnp.where(fits, sizes[:, position], 0))
        inside = (place >= position) & (place < position + size)
        inside &= starts[position] & ~jnp.any(inside & selected)
        return (selected | inside, used + jnp.sum(inside, dtype=jnp.int32)), None

    order = _by_score(scores, starts)
    (selected, _), _ = jax.lax.scan(take, (jnp.zeros_like(candidate), jnp.int32(0)), order)
    return Choice(selected)


STRATEGIES: dict[str, Strategy] = {
    "token": Strategy(_tokens, words=False),
    "whole_word": Strategy(_words),
    "span": Strategy(_spans, lengths=True),
    "ngram": Strategy(_ngrams, lengths=True),
}
