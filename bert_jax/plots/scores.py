"""Plots the scores of several runs of each of several arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.io import atomic, checks
from bert_jax.plots import figures

_COLUMNS = 3


def plot_scores(panels: Mapping[str, Mapping[str, Sequence[float]]], output: str, title: str = "") -> None:
    """Draws one panel for each score: a dot for each run of an arm, and a line at their mean.

    Args:
        panels: {score: {arm: values of its runs}}.
        output: path of the plot; its suffix selects the format.
        title: title of the plot.

    Raises:
        UserError: the format is not supported.
    """
    checks.check_output_file(output, checks.PICTURES)
    arms = list(dict.fromkeys(arm for of_arms in panels.values() for arm in of_arms))
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    height = 0.9 + 0.3 * len(arms)
    figure, axes = figures.subplots((4.6 * columns, height * lines + 0.4), lines, columns)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (name, of_arms) in zip(axes.flat, panels.items(), strict=False):
        for number, arm in enumerate(arms):
            values, color = of_arms.get(arm, ()), figures.COLORS[number % len(figures.COLORS)]
            if values:
                axis.plot(values, [number] * len(values), "o", color=color, markersize=4, alpha=0.6)
                axis.vlines(np.mean(values), number - 0.35, number + 0.35, color=color, linewidth=2)
        figures.describe(axis, name, "")
        figures.number(axis.xaxis, most=4)
        axis.set_yticks(range(len(arms)), arms, fontsize=8)
        axis.set_ylim(len(arms) - 0.4, -0.6)
        axis.grid(axis="x", alpha=0.25, linewidth=0.6)
        axis.margins(x=0.08)
    if title:
        figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    atomic.save_figure(figure, output, dpi=150)
