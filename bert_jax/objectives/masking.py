"""Masking for masked LM, as a pure function of (key, tokens) that runs on the device.

The rules are the paper's (section 3.1, appendix A.1) as google-research/bert applies them to static records:
round(15%) of a row's tokens are selected, never [CLS], [SEP] or padding. Of these, 80% become [MASK], 10%
become a random token of the whole vocabulary and 10% stay unchanged. Whole words and spans (SpanBERT, Joshi
et al. 2020, section 3.1) are options.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError

STRATEGIES = ("token", "whole_word", "span")

# SpanBERT: span lengths in words ~ Geometric(0.2), at most 10.
_SPAN_CONTINUE = 0.8
_SPAN_MAX_WORDS = 10


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """How many tokens to predict and how they are chosen.

    `max_predictions` is P, the static number of predictions of every row.
    """

    prob: float = 0.15
    strategy: str = "token"
    max_predictions: int = 20

    def __post_init__(self):
        if self.strategy not in STRATEGIES:
            raise UserError(
                f"masking.strategy={self.strategy!r} is unknown; choose one of {', '.join(STRATEGIES)}"
            )
        if not 0 < self.prob < 1:
            raise UserError(f"masking.prob={self.prob} must be between 0 and 1")
        if self.max_predictions < 1:
            raise UserError(f"masking.max_predictions={self.max_predictions} must be at least 1")


def default_max_predictions(length: int, prob: float) -> int:
    """Returns the fraction `prob` of a full row, rounded up to a multiple of 4.

    For 15% it is 20 at 128 tokens and 80 at 512, as is customary.
    """
    return max(4, -(-int(np.ceil(prob * length)) // 4) * 4)


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The properties of a vocabulary that masking needs.

    `is_continuation` is bool [V], true where a word piece continues a word.
    """

    size: int
    mask_id: int
    special_ids: tuple[int, ...]  # never selected: [CLS], [SEP], [PAD]
    is_continuation: np.ndarray | None = None

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """Returns the properties of a `bert_jax.tokenization.Tokenizer` that masking needs."""
        special_ids = (tokenizer.pad_id, *tokenizer.layout.special_ids)
        return cls(tokenizer.vocab_size, tokenizer.mask_id, special_ids, tokenizer.is_continuation)


class Masked(NamedTuple):
    """Masked rows.

    `input_ids` are int32 [B, L]; `positions` and `labels` int32 and `weights` float32 [B, P], ordered by
    position, with unused entries last.
    """

    input_ids: jax.Array
    positions: jax.Array
    labels: jax.Array
    weights: jax.Array


def mask_tokens(
    keys: jax.Array, input_ids: jax.Array, lengths: jax.Array, vocabulary: Vocabulary, options: MaskingOptions
) -> Masked:
    """Selects the tokens to predict and replaces them.

    Args:
        keys: typed PRNG keys [B], one per row; the masks of a row depend only on its key and its tokens.
        input_ids: int32 [B, L].
        lengths: int32 [B], number of real tokens of each row, including [CLS] and [SEP]; the rest is padding.
        vocabulary: special ids and, for whole words and spans, the continuation pieces.
        options: fraction, strategy and static number of predictions.
    """
    if options.strategy != "token" and vocabulary.is_continuation is None:
        raise ValueError(f"masking.strategy={options.strategy} needs the vocabulary's continuation pieces")
    length = input_ids.shape[1]
    candidate = jnp.arange(length) < lengths[:, None]
    for special in vocabulary.special_ids:
        candidate &= input_ids != special
    # Counts use Python's float64 round, as the reference does: float32 would differ at halves.
    counts = np.array(
        [min(options.max_predictions, max(1, round(n * options.prob))) for n in range(length + 1)], np.int32
    )
    wanted = jnp.asarray(counts)[lengths]

    def draw(stream, sample):
        return jax.vmap(lambda key: sample(jax.random.fold_in(key, stream), (length,)))(keys)

    scores = draw(0, jax.random.bits)
    group = None
    if options.strategy == "token":
        selected = jax.vmap(_choose_tokens)(scores, candidate, wanted)
    else:
        continuation = jnp.asarray(vocabulary.is_continuation)[input_ids] & candidate
        if options.strategy == "whole_word":
            selected = jax.vmap(_choose_words)(scores, candidate, continuation, wanted)
        else:
            selected, group = jax.vmap(_choose_spans)(
                scores, draw(3, jax.random.uniform), candidate, continuation, wanted
            )

    draws = draw(1, jax.random.uniform)
    if group is not None:
        draws = jnp.take_along_axis(draws, group, axis=1)
    random_ids = draw(2, lambda key, shape: jax.random.randint(key, shape, 0, vocabulary.size, jnp.int32))
    replaced = jnp.where(draws < 0.8, vocabulary.mask_id, jnp.where(draws < 0.9, random_ids, input_ids))

    slots = options.max_predictions
    index = jnp.where(selected, jnp.arange(length), length)
    positions = jax.lax.sort(index, dimension=1)[:, :slots]
    if length < slots:
        positions = jnp.pad(positions, ((0, 0), (0, slots - length)), constant_values=length)
    used = positions < length
    positions = jnp.where(used, positions, 0).astype(jnp.int32)
    labels = jnp.where(used, jnp.take_along_axis(input_ids, positions, axis=1), 0)
    return Masked(jnp.where(selected, replaced, input_ids), positions, labels, used.astype(jnp.float32))


def _by_score(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns the positions [L] in random order, allowed positions first."""
    return jnp.argsort(jnp.where(allowed, scores >> 1, jnp.uint32(0xFFFFFFFF)), stable=True)


def _choose_tokens(scores, candidate, wanted):
    """Returns bool [L] that selects `wanted` candidates; every subset of that size is equally likely."""
    rank = jnp.argsort(_by_score(scores, candidate))
    return candidate & (rank < wanted)


def _word_starts(candidate, continuation):
    """Returns bool [L] first pieces of words, and int32 [L] the position of the first piece of each word."""
    length = candidate.shape[0]
    follows = continuation & jnp.concatenate([jnp.zeros(1, bool), candidate[:-1]])
    starts = candidate & ~follows
    return starts, jax.lax.cummax(jnp.where(starts | ~candidate, jnp.arange(length), 0))


def _choose_words(scores, candidate, continuation, wanted):
    """Returns bool [L] that selects whole words in random order.

    A word that would exceed the budget is skipped, and a shorter one may follow it.
    """
    starts, first = _word_starts(candidate, continuation)
    sizes = jnp.zeros(candidate.shape[0], jnp.int32).at[first].add(candidate.astype(jnp.int32))

    def take(used, position):
        fits = starts[position] & (used + sizes[position] <= wanted)
        return used + jnp.where(fits, sizes[position], 0), fits

    order = _by_score(scores, starts)
    _, fits = jax.lax.scan(take, jnp.int32(0), order)
    chosen = jnp.zeros_like(candidate).at[order].set(fits)
    return candidate & chosen[first]


def _choose_spans(scores, uniforms, candidate, continuation, wanted):
    """Returns bool [L] that selects spans of whole words from random starts, and each token's span start.

    The last span is cut at the budget. The start of each token's span is int32 [L]; it is needed because
    the 80/10/10 choice is drawn once per span.
    """
    length = candidate.shape[0]
    starts, _ = _word_starts(candidate, continuation)
    word = jnp.cumsum(starts)
    passage = jnp.cumsum(~candidate)  # spans do not cross [SEP]
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
        return (selected | inside, jnp.where(inside, position, group), used + jnp.sum(inside)), None

    carry = (jnp.zeros_like(candidate), jnp.arange(length), jnp.int32(0))
    (selected, group, _), _ = jax.lax.scan(take, carry, order)
    return selected, group
