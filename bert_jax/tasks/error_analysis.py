"""Reports for error analysis after fine-tuning: the order of the mistakes, and plots of the scores."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.io import atomic, files, fonts
from bert_jax.io.wording import counted
from bert_jax.plots import figures

_MOST_LABELS = 40  # a plot with more labels would be illegible
_DPI = 130


def surest_first(right: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """Returns the indices of the wrong ones of N predictions, int64, the most confident first."""
    wrong = np.flatnonzero(~right)
    return wrong[np.argsort(-confidence[wrong], kind="stable")]


@dataclasses.dataclass(frozen=True)
class Confusions:
    """A confusion matrix.

    Attributes:
        counts: int64 [C, C]; how often an example of a label (row) had a prediction (column).
        labels: the C label names.
        unit: what is counted.
    """

    counts: np.ndarray
    labels: Sequence[str]
    unit: str = "examples"

    @classmethod
    def of(
        cls, targets: np.ndarray, predicted: np.ndarray, labels: Sequence[str], unit: str = "examples"
    ) -> Confusions | None:
        """Returns the matrix of the numbers of the true and of the predicted labels, both [N].

        It is None for more than 40 labels, of which a plot would be illegible.
        """
        if len(labels) > _MOST_LABELS:
            return None
        counts = np.zeros((len(labels), len(labels)), np.int64)
        np.add.at(counts, (targets, predicted), 1)
        return cls(counts, labels, unit)

    def png(self) -> bytes:
        """Returns a plot of the matrix as the content of a PNG file."""
        return fonts.render(_drawn(self), format="png", dpi=_DPI)


def plot_confusions(path: files.PathLike, confusions: Confusions) -> None:
    """Plots a confusion matrix."""
    atomic.save_figure(_drawn(confusions), path, _DPI)


def _drawn(confusions: Confusions) -> Any:
    counts, labels = confusions.counts, confusions.labels
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    size = min(14.0, 3.0 + 0.55 * len(labels))
    title = f"{counts.sum():,} {confusions.unit}, {np.trace(counts) / max(1, counts.sum()):.1%} right"
    figure, ((axis,),) = figures.subplots((size + 0.8, size))
    figures.describe(axis, title, "predicted", "true label", boxed=True)
    colors = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    scale = figure.colorbar(colors, ax=axis, format="{x:.0%}", label="share of the row", shrink=0.8)
    scale.outline.set_visible(False)
    names = [_short(name) for name in labels]
    turned = {"rotation": 45, "ha": "right"} if max(map(len, names)) > 3 else {}
    axis.set_xticks(range(len(labels)), names, **turned)
    axis.set_yticks(range(len(labels)), names)
    if len(labels) <= 20:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 0.5 else "0.2"
            axis.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=9)
    return figure


def plot_numbers(
    path: files.PathLike,
    targets: np.ndarray,
    predicted: np.ndarray,
    what: str = "predicted",
    same_scale: bool = True,
) -> None:
    """Plots predicted numbers against the labels, with the diagonal if both have the same scale."""
    with _saved_axes(path, (4.6, 4.4), "label", what, counted(len(targets), "example")) as axis:
        figures.number(axis.xaxis, most=5)
        figures.number(axis.yaxis)
        axis.scatter(targets, predicted, s=8, alpha=0.35, color="#0072B2", edgecolors="none")
        if same_scale:
            ends = [min(targets.min(), predicted.min()), max(targets.max(), predicted.max())]
            axis.plot(ends, ends, color="0.4", linestyle="--", linewidth=1, label=f"{what} = label")
            axis.legend(frameon=False)


def plot_confidence(
    path: files.PathLike,
    confidence: np.ndarray,
    right: np.ndarray,
    unit: str,
    what: str = "probability of what was predicted",
) -> None:
    """Plots a histogram of the confidence, from 0 to 1, of correct and of wrong predictions."""
    title = f"{len(right):,} {unit}, {np.mean(right):.1%} right"
    with _saved_axes(path, (5.2, 3.6), what, unit, title) as axis:
        axis.hist(
            [confidence[right], confidence[~right]],
            np.linspace(0, 1, 21),
            stacked=True,
            color=["#0072B2", "#D55E00"],
            label=[f"right ({right.sum():,})", f"wrong ({(~right).sum():,})"],
            edgecolor="white",
            linewidth=0.5,
        )
        axis.set_xlim(0, 1)
        figures.number(axis.yaxis)
        axis.legend(frameon=False)


def plot_by_label(path: files.PathLike, scores: Sequence[float], labels: Sequence[str], metric: str) -> None:
    """Plots a score from 0 to 1 for each label. Draws nothing for more than 40 labels."""
    if len(labels) > _MOST_LABELS:
        return
    with _saved_axes(path, (5.2, 1.2 + 0.28 * len(labels)), metric) as axis:
        axis.barh(range(len(labels)), scores, color="#0072B2")
        axis.set_yticks(range(len(labels)), [_short(name) for name in labels])
        axis.invert_yaxis()
        axis.set_xlim(0, 1)
        for row, score in enumerate(scores):
            beside = score < 0.85
            axis.text(
                score + (0.01 if beside else -0.01),
                row,
                f"{score:.3f}",
                ha="left" if beside else "right",
                va="center",
                color="0.2" if beside else "white",
                fontsize=9,
            )


def _short(name):
    return name if len(name) <= 20 else name[:19] + "\u2026"


@contextlib.contextmanager
def _saved_axes(
    path: files.PathLike,
    size: tuple[float, float],
    x_label: str,
    y_label: str = "",
    title: str = "",
) -> Iterator[Any]:
    figure, ((axes,),) = figures.subplots(size)
    figures.describe(axes, title, x_label, y_label)
    yield axes
    atomic.save_figure(figure, path, _DPI)
