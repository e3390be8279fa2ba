"""Compares the order of the arms by published scores with their order by the scores found here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from etils import epy

from bert_jax.settings.experiments import Comparison

with epy.lazy_imports():
    from scipy import stats

SIGNIFICANCE = 0.05  # level of Welch's two-sided t-test


def compare(comparison: Comparison, found: Mapping[str, Sequence[float]]) -> tuple[str, str, str, str] | None:
    """Returns a row of the table of published and found orders.

    Args:
        comparison: the published scores.
        found: scores of the runs of each arm; arms without runs are ignored.

    Returns:
        Name of the comparison, order of the arms by the published scores, their order by the means here, and
        the counts of `agreement` as text. None if fewer than two arms have runs.
    """
    runs = {arm: found[arm] for arm in comparison.published if found.get(arm)}
    if len(runs) < 2:
        return None
    published = {arm: comparison.published[arm] for arm in runs}
    means = {arm: float(np.mean(values)) for arm, values in runs.items()}
    same, opposite, unclear = agreement(published, runs)
    return (
        comparison.name,
        in_order(published, lambda a, b: published[a] != published[b]),
        in_order(means, lambda a, b: differ(runs[a], runs[b])),
        f"{same} as published, {opposite} reversed, {unclear} not significant",
    )


def agreement(published: Mapping[str, float], found: Mapping[str, Sequence[float]]) -> tuple[int, int, int]:
    """Returns how many pairs of arms are in the published order, in reverse order, and not significant.

    Pairs with equal published scores are not counted.
    """
    same = opposite = unclear = 0
    for a, b in itertools.combinations(found, 2):
        if published[a] == published[b]:
            continue
        if not differ(found[a], found[b]):
            unclear += 1
        elif (published[a] > published[b]) == (np.mean(found[a]) > np.mean(found[b])):
            same += 1
        else:
            opposite += 1
    return same, opposite, unclear


def differ(a: Sequence[float], b: Sequence[float]) -> bool:
    """Returns whether the means of two arms differ significantly; never for an arm with a single run."""
    if min(len(a), len(b)) < 2:
        return False
    if max(np.ptp(a), np.ptp(b)) == 0:  # the test would divide 0 by 0
        return a[0] != b[0]
    of_a, of_b = ((np.mean(x), np.std(x, ddof=1), len(x)) for x in (a, b))
    return bool(stats.ttest_ind_from_stats(*of_a, *of_b, equal_var=False).pvalue < SIGNIFICANCE)


def in_order(scores: Mapping[str, float], apart: Callable[[str, str], bool]) -> str:
    """Returns the arms, largest score first, with ">" between neighbors that are `apart`, else "≈"."""
    arms = sorted(scores, key=lambda arm: -scores[arm])
    signs = [" > " if apart(a, b) else " ≈ " for a, b in itertools.pairwise(arms)]
    return "".join(itertools.chain(*itertools.zip_longest(arms, signs, fillvalue="")))
