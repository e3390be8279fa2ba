"""Metrics over a whole evaluation set, as defined by the benchmarks; they map numpy arrays to floats."""

import warnings
from collections.abc import Callable

import numpy as np
from etils import epy

with epy.lazy_imports():  # they take seconds to import
    from scipy import stats
    from sklearn import metrics

Metric = Callable[[np.ndarray, np.ndarray], float]  # of predictions and targets


def accuracy(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Returns the fraction of entries that agree in two int arrays [N]."""
    return float(np.mean(predictions == targets))


def f1(predictions: np.ndarray, targets: np.ndarray, positive: int = 1) -> float:
    """Returns the F1 of the positive label, by default label 1, as for MRPC and QQP in GLUE.

    It is 0 if there is neither a positive example nor a positive prediction.
    """
    # The arrays are made binary because the targets may have labels that training lacks.
    return float(metrics.f1_score(targets == positive, predictions == positive, zero_division=0.0))


def f1_macro(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Returns the unweighted mean of the F1 of every label that occurs in either array."""
    return float(metrics.f1_score(targets, predictions, average="macro", zero_division=0.0))


def matthews(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Returns Matthews' correlation, as for CoLA in GLUE; 0 when either array holds only one class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of a single class, for which 0 is correct here
        return float(metrics.matthews_corrcoef(targets, predictions))


def pearson(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Returns Pearson's correlation of two float arrays [N]; 0 when either is constant."""
    return _correlation(stats.pearsonr, predictions, targets)


def spearman(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Returns Spearman's rank correlation of two float arrays [N]; 0 when either is constant."""
    return _correlation(stats.spearmanr, predictions, targets)


def mean_squared_error(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Returns the mean squared difference of two float arrays [N]."""
    difference = np.asarray(predictions, np.float64) - np.asarray(targets, np.float64)
    return float(np.mean(difference**2))


def discounts(ranks: np.ndarray) -> np.ndarray:
    """Returns the discount factors of nDCG, float64 [N], for ranks from 1, int [N]."""
    return 1 / np.log2(1 + ranks)


def _correlation(function, predictions, targets):
    predictions, targets = np.asarray(predictions, np.float64), np.asarray(targets, np.float64)
    if len(targets) < 2 or np.ptp(predictions) == 0 or np.ptp(targets) == 0:
        return 0.0
    return float(function(predictions, targets)[0])


CLASSIFICATION: dict[str, Metric] = {"accuracy": accuracy, "f1_macro": f1_macro, "matthews": matthews}
REGRESSION: dict[str, Metric] = {
    "pearson": pearson,
    "spearman": spearman,
    "mean_squared_error": mean_squared_error,
}
SIMILARITY: dict[str, Metric] = {"spearman": spearman, "pearson": pearson}
RANKING: dict[str, Metric] = {  # inputs are ranks, from 1, of the one relevant text per list; no targets
    "mrr": lambda ranks, targets: float(np.mean(1 / ranks)),
    "recall1": lambda ranks, targets: float(np.mean(ranks <= 1)),
    "recall10": lambda ranks, targets: float(np.mean(ranks <= 10)),
    "ndcg10": lambda ranks, targets: float(np.mean((ranks <= 10) * discounts(ranks))),
}
LOWER_IS_BETTER = frozenset({"mean_squared_error", "loss", "mlm_loss", "clm_loss"})
