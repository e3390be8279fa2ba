"""The order that a paper found among the arms of an experiment, beside the order found here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from etils import epy

from bert_jax.settings.experiments import Comparison

with epy.lazy_imports():
    from scipy import stats

SIGNIFICANCE = 0.05  # of Welch's test, two-sided


def compare(comparison: Comparison, found: Mapping[str, Sequence[float]]) -> tuple[str, str, str, str] | None:
    """Returns how the order of a paper's scores compares with that of the scores here.

    Args:
        comparison: what the paper found.
        found: scores of the runs of each arm; arms without runs are left out.

    Returns:
        What the paper measures, its order, the order of the means here, and how many pairs of arms are in the
        paper's order, against it, and not told apart. None if fewer than two arms have runs.
    """
    runs = {arm: found[arm] for arm in comparison.published if found.get(arm)}
    if len(runs) < 2:
        return None
    published = {arm: comparison.published[arm] for arm in runs}
    means = {arm: float(np.mean(values)) for arm, values in runs.items()}
    agree, against, unknown = agreement(published, runs)
    return (
        comparison.name,
        in_order(published, lambda a, b: published[a] != published[b]),
        in_order(means, lambda a, b: differ(runs[a], runs[b])),
        f"{agree} as in the paper, {against} against it, {unknown} not told apart",
    )


def agreement(published: Mapping[str, float], found: Mapping[str, Sequence[float]]) -> tuple[int, int, int]:
    """Returns how many pairs of arms are in the published order, in the opposite one, and not told apart.

    Pairs with equal published scores are left out.
    """
    agree = against = unknown = 0
    for a, b in itertools.combinations(found, 2):
        if published[a] == published[b]:
            continue
        if not differ(found[a], found[b]):
            unknown += 1
        elif (published[a] > published[b]) == (np.mean(found[a]) > np.mean(found[b])):
            agree += 1
        else:
            against += 1
    return agree, against, unknown


def differ(a: Sequence[float], b: Sequence[float]) -> bool:
    """Returns whether the means of two arms differ by Welch's test at 5%; single runs never do."""
    if min(len(a), len(b)) < 2:
        return False
    if max(np.ptp(a), np.ptp(b)) == 0:  # no deviation, of which the test would make 0 / 0
        return a[0] != b[0]
    of_a, of_b = ((np.mean(x), np.std(x, ddof=1), len(x)) for x in (a, b))
    return bool(stats.ttest_ind_from_stats(*of_a, *of_b, equal_var=False).pvalue < SIGNIFICANCE)


def in_order(scores: Mapping[str, float], apart: Callable[[str, str], bool]) -> str:
    """Returns the arms, largest score first, with ">" between two that are apart, else "≈"."""
    arms = sorted(scores, key=lambda arm: -scores[arm])
    signs = [" > " if apart(a, b) else " ≈ " for a, b in itertools.pairwise(arms)]
    return "".join(itertools.chain(*itertools.zip_longest(arms, signs, fillvalue="")))
