"""Scores against cases worked out by hand and against the definition as loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import squad_oracle

from bert_jax.tasks import question_answering

TEXTS = st.lists(
    st.sampled_from("a The an cat cat, Dog. dog (big) - … é É the 1,000 1000".split()), max_size=5
)
TEXT = TEXTS.map(" ".join)


@given(st.lists(TEXT, min_size=1, max_size=3), TEXT, st.booleans())
def test_best_match_is_that_of_the_definition(answers, prediction, v2):
    expected = squad_oracle.scores(answers, prediction, v2)
    assert question_answering.best_match(answers, prediction, v2) == pytest.approx(expected)


def test_scores_with_and_without_an_answer():
    # Odds of none: question 0 is surest to have an answer. Answering it alone is best, with two right nones:
    # question 1 would cost one, and question 2 gives its F1 of 2/3 back.
    answers = [["cat"], [], ["big dog"], []]
    found = question_answering.score_v2(
        answers, ["cat", "bird", "", ""], ["cat", "bird", "dog", "x"], [-3, -1, 2, 4]
    )
    groups = {f"{group}{score}": 50 for group in ("", "HasAns_", "NoAns_") for score in ("exact", "f1")}
    totals = {"total": 4, "HasAns_total": 2, "NoAns_total": 2}
    best = {"best_exact": 75, "best_exact_thresh": -3, "best_f1": 75, "best_f1_thresh": -3}
    assert found == pytest.approx(groups | totals | best)


ANSWER = st.sampled_from(["cat", "big dog", "dog cat"])
QUESTION = st.tuples(st.lists(ANSWER, max_size=2), TEXT, st.integers(-3, 3))


@given(st.lists(QUESTION, min_size=1, max_size=8))
def test_the_best_threshold_is_the_official_one(questions):
    answers, predictions, odds = zip(*questions, strict=True)
    values = [
        squad_oracle.scores(texts, text, True)[1] for texts, text in zip(answers, predictions, strict=True)
    ]
    answerable = [bool(texts) for texts in answers]
    expected = squad_oracle.best_threshold(values, answerable, predictions, odds)
    found = question_answering.best_threshold(np.array(values), np.array(answerable), predictions, odds)
    assert found[0] == pytest.approx(expected[0])
    if len(set(odds)) == len(odds) and len(set(np.cumsum(values).round(9))) == len(values):
        assert found[1] == pytest.approx(expected[1])
