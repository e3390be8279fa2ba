"""Masks that a row has again in a later epoch, as in BERT's static records, and those that are always new."""

import dataclasses

import jax
import numpy as np
import pytest
from support.models import packed_batch, tiny_task

from bert_jax.data import loader
from bert_jax.objectives.masking import MaskingOptions
from bert_jax.objectives.replaced_tokens import ReplacedTokens

ROWS, SEED = 8, 5
MASKS = ("input_ids", "masked_positions", "masked_labels", "masked_weights")


def task(copies, strategy="token", **options):
    plain = tiny_task(strategy)
    masking = MaskingOptions(strategy=strategy, max_predictions=8, copies=copies, **options)
    return dataclasses.replace(plain, masking=masking)


def batch_of(order, copies, epoch):
    """The rows of one data set in an order, with the keys that they have in an epoch."""
    batch = {name: x[order] for name, x in packed_batch(rows=ROWS).items()} | {
        "row_ids": np.arange(len(order))
    }
    if copies:
        batch["mask_keys"] = loader.mask_keys(order, np.full(len(order), epoch % copies), SEED)
    return batch


def masks(objective, order, epoch, step, train=True):
    """The masks of each row of the data set, by its number."""
    batch = batch_of(order, objective.masking.copies, epoch)
    key = jax.random.fold_in(jax.random.key(SEED), step)
    prepared = jax.jit(objective.prepare, static_argnums=2)(batch, key, train)
    found = {name: np.asarray(prepared[name]) for name in MASKS}
    return [{name: x[place] for name, x in found.items()} for place in np.argsort(order)]


def same(first, second):
    return [all((a[name] == b[name]).all() for name in MASKS) for a, b in zip(first, second, strict=True)]


FORWARD, BACKWARD = np.arange(ROWS), np.arange(ROWS)[::-1]


@pytest.mark.parametrize(
    "strategy, options",
    [("token", {}), ("span", {}), ("whole_word", {"count": "fairseq"}), ("ngram", {"count": "bernoulli"})],
)
def test_static_masks_are_those_of_the_row_in_any_step_and_place(strategy, options):
    static = task(1, strategy, **options)
    first = masks(static, FORWARD, epoch=0, step=0)
    assert all(same(first, masks(static, BACKWARD, epoch=3, step=77)))
    assert all(row["masked_weights"].sum() for row in first) or options


def test_masks_are_new_in_each_step_by_default():
    dynamic = task(0)
    first = masks(dynamic, FORWARD, epoch=0, step=0)
    assert not any(same(first, masks(dynamic, FORWARD, epoch=0, step=1)))
    assert all(same(first, masks(tiny_task(), FORWARD, epoch=0, step=0)))


def test_the_samples_of_a_generator_are_new_where_its_masks_are_not():
    generator = dataclasses.replace(task(1), next_sentence_head=False)
    objective = ReplacedTokens(generator.config, generator)
    batch = batch_of(FORWARD, 1, 0)
    first, second = (objective.prepare(batch, jax.random.key(step), True) for step in range(2))
    assert all((first[name] == second[name]).all() for name in MASKS)
    assert not (first["sample_keys"] == second["sample_keys"]).all(axis=1).any()
