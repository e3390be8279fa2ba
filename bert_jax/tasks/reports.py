"""What a person looks at after a fine-tuning: the mistakes, and a picture of the scores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.tasks.reading import Examples

_MOST_LABELS = 40  # of a picture of confusions; more could not be read


def write_errors(
    path: os.PathLike,
    examples: Examples,
    targets: np.ndarray,
    outputs: np.ndarray,
    labels: Sequence[str] | None,
) -> None:
    """Writes the examples that were predicted wrong, the surest first; of a regression all, the furthest
    first.

    Args:
      path: a TSV of line, label, prediction, confidence (of a regression: difference) and the texts.
      targets: [N] label numbers, or numbers.
      outputs: float32 [N, C] probabilities, or [N, 1] numbers.
    """
    if labels is None:
        order = np.argsort(-np.abs(outputs[:, 0] - targets), kind="stable")
        rows = [
            (f"{targets[i]:g}", f"{outputs[i, 0]:.4f}", f"{outputs[i, 0] - targets[i]:+.4f}") for i in order
        ]
    else:
        predicted = np.argmax(outputs, axis=-1)
        wrong = np.flatnonzero(predicted != targets)
        order = wrong[np.argsort(-outputs[wrong, predicted[wrong]], kind="stable")]
        rows = [(labels[targets[i]], labels[predicted[i]], f"{outputs[i, predicted[i]]:.4f}") for i in order]
    measure = "difference" if labels is None else "confidence"
    lines = ["\t".join(["line", "label", "prediction", measure, "text_a", "text_b"])]
    for i, row in zip(order, rows, strict=True):
        texts = [examples.texts_a[i], examples.texts_b[i] if examples.texts_b else ""]
        lines.append("\t".join([str(examples.lines[i]), *row, *(" ".join(text.split()) for text in texts)]))
    temporary = Path(f"{os.fspath(path)}.tmp")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(path)


def plot_confusions(
    path: os.PathLike, targets: np.ndarray, predicted: np.ndarray, labels: Sequence[str]
) -> None:
    """Draws how many examples of each label were given which. Nothing is drawn for over 40 labels."""
    if len(labels) > _MOST_LABELS:
        return
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (targets, predicted), 1)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    size = min(14.0, 3.0 + 0.55 * len(labels))
    with _figure(path, (size, size)) as axis:
        axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        names = [name if len(name) <= 20 else name[:19] + "\u2026" for name in labels]
        axis.set_xticks(range(len(labels)), names, rotation=45, ha="right")
        axis.set_yticks(range(len(labels)), names)
        axis.set_xlabel("predicted")
        axis.set_ylabel("label")
        if len(labels) <= 20:
            for (row, column), count in np.ndenumerate(counts):
                colour = "white" if shares[row, column] > 0.5 else "0.2"
                axis.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=9)
        right = np.trace(counts) / max(1, counts.sum())
        axis.set_title(f"{counts.sum():,} examples, {right:.1%} right", fontsize=11, loc="left")


def plot_numbers(path: os.PathLike, targets: np.ndarray, predicted: np.ndarray) -> None:
    """Draws the numbers predicted over those that are right."""
    with _figure(path, (4.6, 4.4)) as axis:
        axis.scatter(targets, predicted, s=8, alpha=0.35, color="#0072B2", edgecolors="none")
        ends = [min(targets.min(), predicted.min()), max(targets.max(), predicted.max())]
        axis.plot(ends, ends, color="0.4", linestyle="--", linewidth=1)
        axis.set_xlabel("label")
        axis.set_ylabel("predicted")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_title(f"{len(targets):,} examples", fontsize=11, loc="left")


class _figure:
    """One pair of axes, which are saved when the block ends."""

    def __init__(self, path: os.PathLike, size: tuple[float, float]):
        self._path, self._size = path, size

    def __enter__(self):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        self._figure, axis = plt.subplots(figsize=self._size, layout="constrained")
        return axis

    def __exit__(self, kind, *unused):
        import matplotlib.pyplot as plt

        try:
            if kind is None:
                self._figure.savefig(self._path, dpi=130)
        finally:
            plt.close(self._figure)
