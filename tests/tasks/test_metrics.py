import numpy as np
import pytest

from bert_jax.tasks import metrics


def test_golden_values():
    # 3 true positives, 1 false positive, 2 false negatives, 2 true negatives.
    predictions = np.array([1, 1, 1, 1, 0, 0, 0, 0])
    targets = np.array([1, 1, 1, 0, 1, 1, 0, 0])
    scores = {name: score(predictions, targets) for name, score in metrics.CLASSIFICATION.items()}
    assert scores["accuracy"] == 5 / 8
    assert metrics.f1(predictions, targets) == pytest.approx(6 / 9)  # 2 tp / (2 tp + fp + fn)
    assert scores["f1_macro"] == pytest.approx((6 / 9 + 4 / 7) / 2)
    assert scores["matthews"] == pytest.approx((3 * 2 - 1 * 2) / np.sqrt(4 * 5 * 3 * 4))


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
@pytest.mark.parametrize(
    "predictions, targets", [([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [3.0, 3.0]), ([1.0], [2.0])]
)
def test_constant_correlations_are_zero(predictions, targets):
    assert metrics.pearson(np.array(predictions), np.array(targets)) == 0
    assert metrics.spearman(np.array(predictions), np.array(targets)) == 0
