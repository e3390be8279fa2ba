import numpy as np
import pytest
from support import fine_tuned

from bert_jax.errors import UserError
from bert_jax.tasks import fields as task_fields
from bert_jax.tasks import metrics, tasks


def test_golden_values():
    # 3 true positives, 1 false positive, 2 false negatives, 2 true negatives.
    predictions = np.array([1, 1, 1, 1, 0, 0, 0, 0])
    targets = np.array([1, 1, 1, 0, 1, 1, 0, 0])
    scores = {name: score(predictions, targets) for name, score in metrics.CLASSIFICATION.items()}
    assert scores["accuracy"] == 5 / 8
    assert scores["f1"] == pytest.approx(6 / 9)  # 2 tp / (2 tp + fp + fn)
    assert scores["f1_macro"] == pytest.approx((6 / 9 + 4 / 7) / 2)
    assert scores["matthews"] == pytest.approx((3 * 2 - 1 * 2) / np.sqrt(4 * 5 * 3 * 4))


def test_correlations():
    predictions, targets = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0])
    assert metrics.spearman(predictions, targets) == pytest.approx(0.5)
    assert metrics.pearson(predictions, targets) == pytest.approx(np.corrcoef(predictions, targets)[0, 1])
    assert metrics.mean_squared_error(predictions, targets) == pytest.approx(5 / 3)


def test_ranks():
    ranks = np.array([1, 3, 10, 11])
    scores = {name: score(ranks, np.empty(0)) for name, score in metrics.RANKING.items()}
    assert scores == pytest.approx(
        {
            "mrr": (1 + 1 / 3 + 1 / 10 + 1 / 11) / 4,
            "recall1": 1 / 4,
            "recall10": 3 / 4,
            "ndcg10": (1 + 1 / 2 + 1 / np.log2(11)) / 4,  # Järvelin and Kekäläinen 2002
        }
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("predictions", [[0, 0, 0], [1, 1, 1], [0, 1, 0]])
@pytest.mark.parametrize("targets", [[0, 0, 0], [1, 1, 1], [0, 1, 0]])
def test_one_class_only_is_defined(predictions, targets):
    arrays = np.array(predictions), np.array(targets)
    scores = {name: score(*arrays) for name, score in metrics.CLASSIFICATION.items()}
    assert all(np.isfinite(value) for value in scores.values())
    if len(set(predictions)) == 1 or len(set(targets)) == 1:
        assert scores["matthews"] == 0
    if predictions == targets == [0, 0, 0]:
        assert scores["f1"] == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "predictions, targets", [([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [3.0, 3.0]), ([1.0], [2.0])]
)
def test_constant_correlations_are_zero(predictions, targets):
    assert metrics.pearson(np.array(predictions), np.array(targets)) == 0
    assert metrics.spearman(np.array(predictions), np.array(targets)) == 0


def test_metrics_are_checked_before_training(vocabulary):
    def names(task, labels, text, **fields):
        return fine_tuned.make_task(vocabulary, task, labels, {"metrics": text} | fields).metrics

    assert names("classification", ["a", "b"], "accuracy, f1") == ("accuracy", "f1")
    with pytest.raises(UserError, match="f1 is defined for two labels and there are 3"):
        names("classification", ["a", "b", "c"], "f1")
    assert names("classification", ["a", "b"], "f1", positive_label="a") == ("f1",)
    with pytest.raises(UserError, match="positive_label=c: label 'c' is none of 'a', 'b'"):
        names("classification", ["a", "b"], "f1", positive_label="c")
    with pytest.raises(UserError, match="'accuracy' is not a metric of the task regression"):
        names("regression", None, "accuracy")
    for name, spec in tasks().items():
        fields = {"max_query_length": 4, "doc_stride": 4} if name.startswith("squad") else {}
        if name == "lateinteraction":
            fields = {"query_length": 8}
        columns = {
            "multiplechoice": {"choices": "first,second"},
            "lateinteraction": {"text_b": "second"},
            "reranking": {"text_b": "second", "negatives": "third"},
        }
        task = fine_tuned.make_task(vocabulary, name, ["O", "B-X"], fields, **columns.get(name, {}))
        assert task.metrics and task.metrics[: len(spec.metrics)] == spec.metrics
        meaning = task_fields.declared()["metrics"].meaning
        assert all(f"`{each}`" in meaning for each in task.known_metrics if not each.startswith("accuracy_"))
