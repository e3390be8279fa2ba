"""Masking for masked LM, as a pure function of (key, tokens) that runs on the device.

The defaults are BERT's rules (Devlin et al. 2019, section 3.1 and appendix A.1) as google-research/bert
applies them to static records: round(15%) of a row's tokens are chosen, never [CLS], [SEP] or padding. Of
these, 80% become [MASK], 10% become a random token of the whole vocabulary and 10% stay unchanged. The number
of tokens (`COUNTS`), their choice (`STRATEGIES`) and their replacement are independent of each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import string
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from etils import epy

from bert_jax.errors import UserError

with epy.lazy_imports():  # options are parsed before jax may be imported
    import jax
    import jax.numpy as jnp

# Special tokens that are never chosen: [CLS] and [SEP] as in google-research/bert; all special tokens, also
# [UNK] and [MASK]; or none, as in fairseq. Padding is never chosen.
NEVER_CHOSEN = ("layout", "special", "none")

# Random streams of a row's key.
_SCORES, _REPLACEMENT, _RANDOM_TOKENS, _UNIT_LENGTHS, _COUNT = range(5)

_SENTENCE_PIECE_SPACE = "\u2581"
_ENGLISH = frozenset(string.ascii_letters + string.punctuation)

# SpanBERT: span lengths in words ~ Geometric(0.2), at most 10.
_SPAN_CONTINUE = 0.8
_SPAN_MAX_WORDS = 10

# ALBERT: n-grams of n words with a probability proportional to 1/n: 6/11, 3/11 and 2/11.
_NGRAM_MAX_WORDS = 3


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """How many tokens to predict, how they are chosen, and what replaces them.

    With `smoothing`, the strategy "token" chooses a token with a probability proportional to (its count in
    the corpus)^-smoothing. With `copies`, a row has that many different sets of masks in training, whose keys
    are in the batch, and without it new masks at every step.
    """

    prob: float = 0.15  # fraction of the tokens to predict
    strategy: str = "token"  # the unit that is chosen, a key of `STRATEGIES`
    max_predictions: int = 20  # P, the static number of predictions of a row
    count: str = "google"  # the rule for the number of tokens to predict in a row, an item of `COUNTS`
    replace: tuple[float, float, float] = (0.8, 0.1, 0.1)  # become [MASK], become random, stay the same
    exclude_special: bool = False  # random tokens are never padding, [CLS], [SEP] or [UNK], as in fairseq
    never_chosen: str = "layout"  # an item of `NEVER_CHOSEN`
    smoothing: float = 0.0
    copies: int = 0


def parse_fractions(text: str, name: str) -> tuple[float, float, float]:
    """Parses a text such as "0.8,0.1,0.1". Raises UserError with the name of the field."""
    with contextlib.suppress(ValueError):
        first, second, third = (float(item) for item in text.split(","))
        if min(first, second, third) >= 0 and abs(first + second + third - 1) <= 1e-6:  # false for NaN
            return first, second, third
    raise UserError(f"{name}={text!r}: expected three fractions with the sum 1, such as 0.8,0.1,0.1")


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The properties of a vocabulary that masking needs."""

    size: int
    mask_id: int
    special_ids: tuple[int, ...]  # padding and the special tokens of a row's layout, such as [CLS] and [SEP]
    # bool [V], true for tokens that continue a word; needed unless the strategy is "token"
    is_continuation: np.ndarray | None = None
    other_special_ids: tuple[int, ...] = ()  # such as [UNK] and [MASK]
    counts: np.ndarray | None = None  # int [V], in the corpus; needed for `MaskingOptions.smoothing`

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, counts: np.ndarray | None = None) -> Vocabulary:
        """Returns the properties of a `bert_jax.tokenization.Tokenizer`."""
        special_ids = (tokenizer.pad_id, *tokenizer.layout.special_ids)
        others = tuple(sorted(set(tokenizer.special_ids.values()) - set(special_ids)))
        return cls(
            tokenizer.vocab_size, tokenizer.mask_id, special_ids, _continuations(tokenizer), others, counts
        )

    def never_chosen(self, which: str) -> tuple[int, ...]:
        """Returns the ids that an item of `NEVER_CHOSEN` stands for."""
        return {"layout": self.special_ids, "none": ()}.get(
            which, (*self.special_ids, *self.other_special_ids)
        )


def _continuations(tokenizer):
    # SentencePiece marks tokens that follow a space. In languages without spaces, the others may start words
    # too. As in google-research/albert, an ASCII punctuation mark is a word, and so is a token with any
    # character that is neither such a mark nor an English letter.
    if tokenizer.word_start != _SENTENCE_PIECE_SPACE:
        return tokenizer.is_continuation
    english = [
        token not in string.punctuation and not token.startswith("<") and set(token) <= _ENGLISH
        for token in tokenizer.tokens
    ]
    return tokenizer.is_continuation & np.array(english)


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
    """Chooses the tokens to predict and replaces them.

    Args:
        keys: typed PRNG keys [B], one per row; the masks of a row depend only on its key and its tokens.
        input_ids: int32 [B, L].
        lengths: int32 [B], number of real tokens of each row, including [CLS] and [SEP]; the rest is padding.
        vocabulary: special ids and, for words, spans and n-grams, the continuations of words.
        options: how many tokens are chosen, which ones, and what replaces them.
    """
    strategy = STRATEGIES[options.strategy]
    length = input_ids.shape[1]
    candidate = jnp.arange(length) < lengths[:, None]
    for special in vocabulary.never_chosen(options.never_chosen):
        candidate &= input_ids != special
    slots = options.max_predictions
    budget = _budgets(keys, lengths, candidate, options)

    def draw(stream, sample, dtype):
        # Default dtypes, and therefore the samples, would depend on `jax_enable_x64`.
        return jax.vmap(lambda key: sample(jax.random.fold_in(key, stream), (length,), dtype))(keys)

    arguments = [_scores(draw, input_ids, vocabulary, options), candidate]
    if strategy.words:
        arguments.append(jnp.asarray(vocabulary.is_continuation)[input_ids] & candidate)
        separate = ~candidate
        for special in vocabulary.special_ids:
            separate |= input_ids == special
        arguments.append(separate)
    if strategy.lengths:
        arguments.insert(1, draw(_UNIT_LENGTHS, jax.random.uniform, jnp.float32))
    selected, group = jax.vmap(strategy.choose)(*arguments, budget)

    index = jnp.where(selected, jnp.arange(length), length)
    positions = jax.lax.sort(index, dimension=1)[:, :slots]
    if length < slots:
        positions = jnp.pad(positions, ((0, 0), (0, slots - length)), constant_values=length)
    used = positions < length
    positions = jnp.where(used, positions, 0).astype(jnp.int32)
    labels = jnp.where(used, jnp.take_along_axis(input_ids, positions, axis=1), 0)
    replaced = _replaced(draw, input_ids, group, vocabulary, options)
    return Masked(jnp.where(selected, replaced, input_ids), positions, labels, used.astype(jnp.float32))


def _scores(draw, input_ids, vocabulary, options):
    """Returns uint32 [B, L]; tokens are chosen in ascending order of their scores."""
    if not options.smoothing:
        return draw(_SCORES, jax.random.bits, jnp.uint32)
    counts = np.maximum(vocabulary.counts, 1.0)
    weights = jnp.asarray((counts / counts.min()) ** -options.smoothing, jnp.float32)  # [V], at most 1
    # Sorting exponential variables with these rates is weighted sampling without replacement. Nonnegative
    # floats have the same order as their bits.
    times = draw(_SCORES, jax.random.exponential, jnp.float32) / weights[input_ids]
    return jax.lax.bitcast_convert_type(times, jnp.uint32)


def _replaced(draw, input_ids, group, vocabulary, options):
    """Returns int32 [B, L], the replacement of each token if it is chosen."""
    mask, random, same = options.replace
    uniforms = draw(_REPLACEMENT, jax.random.uniform, jnp.float32)
    if group is not None:
        uniforms = jnp.take_along_axis(uniforms, group, axis=1)
    # Uniforms are less than 1, so a limit of 1.0 lets no token stay unchanged through rounding.
    random_below = mask + random if same else 1.0
    if not random:
        return jnp.where(uniforms < random_below, vocabulary.mask_id, input_ids)
    excluded = []
    if options.exclude_special:
        excluded = sorted({*vocabulary.special_ids, *vocabulary.other_special_ids} - {vocabulary.mask_id})
    size = vocabulary.size - len(excluded)
    random_ids = draw(
        _RANDOM_TOKENS, lambda key, shape, dtype: jax.random.randint(key, shape, 0, size, dtype), jnp.int32
    )
    for skipped in excluded:
        random_ids += (random_ids >= skipped).astype(jnp.int32)
    chosen = jnp.where(uniforms < random_below, random_ids, input_ids)
    return jnp.where(uniforms < mask, vocabulary.mask_id, chosen)


def place_at(ids: jax.Array, positions: jax.Array, values: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns ids [B, L] with `values` [B, P] at `positions` [B, P] wherever the weight is not 0."""
    unused = ids.shape[1]  # outside the row, and dropped
    targets = jnp.where(weights > 0, positions, unused)
    return jax.vmap(lambda row, at, value: row.at[at].set(value, mode="drop"))(ids, targets, values)


# How many tokens


# Each rule has the name of a program that uses it; "bernoulli" is the rule of transformers.
COUNTS = ("google", "fairseq", "electra", "bernoulli")


def _budgets(keys: jax.Array, lengths: jax.Array, candidate: jax.Array, options: MaskingOptions) -> jax.Array:
    """Returns int32 [B], the number of tokens to predict in rows with these candidates, bool [B, L]."""
    prob, most, length = options.prob, options.max_predictions, candidate.shape[1]

    def uniform(*shape):
        sample = functools.partial(jax.random.uniform, shape=shape, dtype=jnp.float32)
        return jax.vmap(lambda key: sample(jax.random.fold_in(key, _COUNT)))(keys)

    if options.count == "fairseq":  # floor(prob n + U) of all n tokens (mask_tokens_dataset.py)
        expected = lengths.astype(jnp.float32) * prob
        return jnp.minimum(most, jnp.floor(expected + uniform()).astype(jnp.int32))
    if options.count == "bernoulli":  # Each candidate is chosen independently (collator of transformers).
        # A uniform choice of that many candidates then has the distribution of independent choices.
        chosen = candidate & (uniform(length) < prob)
        return jnp.minimum(most, jnp.sum(chosen, axis=1, dtype=jnp.int32))
    # round(prob n), at least 1, where n includes [CLS] and [SEP]. google-research/bert computes it in
    # Python's float64 and google-research/electra in float32 (pretrain_helpers.py).
    counts = [round(n * prob) for n in range(length + 1)]
    if options.count == "electra":
        numbers = np.arange(length + 1, dtype=np.float32)
        counts = np.round(numbers * np.float32(prob)).astype(int).tolist()
    return jnp.asarray(np.array([min(most, max(1, count)) for count in counts], np.int32))[lengths]


def default_max_predictions(length: int, prob: float, count: str = "google") -> int:
    """Returns the static number of predictions for rows of `length` tokens; `count` is an item of `COUNTS`.

    It is prob * length, rounded up to a multiple of 4: for 15%, the usual 20 at 128 tokens and 80 at 512.
    "electra" has int((prob + 0.005) * length), and "bernoulli" adds four standard deviations.
    """
    if count == "electra":
        return max(1, int((prob + 0.005) * length))
    most = prob * length
    if count == "bernoulli":
        most = min(float(length), most + 4 * np.sqrt(most * (1 - prob)))
    return max(4, -(-int(np.ceil(most)) // 4) * 4)


# Which tokens. Each function maps scores (uint32 [L]), candidates (bool [L], the tokens that may be chosen)
# and the number of tokens (int32) to (the chosen tokens, bool [L]; their groups). Tokens with the same group,
# int32 [L], share one sample of the replacement; None if each token has its own. Functions for words also
# take the continuations of words and the separate tokens (both bool [L]). Separate tokens belong to no word,
# and spans and n-grams end before them. Functions for several words also take uniform numbers (float32 [L]),
# one for each possible start.


def _by_score(scores, allowed):
    """Returns the positions [L] in random order, allowed positions first."""
    return jnp.argsort(jnp.where(allowed, scores >> 1, jnp.uint32(0xFFFFFFFF)), stable=True)


def _tokens(scores, candidate, budget):
    """Chooses `budget` candidates; if the scores are uniform, every subset of that size is equally likely."""
    rank = jnp.argsort(_by_score(scores, candidate))
    return candidate & (rank < budget), None


def _word_starts(candidate, continuation, separate):
    """Returns bool [L], the first tokens of words, and int32 [L], where the word of each token starts.

    A separate token that is a candidate counts as a word.
    """
    length = candidate.shape[0]
    follows = continuation & ~separate & jnp.concatenate([jnp.zeros(1, bool), ~separate[:-1]])
    starts = candidate & ~follows
    return starts, jax.lax.cummax(jnp.where(starts | ~candidate, jnp.arange(length), 0))


def _words(scores, candidate, continuation, separate, budget):
    """Chooses whole words in random order.

    A word that would exceed the budget is skipped, and a later, shorter one may fit.
    """
    starts, first = _word_starts(candidate, continuation, separate)
    sizes = jnp.zeros(candidate.shape[0], jnp.int32).at[first].add(candidate.astype(jnp.int32))

    def take(used, position):
        fits = starts[position] & (used + sizes[position] <= budget)
        return used + jnp.where(fits, sizes[position], 0), fits

    order = _by_score(scores, starts)
    _, fits = jax.lax.scan(take, jnp.int32(0), order)
    chosen = jnp.zeros_like(candidate).at[order].set(fits)
    return candidate & chosen[first], None


def _spans(scores, uniforms, candidate, continuation, separate, budget):
    """Chooses spans of whole words from random starts (SpanBERT, Joshi et al. 2020, section 3.1).

    The last span is truncated to the budget. The group of a span's tokens is the position of its start.
    """
    length = candidate.shape[0]
    starts, _ = _word_starts(candidate, continuation, separate)
    word = jnp.cumsum(starts)
    # A separate token is a passage by itself.
    passage = 2 * jnp.cumsum(separate, dtype=jnp.int32) - separate.astype(jnp.int32)
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
        inside &= used + jnp.cumsum(inside) <= budget
        used += jnp.sum(inside, dtype=jnp.int32)
        return (selected | inside, jnp.where(inside, position, group), used), None

    carry = (jnp.zeros_like(candidate), jnp.arange(length), jnp.int32(0))
    (selected, group, _), _ = jax.lax.scan(take, carry, order)
    return selected, group


def _ngrams(scores, uniforms, candidate, continuation, separate, budget):
    """Chooses n-grams of whole words from random starts (google-research/albert).

    An n-gram has n words with a probability proportional to 1/n, up to 3 words and up to the next [SEP]. An
    n-gram that exceeds the budget is shortened until it fits. It is skipped if it does not fit at any length
    or contains a word that is already chosen.
    """
    length = candidate.shape[0]
    place = jnp.arange(length)
    starts, _ = _word_starts(candidate, continuation, separate)
    # For each position, the next one that starts a word or is no candidate; `length` if there is none.
    boundary = jnp.append(jnp.where(starts | ~candidate, place, length), length)
    after = jax.lax.cummin(boundary, reverse=True)[1:]
    starts_or_end = jnp.append(starts & ~separate, False)
    ends = [after]
    for _ in range(_NGRAM_MAX_WORDS - 1):
        more = starts_or_end[ends[-1]] & ~separate
        ends.append(jnp.where(more, jnp.append(after, length)[ends[-1]], ends[-1]))
    sizes = jnp.stack(ends) - place  # [n, L], the tokens of the n-gram that starts at each position
    available = 1 + jnp.sum(jnp.diff(sizes, axis=0) > 0, axis=0)
    totals = jnp.asarray(np.cumsum(1 / np.arange(1, _NGRAM_MAX_WORDS + 1)), jnp.float32)
    words = 1 + jnp.sum(totals[:-1, None] <= uniforms * totals[available - 1], axis=0)
    words = jnp.minimum(words, available)
    numbers = jnp.arange(1, _NGRAM_MAX_WORDS + 1)

    def take(carry, position):
        selected, used = carry
        fits = (numbers <= words[position]) & (used + sizes[:, position] <= budget)
        size = jnp.max(jnp.where(fits, sizes[:, position], 0))
        inside = (place >= position) & (place < position + size)
        inside &= starts[position] & ~jnp.any(inside & selected)
        return (selected | inside, used + jnp.sum(inside, dtype=jnp.int32)), None

    order = _by_score(scores, starts)
    (selected, _), _ = jax.lax.scan(take, (jnp.zeros_like(candidate), jnp.int32(0)), order)
    return selected, None


class Strategy(NamedTuple):
    """A way to choose tokens; `words` and `lengths` tell which extra arguments the function takes."""

    choose: Callable[..., tuple[jax.Array, jax.Array | None]]
    words: bool = True
    lengths: bool = False


STRATEGIES: dict[str, Strategy] = {
    "token": Strategy(_tokens, words=False),
    "whole_word": Strategy(_words),
    "span": Strategy(_spans, lengths=True),
    "ngram": Strategy(_ngrams, lengths=True),
}
