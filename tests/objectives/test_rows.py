"""What padding, windows, classes and unlabeled targets weigh in the losses of rows."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.models import tiny_config

from bert_jax.objectives.classification import Classification
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.objectives.spans import Spans
from bert_jax.objectives.tagging import Tagging

CONFIG = tiny_config()


def loss_of(objective, logits, **batch):
    """The pair of the loss, whose weight is the one that is known without the model, and the metrics."""
    batch = {name: jnp.asarray(x) for name, x in batch.items()}
    pairs, metrics = objective.losses_of(jnp.asarray(logits, jnp.float32), batch)
    assert float(objective.weights(batch)["task"]) == float(pairs["task"][1])
    return pairs["task"], metrics


def assert_pair(found, total, weight):
    assert float(found[0]) == pytest.approx(total, rel=1e-6) and float(found[1]) == weight


def test_a_class_weighs_in_the_loss_and_padding_nowhere():
    objective = Classification(CONFIG, 3, class_weights=(1.0, 2.0, 4.0))
    loss, metrics = loss_of(
        objective, np.zeros((3, 3)), weights=np.float32([1, 1, 0]), targets=np.int32([2, 0, 1])
    )
    assert_pair(loss, 5 * np.log(3), 5)
    assert_pair(metrics["accuracy"], 2 / 3, 2)


def test_windows_weigh_in_the_loss_and_their_texts_in_its_divisor():
    windows = dict(weights=np.float32([1, 1, 1, 0]), row_weights=np.float32([0.5, 0.25, 2, 2]))
    objective = Classification(CONFIG, 3, windows=True)
    loss, metrics = loss_of(objective, np.zeros((4, 3)), targets=np.zeros(4, np.int32), **windows)
    assert_pair(loss, 2.75 * np.log(3), 3)
    assert_pair(metrics["accuracy"], 1, 3)

    both = {name: np.repeat(x[:, None], 2, axis=1) for name, x in windows.items()}
    objective = MultipleChoice(CONFIG, 2, windows=True)
    loss, _ = loss_of(objective, np.zeros((4, 2)), targets=np.zeros((4, 2), np.int32), **both)
    assert_pair(loss, 2.75 * np.log(2), 3)


def test_the_start_and_the_end_count_half_each():
    logits = np.zeros((2, 4, 2), np.float32)
    logits[0, 1, 0] = 100  # the start of the first row is found
    places = dict(starts=np.int32([1, 2]), ends=np.int32([3, 0]), weights=np.float32([1, 1]))
    loss, metrics = loss_of(Spans(CONFIG), logits, **places)
    assert_pair(loss, 3 * np.log(4) / 2, 2)
    assert_pair(metrics["start_accuracy"], 1 + 1 / 4, 2)
    assert_pair(metrics["end_accuracy"], 2 / 4, 2)


def test_the_first_tag_counts_and_no_tag_does_not():
    loss, metrics = loss_of(Tagging(CONFIG, 5), np.zeros((1, 3, 5)), tags=np.int32([[0, -1, 4]]))
    assert_pair(loss, 2 * np.log(5), 2)
    assert_pair(metrics["accuracy"], 2 / 5, 2)


def test_the_loss_of_probabilities():
    """Of targets that count, and of a probability that is rounded to 1."""
    outputs = np.float32([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])
    found = Classification(CONFIG, 3).evaluation_loss(outputs, np.int32([0, -1]))
    assert found == pytest.approx(np.log(2), rel=1e-6)
    several = Classification(CONFIG, 2, "multilabel")
    assert several.evaluation_loss(np.float32([[1, 0.5]]), np.float32([[1, 0]])) == pytest.approx(
        np.log(2) / 2, rel=1e-6
    )
    assert several.evaluation_loss(np.float32([[1, 1]]), np.float32([[0, 1]])) == pytest.approx(
        25 * np.log(2) / 2, rel=1e-6
    )
