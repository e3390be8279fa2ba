"""Plots the contents of records: sequence lengths, and how well sequences fill the rows."""

import numpy as np

from bert_jax.data.inspection import Report
from bert_jax.errors import UserError
from bert_jax.io import atomic
from bert_jax.io.wording import counted
from bert_jax.plots import figures

_COLORS = (figures.COLORS[0], figures.COLORS[4])
_BINS = 32


def plot_records(report: Report, output: str) -> None:
    """Draws histograms of sequence length, row fill and sequences per row, for each split.

    Args:
        report: report on a record directory, from `inspection.inspect_records`.
        output: path of the plot; its suffix selects the format.

    Raises:
        UserError: the report has no packed rows.
    """
    splits = {
        name: facts
        for name, facts in report.facts.items()
        if isinstance(facts, dict) and facts.get("rows") and "row_lengths" in facts
    }
    if not splits:
        raise UserError(f"--plot={output}: {report.path} holds no packed rows to draw")
    figure, ((*axes,),) = figures.subplots((13.2, 3.6), columns=3)
    length = len(next(iter(splits.values()))["row_lengths"]) - 1
    for number, (name, facts) in enumerate(splits.items()):
        style = dict(color=_COLORS[number % len(_COLORS)], label=f"{name}, {counted(facts['rows'], 'row')}")
        _steps(axes[0], facts["sequence_lengths"], length, 1, **style)
        _steps(axes[1], facts["row_lengths"], length, 100 / length, **style)
        _bars(axes[2], facts["sequences_per_row"], number, len(splits), **style)
    for axis, title, unit in zip(
        axes,
        ("Sequence length", "Row fill", "Sequences per row"),
        ("tokens", f"% of {length} tokens", "sequences"),
        strict=True,
    ):
        figures.describe(axis, title, unit)
        figures.number(axis.xaxis, most=10, whole=True)
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
        axis.grid(axis="y", alpha=0.25, linewidth=0.6)
    axes[0].set_ylabel("share")
    figure.legend(
        *axes[2].get_legend_handles_labels(), loc="upper right", ncols=len(splits), fontsize=8, frameon=False
    )
    figure.suptitle(report.path, fontsize=12, x=0.01, ha="left")
    atomic.save_figure(figure, output, dpi=150)


def _steps(axis, counts: list[int], length: int, scale: float, color: str, label: str) -> None:
    """Draws a histogram in bins of equal width, where `counts[i]` items have size i."""
    edges = np.unique(np.linspace(1, length + 1, min(_BINS, length) + 1).astype(int))
    sums = np.add.reduceat(counts, edges[:-1])
    shares = 100 * sums / max(1, sums.sum())
    axis.stairs(shares, (edges - 1) * scale, fill=True, color=color, alpha=0.35)
    axis.stairs(shares, (edges - 1) * scale, color=color, linewidth=1.4, label=label)


def _bars(axis, counts: list[int], number: int, splits: int, color: str, label: str) -> None:
    places = np.arange(1, len(counts))
    width = 0.8 / splits
    shares = 100 * np.array(counts[1:]) / max(1, sum(counts))
    axis.bar(places - 0.4 + (number + 0.5) * width, shares, width, color=color, label=label)
