"""A batch of one group, which trains nothing where the loss compares the groups of a batch."""

import pytest
from support.fine_tuned import make_task

from bert_jax.tasks.readers.tables import Examples

ALONE = "batch_size=1: each text is compared with the others of its batch; expected at least 2"


def encoded(task):
    others = ["the dog", "the cat"] if task.columns.text_b else []
    negatives = [["a dog"], ["a cat"]] if task.columns.negatives else []
    texts, labels = ["one cat", "one dog"], [0.0, 1.0] if task.columns.label else []
    return task.encode(Examples("f", ["0", "1"], texts, others, labels, [2, 3], negatives=negatives))


@pytest.mark.parametrize(
    "fields, columns, message",
    [
        ({}, {"text_b": "b"}, f"{ALONE}, or data.negatives"),
        ({}, {"text_b": ""}, ALONE),
        (
            {"loss": "cosent"},
            {"text_b": "b", "label": "c"},
            "batch_size=1: loss=cosent compares the pairs of a batch; expected at least 2",
        ),
    ],
)
def test_one_group_is_no_batch(vocabulary, fields, columns, message):
    task = make_task(vocabulary, "embedding", fields=fields, text_a="a", **columns)
    assert task.mistakes_of_batches(1) == (message,)
    assert task.mistakes_of_batches(2) == ()
    assert encoded(task).least_groups == 2


@pytest.mark.parametrize(
    "fields, columns",
    [
        ({}, {"text_b": "b", "negatives": "c"}),
        ({"loss": "classes"}, {"text_b": "b", "label": "c"}),
        ({"loss": "denoising"}, {"text_b": ""}),
    ],
)
def test_one_group_is_a_batch_where_no_other_is_compared(vocabulary, fields, columns):
    task = make_task(vocabulary, "embedding", fields=fields, text_a="a", **columns)
    assert task.mistakes_of_batches(1) == ()
    assert encoded(task).least_groups == 1
