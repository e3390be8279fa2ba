"""Masking for masked LM, as a pure function of (key, tokens) that runs on the device.

The defaults are the paper's rules (section 3.1, appendix A.1) as google-research/bert applies them to static
records: round(15%) of a row's tokens are chosen, never [CLS], [SEP] or padding. Of these, 80% become [MASK],
10% become a random token of the whole vocabulary and 10% stay unchanged. Which tokens are chosen
(`choose`), how many (`counts`, `rates`), and what replaces them (`replace`) are separate values.
"""

from __future__ import annotations

from typing import NamedTuple

from etils import epy

from bert_jax.objectives.masking import counts, rates, replace
from bert_jax.objectives.masking.choose import STRATEGIES
from bert_jax.objectives.masking.counts import COUNTS, default_max_predictions
from bert_jax.objectives.masking.options import (
    NEVER_CHOSEN,
    MaskingOptions,
    Vocabulary,
    choice_weights,
    parse_shares,
)

with epy.lazy_imports():  # the options are read before jax may be imported
    import jax
    import jax.numpy as jnp

__all__ = [
    "COUNTS",
    "NEVER_CHOSEN",
    "STRATEGIES",
    "Masked",
    "MaskingOptions",
    "Vocabulary",
    "choice_weights",
    "default_max_predictions",
    "mask_tokens",
    "parse_shares",
    "prob_at",
]


class Masked(NamedTuple):
    """Masked rows.

    `input_ids` are int32 [B, L]; `positions` and `labels` int32 and `weights` float32 [B, P], ordered by
    position, with unused entries last.
    """

    input_ids: jax.Array
    positions: jax.Array
    labels: jax.Array
    weights: jax.Array


def prob_at(options: MaskingOptions, step: jax.Array) -> jax.Array | None:
    """Returns the share of tokens to predict at a step of training, or None if it does not change."""
    if options.schedule == "constant":
        return None
    return rates.share_at(options.schedule, options.prob, options.final_prob, options.total_steps, step)


def mask_tokens(
    keys: jax.Array,
    input_ids: jax.Array,
    lengths: jax.Array,
    vocabulary: Vocabulary,
    options: MaskingOptions,
    prob: jax.Array | None = None,
) -> Masked:
    """Chooses the tokens to predict and replaces them.

    Args:
        keys: typed PRNG keys [B], one per row; the masks of a row depend only on its key and its tokens.
        input_ids: int32 [B, L].
        lengths: int32 [B], number of real tokens of each row, including [CLS] and [SEP]; the rest is padding.
        vocabulary: special ids and, for words, spans and n-grams, the continuation pieces.
        options: how many tokens are chosen, which ones, and what replaces them.
        prob: the share of tokens to predict at this step, float32, if it is not `options.prob`.
    """
    strategy = STRATEGIES[options.strategy]
    if strategy.words and vocabulary.is_continuation is None:
        raise ValueError(f"masking.strategy={options.strategy} needs the vocabulary's continuation pieces")
    length = input_ids.shape[1]
    candidate = jnp.arange(length) < lengths[:, None]
    for special in vocabulary.never_chosen(options.never_chosen):
        candidate &= input_ids != special
    share, slots = options.prob if prob is None else prob, options.predictions(length)
    wanted = COUNTS[options.count](counts.Rows(keys, lengths, candidate, share, slots))

    def draw(stream, sample, dtype):
        # The default dtypes depend on `jax_enable_x64`, and with them what is drawn.
        return jax.vmap(lambda key: sample(jax.random.fold_in(key, stream), (length,), dtype))(keys)

    arguments = [_scores(draw, input_ids, vocabulary, options), candidate]
    if strategy.words:
        arguments.append(jnp.asarray(vocabulary.is_continuation)[input_ids] & candidate)
        apart = ~candidate
        for special in vocabulary.special_ids:
            apart |= input_ids == special
        arguments.append(apart)
    if strategy.lengths:
        arguments.insert(1, draw(3, jax.random.uniform, jnp.float32))
    selected, group = jax.vmap(strategy.choose)(*arguments, wanted)

    excluded = vocabulary.excluded_from_random() if options.exclude_special else ()
    replaced = replace.replaced(
        draw, input_ids, group, vocabulary.mask_id, options.replace, vocabulary.size, excluded
    )
    return _masked(input_ids, selected, replaced, slots)


def _masked(input_ids, selected, replaced, slots):
    """Returns rows with the selected tokens replaced, and these tokens in `slots` entries."""
    length = input_ids.shape[1]
    index = jnp.where(selected, jnp.arange(length), length)
    positions = jax.lax.sort(index, dimension=1)[:, :slots]
    if length < slots:
        positions = jnp.pad(positions, ((0, 0), (0, slots - length)), constant_values=length)
    used = positions < length
    positions = jnp.where(used, positions, 0).astype(jnp.int32)
    labels = jnp.where(used, jnp.take_along_axis(input_ids, positions, axis=1), 0)
    return Masked(jnp.where(selected, replaced, input_ids), positions, labels, used.astype(jnp.float32))


def _scores(draw, input_ids, vocabulary, options):
    """Returns uint32 [B, L]; tokens are chosen in ascending order of their scores."""
    if not options.smoothing:
        return draw(0, jax.random.bits, jnp.uint32)
    weights = jnp.asarray(choice_weights(vocabulary, options), jnp.float32)
    # The order of exponential variables with these rates is that of successive draws without replacement.
    # Floats that are not negative have the order of their bits.
    times = draw(0, jax.random.exponential, jnp.float32) / weights[input_ids]
    return jax.lax.bitcast_convert_type(times, jnp.uint32)
