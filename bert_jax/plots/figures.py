"""What the pictures share: figures without pyplot, which leave the caller's backend alone, and colors."""

from __future__ import annotations

from typing import Any

from bert_jax.errors import optional_imports

with optional_imports("plots"):
    from matplotlib import figure as matplotlib_figure

# Safe for the color-blind (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def subplots(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """Returns a matplotlib figure and its axes, an array [rows, columns].

    Args:
        size: the width and the height in inches.
        rows: the number of rows of axes.
        columns: the number of columns of axes.

    Raises:
        UserError: matplotlib is not installed.
    """
    figure = matplotlib_figure.Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)
