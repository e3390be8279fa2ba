"""Plots the metrics of runs from their metrics.jsonl."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epy

from bert_jax.errors import UserError
from bert_jax.io import checks
from bert_jax.plots import figures

with epy.lazy_imports():  # matplotlib takes a second to import
    from matplotlib import ticker


class _Panel(NamedTuple):
    title: str
    metrics: tuple[str, ...]
    kind: str  # "loss", "score" or "other"


# Names in objectives.distillation, which is not imported because it loads jax.
_DISTILLATION = (
    *("logits", "cosine", "embeddings", "hidden", "scores"),
    *("attention", "queries", "keys", "values"),
)
# In drawing order; a panel is drawn if one of its metrics was logged.
_PANELS = (
    _Panel("Masked LM loss", ("mlm_loss",), "loss"),
    _Panel("Masked LM accuracy", ("mlm_accuracy",), "score"),
    _Panel("Causal LM loss", ("clm_loss",), "loss"),
    _Panel("Causal LM accuracy", ("clm_accuracy",), "score"),
    *(_Panel(f"Distillation loss, {name}", (f"{name}_loss",), "loss") for name in _DISTILLATION),
    _Panel("Generator loss", ("generator_loss",), "loss"),
    _Panel("Discriminator loss", ("discriminator_loss",), "loss"),
    _Panel("Generator accuracy", ("generator_accuracy",), "score"),
    _Panel("Recall of replaced tokens", ("discriminator_recall",), "score"),
    _Panel("Loss", ("loss",), "loss"),
    _Panel("Score", ("accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman"), "score"),
    _Panel("Learning rate", ("learning_rate",), "other"),
    _Panel("Next sentence loss", ("nsp_loss",), "loss"),
    _Panel("Next sentence accuracy", ("nsp_accuracy",), "score"),
    _Panel("Tokens per second", ("tokens_per_second",), "other"),
    _Panel("Model FLOPs utilization", ("mfu",), "other"),
    _Panel("Goodput", ("goodput",), "other"),
)
_HELD_OUT = dict(linestyle=":", marker="o", markersize=4, markerfacecolor="white", linewidth=1.2)
# Kinds of rows with held-out metrics: their labels and styles.
_EVALUATIONS = {
    "eval": ("held out", _HELD_OUT),
    "eval_replay": ("held out, replay", _HELD_OUT | dict(linestyle="--", marker="s")),
}


def series(rows: Iterable[dict], kind: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps int64 [N] and finite values float64 [N] of a metric in rows of one kind."""
    points = [
        (row["step"], row[name])
        for row in rows
        if row["kind"] == kind and isinstance(row.get(name), (int, float)) and np.isfinite(row[name])
    ]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return np.asarray(steps, np.int64), np.asarray(values, np.float64)


def plot_metrics(runs: Mapping[str, list[dict]], output: str, title: str = "") -> None:
    """Draws the metrics of runs into a PNG, PDF or SVG file; see `draw_metrics`."""
    checks.check_output_file(output, checks.PICTURES)
    figures.save(draw_metrics(runs, title), output)


def draw_metrics(runs: Mapping[str, list[dict]], title: str = "") -> Any:
    """Returns a figure of the rows of each run's metrics.jsonl, by name; UserError without a known metric."""
    names = {name for rows in runs.values() for row in rows for name in row}
    if names & {"mlm_loss", "clm_loss"}:
        names.discard("loss")  # the sum of losses that have their own panels
    panels = [panel for panel in _PANELS if names.intersection(panel.metrics)]
    if not panels:
        raise UserError(f"nothing to plot: the metrics are only {', '.join(sorted(names))}")

    columns = 3 if len(panels) > 4 else min(2, len(panels))
    figure, axes = figures.grid(len(panels), columns, (4.6, 3.3))
    for axis, panel in zip(axes, panels, strict=True):
        _draw(axis, runs, panel)
    # Panels are compared step by step, and a metric may end early, as mfu does.
    lows, highs = zip(*(axis.get_xlim() for axis in figure.axes), strict=True)
    for axis in figure.axes:
        axis.set_xlim(min(lows), max(highs))
    if title:
        figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    return figure


def _draw(axis, runs, panel):
    rows = [row for of_run in runs.values() for row in of_run]
    logged = [name for name in panel.metrics if any(name in row for row in rows)]
    # Each run has a color; for a single run, each metric has one.
    lines = [(run, logged[0], of_run) for run, of_run in runs.items()]
    if len(runs) == 1:
        label = "{}, train" if len(logged) > 1 else "train"
        lines = [(label.format(name.replace("_", " ")), name, rows) for name in logged]
    labels = {kind: label for kind, (label, _) in _EVALUATIONS.items()}
    for (label, name, some), color in zip(lines, itertools.cycle(figures.COLORS), strict=False):
        steps, values = series(some, "train", name)
        if len(steps):
            smooth = values if panel.kind == "other" else _smooth(values)
            if len(runs) == 1 and smooth is not values:
                axis.plot(steps, values, color=color, alpha=0.22, linewidth=0.8)
            marker = "." if len(steps) == 1 else None
            axis.plot(steps, smooth, color=color, linewidth=1.5, marker=marker, label=label)
        for kind, (_, style) in _EVALUATIONS.items():
            steps, values = series(some, kind, name)
            if len(steps):  # one legend entry explains all lines of a style
                axis.plot(steps, values, color=color, label=labels.pop(kind, None), **style)
    figures.describe(axis, panel.title, "step")
    axis.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True, min_n_ticks=1))
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(lambda x, _: f"{x / 1e6:.6g}M" if abs(x) >= 1e6 else f"{x:,.10g}")
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.margins(x=0.02)
    if panel.kind == "other":
        axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
    if (panel.kind != "other" or len(runs) > 1) and axis.get_legend_handles_labels()[0]:
        # These corners are free because losses fall and scores rise.
        corner = "upper right" if panel.kind == "loss" else "lower right"
        axis.legend(fontsize=8, framealpha=0.8, edgecolor="none", loc=corner)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Returns a moving average [N] of values [N] over 1/20 of the curve; fewer than 20 are unchanged."""
    if len(values) < 20:
        return values
    half = max(1, len(values) // 40)
    # Differences to the first value, so that values that are all equal stay equal.
    total = np.concatenate([[0.0], np.cumsum(values - values[0])])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return values[0] + (total[high] - total[low]) / (high - low)
