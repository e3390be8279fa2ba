"""Shared by all plots: figures without pyplot, so that the caller's backend is not changed, and colors."""

from __future__ import annotations

import functools
from typing import Any

from etils import epy

with epy.lazy_imports():  # matplotlib takes a second to import
    from matplotlib import figure as matplotlib_figure
    from matplotlib import ticker

# Color-blind safe (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def subplots(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """Returns a matplotlib figure and its axes, an array [rows, columns].

    Args:
        size: width and height in inches.
        rows: number of rows of axes.
        columns: number of columns of axes.
    """
    figure = matplotlib_figure.Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def describe(axis: Any, title: str, x_label: str, y_label: str = "", boxed: bool = False) -> None:
    """Gives axes a title and labels; without a box, only the left and the bottom line are drawn."""
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.spines[["top", "right"]].set_visible(boxed)


def number(axis: Any, most: int = 0, whole: bool = False) -> None:
    """Gives one axis short labels of numbers, such as 25,000, 1.5M, 0.25 and 2e-4, without a common offset.

    Args:
        axis: `axes.xaxis` or `axes.yaxis`.
        most: the number of intervals between ticks at most; 0 to keep the ticks. The labels of a horizontal
            axis need a limit, or else they overlap.
        whole: whether the ticks are whole numbers. It needs `most`.
    """
    if most:
        least = 1 if whole else 2  # two would be fractions where one whole number is shown
        locator = ticker.MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=whole, min_n_ticks=least)
        axis.set_major_locator(locator)
    axis.set_major_formatter(functools.partial(_tick, axis))


def _tick(axis: Any, value: float, place: int | None) -> str:
    """Returns the label of a tick. All labels of an axis have the same form."""
    low, high = axis.get_view_interval()
    ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    largest = max(map(abs, ticks), default=0.0)
    if abs(value) < 1e-9 * largest:
        return "0"
    if largest >= 1e6:
        return f"{value / 1e6:.6g}M"
    if 0 < largest < 1e-3:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    between = ticks[1] - ticks[0] if len(ticks) > 1 else largest
    decimals = next(n for n in range(16) if n == 15 or abs(between * 10**n - round(between * 10**n)) < 1e-6)
    return f"{value:,.{decimals}f}"
