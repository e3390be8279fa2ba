"""Scores of a whole evaluation set, as the benchmarks define them: numpy arrays in, floats out."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError, check_installed, optional_imports

with optional_imports("metrics"):
    from scipy import stats
    from sklearn import metrics

_BY_SCIKIT_LEARN = frozenset({"f1", "f1_micro", "f1_macro", "matthews"})


def accuracy(predictions: np.ndarray, targets: np.ndarray) -> float:
    """The share of int arrays' [N] entries that agree."""
    return float(np.mean(predictions == targets))


def f1(predictions: np.ndarray, targets: np.ndarray) -> float:
    """F1 of label 1 of two (GLUE's MRPC and QQP); 0 when there is neither a positive nor a predicted
    positive.
    """
    return float(metrics.f1_score(targets, predictions, pos_label=1, average="binary", zero_division=0.0))


def f1_macro(predictions: np.ndarray, targets: np.ndarray) -> float:
    """The unweighted mean of every label's F1, over the labels that occur in either array."""
    return float(metrics.f1_score(targets, predictions, average="macro", zero_division=0.0))


def matthews(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Matthews' correlation (GLUE's CoLA); 0 when either array holds one class only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of a single class; 0 is the defined answer
        return float(metrics.matthews_corrcoef(targets, predictions))


def pearson(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Pearson's correlation of float arrays [N]; 0 when either is constant."""
    return _correlation(stats.pearsonr, predictions, targets)


def spearman(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Spearman's rank correlation of float arrays [N]; 0 when either is constant."""
    return _correlation(stats.spearmanr, predictions, targets)


def mean_squared_error(predictions: np.ndarray, targets: np.ndarray) -> float:
    """The mean of the squared differences of float arrays [N]."""
    difference = np.asarray(predictions, np.float64) - np.asarray(targets, np.float64)
    return float(np.mean(difference**2))


def _correlation(function, predictions, targets):
    predictions, targets = np.asarray(predictions, np.float64), np.asarray(targets, np.float64)
    if len(targets) < 2 or np.ptp(predictions) == 0 or np.ptp(targets) == 0:
        return 0.0
    return float(function(predictions, targets)[0])


Metric = Callable[[np.ndarray, np.ndarray], float]

CLASSIFICATION: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "f1_macro": f1_macro,
    "matthews": matthews,
}
REGRESSION: dict[str, Metric] = {
    "pearson": pearson,
    "spearman": spearman,
    "mean_squared_error": mean_squared_error,
}
LOWER_IS_BETTER = frozenset({"mean_squared_error", "loss"})


def parse(text: str, known: Collection[str], what: str) -> tuple[str, ...]:
    """Returns the metrics that a text names, with commas between; all `known` ones if it is empty.

    Args:
        text: such as `config.metrics`.
        known: the metrics that there are.
        what: is scored, for the message.

    Raises:
        UserError: a name that is not known, or one whose package is not installed.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in known:
            raise UserError(f"metrics: {name!r} is no metric of {what}; expected some of {', '.join(known)}")
    names = names or tuple(known)
    check_packages(names)
    return names


def check_packages(names: Sequence[str]) -> None:
    """Raises a UserError, before any training, if a metric needs scikit-learn and it is not installed."""
    for name in names:
        if name in _BY_SCIKIT_LEARN:
            check_installed("sklearn", "metrics", f"the metric {name}")


def score(
    names: Sequence[str], table: Mapping[str, Metric], predictions: np.ndarray, targets: np.ndarray
) -> dict[str, float]:
    """Returns every named metric of [N] predictions (label numbers, or numbers) against [N] targets.

    Args:
        names: of metrics.
        table: the functions by name: `CLASSIFICATION` or `REGRESSION`.
        predictions: [N].
        targets: [N].
    """
    return {name: table[name](np.asarray(predictions), np.asarray(targets)) for name in names}
