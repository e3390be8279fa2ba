"""Rerankers of two labels: which one is the score, how it is chosen, and runs that are refused."""

import pytest
from support.fine_tuned import make_run
from support.pretrained import vocabulary  # noqa: F401

from bert_jax.errors import UserError
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.search.reranking import Reranker

COLUMNS = dict(text_a="query", text_b="document", label="judgment")


@pytest.fixture
def model(tmp_path, vocabulary):  # noqa: F811
    def make(task, labels=None, columns=COLUMNS):
        run = make_run(tmp_path / "run", vocabulary, task, labels, **columns)
        return Predictor(str(run), log=lambda line: None)

    return make


ENTAILMENT = ("entailment", "not_entailment")


@pytest.mark.parametrize(
    "task, labels, columns, given, relevant",
    [
        ("qnli", ENTAILMENT, {}, None, "entailment"),
        ("rte", ENTAILMENT, {}, None, "entailment"),
        ("mrpc", ("0", "1"), {}, None, "1"),
        ("qqp", ("0", "1"), {}, None, "1"),
        ("classification", ("-1", "1"), COLUMNS, None, "1"),
        ("classification", ("9", "10"), COLUMNS, None, "10"),
        ("classification", ("0", "1"), COLUMNS, "0", "0"),
        ("classification", ("match", "mismatch"), COLUMNS, "match", "match"),
        ("classification", ("irrelevant", "relevant"), COLUMNS, "relevant", "relevant"),
        ("rte", ENTAILMENT, {}, "not_entailment", "not_entailment"),
    ],
)
def test_the_score_is_the_probability_of_the_label_of_relevant_documents(
    model, task, labels, columns, given, relevant
):
    ranker, lines = model(task, labels, columns), []
    (score,) = Reranker(ranker, relevant=given, log=lines.append).scores([("the cat", "a big dog")])
    (record,) = ranker.predict_rows(["the cat\ta big dog"])
    assert score == pytest.approx(record["probabilities"][relevant], abs=1e-5)
    assert score != pytest.approx(1 - score, abs=1e-3)
    assert lines == [f"--rerank={ranker.source}: the score is the probability of {relevant!r}"]


@pytest.mark.parametrize(
    "task, labels, given, message",
    [
        (
            "classification",
            ("match", "mismatch"),
            None,
            "have, 'match' or 'mismatch'? give --relevant=LABEL",
        ),
        ("classification", ("0", "1"), "yes", "--relevant=yes: expected a label of "),
        ("classification", ("0", "1"), "", "--relevant=: expected a label of "),
        ("multilabel", ("x", "y"), None, "a run of multilabel with 2 labels; expected reranking, late"),
        ("multilabel", ("x",), "x", "a run of multilabel with 1 label; expected reranking, late"),
        ("regression", None, "1", "--relevant=1: a run of regression has no labels; leave it out"),
    ],
)
def test_runs_whose_score_is_not_known(model, task, labels, given, message):
    ranker = model(task, labels)
    with pytest.raises(UserError) as error:
        Reranker(ranker, relevant=given, log=lambda line: None)
    assert message in str(error.value)
