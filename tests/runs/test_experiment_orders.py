"""The order of a paper's scores beside that of the runs here."""

import pytest

from bert_jax.runs.experiment import orders
from bert_jax.settings.experiments import Comparison


@pytest.mark.parametrize(
    "a, b, expected",
    [
        ([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], True),
        ([1.0, 1.1, 0.9], [1.0, 1.2, 1.1], False),
        ([1.0], [9.0], False),  # one run says nothing about others
        ([1.0, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [1.1, 1.1], True),
        ([0.5, 0.5, 0.5], [0.5, 0.6, 0.7], False),
    ],
    ids=["different", "near", "single runs", "equal", "without deviation", "one arm without deviation"],
)
def test_whether_two_arms_differ(a, b, expected):
    assert orders.differ(a, b) is orders.differ(b, a) is expected


def test_scipys_known_answer_of_welchs_test():
    """p = .102 and .042, at 3.45 degrees of freedom."""
    assert not orders.differ([0.0, 0.1, 0.2], [0.2, 0.3, 0.5])
    assert orders.differ([0.0, 0.1, 0.2], [0.3, 0.4, 0.6])


SCORES = {"both": 88.0, "masks": 87.0, "left": 77.0, "none": 77.0}
FOUND = {
    "left": [0.50, 0.51, 0.52],
    "masks": [0.70, 0.72, 0.69],
    "both": [0.70, 0.72, 0.68],
    "none": [0.6, 0.61],
}


def test_both_orders_and_the_pairs():
    name, published, found, pairs = orders.compare(Comparison("F1", SCORES, ["SQuAD"]), FOUND)
    assert (name, published) == ("F1", "both > masks > left ≈ none")
    assert found == "masks ≈ both > none > left"
    assert pairs == "4 as published, 0 reversed, 1 not significant"  # of left and none, it has no order


def test_pairs_against_the_paper():
    smaller = {arm: [-x for x in runs] for arm, runs in FOUND.items()}
    assert orders.compare(Comparison("F1", SCORES, ["SQuAD"]), smaller)[2:] == (
        "left > none > both ≈ masks",
        "0 as published, 4 reversed, 1 not significant",
    )


def test_arms_that_have_not_run_are_left_out():
    comparison = Comparison("F1", SCORES, ["SQuAD"])
    assert orders.compare(comparison, {"left": [0.5, 0.6], "masks": []}) is None
    assert orders.compare(comparison, {"left": [0.5], "masks": [0.7]})[1:] == (
        "masks > left",
        "masks ≈ left",
        "0 as published, 0 reversed, 1 not significant",
    )
