"""Shared by all plots: figures without pyplot, so that the caller's backend is not changed, and colors."""

from __future__ import annotations

from typing import Any

from bert_jax.errors import optional_imports

with optional_imports("plots"):
    from matplotlib import figure as matplotlib_figure

# Color-blind safe (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def subplots(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """Returns a matplotlib figure and its axes, an array [rows, columns].

    Args:
        size: width and height in inches.
        rows: number of rows of axes.
        columns: number of columns of axes.

    Raises:
        UserError: matplotlib is not installed.
    """
    figure = matplotlib_figure.Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def describe(axis: Any, title: str, x_label: str, y_label: str = "", boxed: bool = False) -> None:
    """Gives axes a title and labels; without a box, only the left and the bottom line are drawn."""
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.spines[["top", "right"]].set_visible(boxed)
