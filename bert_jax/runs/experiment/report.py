"""The table and the pictures of an experiment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.inference import minimal_pairs
from bert_jax.io import atomic, markdown
from bert_jax.io.wording import counted
from bert_jax.plots import curves, scores
from bert_jax.runs.experiment import orders
from bert_jax.runs.experiment.runner import Runner
from bert_jax.runs.experiment.step_times import spent_by_step
from bert_jax.settings.experiments import PRETRAINING, Comparison, Measure, MinimalPairs
from bert_jax.tasks import metrics
from bert_jax.training.metrics.metrics_writer import read_metrics

TABLE_FILE, SCORES_FILE, CURVES_FILE = "README.md", "scores.png", "curves.png"
ORDERS = (
    "Best first; `>` means that two means differ significantly by Welch's t-test at "
    f"{orders.SIGNIFICANCE:.0%}, without correction for multiple comparisons, and `≈` that they do not."
)


def write(runner: Runner) -> str:
    """Writes the table and the pictures of all runs so far, and returns the table as Markdown."""
    experiment = runner.experiment
    parts = [f"# {experiment.title}", *_tables(runner)]
    if experiment.published:
        parts.append(experiment.published.strip())
    text = "\n\n".join(parts) + "\n"
    atomic.write_text(os.path.join(runner.directory, TABLE_FILE), text)
    _draw(runner)
    return text


def columns(runner: Runner) -> list[tuple[str, str]]:
    """Returns (measure, metric) of each column of scores, in the order of the measures.

    Minimal pairs have one column, their mean; a second table has their phenomena.
    """
    return [
        (name, metric)
        for measure in runner.experiment.measures
        for name, metric in _metrics(runner, measure)
        if not isinstance(measure, MinimalPairs) or metric == minimal_pairs.ALL
    ]


def _metrics(runner: Runner, measure: Measure) -> dict[tuple[str, str], None]:
    found: dict[tuple[str, str], None] = {}
    for arm in runner.experiment.arms:
        for metric in runner.results.over_seeds(arm.name, measure.name):
            found[measure.name, metric] = None
    return found


def _tables(runner: Runner) -> Iterator[str]:
    arms = [arm.name for arm in runner.experiment.arms]
    if runner.experiment.budget:
        yield _costs(runner, arms)
    yield _scores(runner, arms, columns(runner))
    if most := runner.experiment.train_rows:
        yield f"Fine-tunings train on the first {counted(most, 'row')} of their data."
    for measure in runner.experiment.measures:
        if isinstance(measure, MinimalPairs):
            yield _scores(runner, arms, list(_metrics(runner, measure)))
    if equal := _at_equal_tokens(runner, arms):
        yield equal
    compared = [orders.compare(one, _runs(runner, one)) for one in runner.experiment.comparisons]
    if rows := [row for row in compared if row]:
        header = ["published", "order of the arms", "order found", "pairs of arms"]
        yield f"{markdown.table(header, rows)}\n\n{ORDERS}"


def _runs(runner: Runner, comparison: Comparison) -> dict[str, list[float]]:
    """Returns, for each arm of a comparison, the scores of its runs, averaged over the measures.

    Losses and errors are negated, so that a larger score is always better.
    """
    found = {}
    for arm in comparison.published:
        values = []
        for measure in comparison.measures:
            scores = runner.results.over_seeds(arm, measure)
            metric = comparison.metric or next(iter(scores), "")
            sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
            values.append([sign * score for score in scores.get(metric, [])])
        found[arm] = [float(np.mean(run)) for run in zip(*values, strict=False)]
    return found


def _costs(runner: Runner, arms: Sequence[str]) -> str:
    rows = []
    for arm in arms:
        spent = runner.results.over_seeds(arm, PRETRAINING)
        if not spent:
            continue
        seconds = f"{spent['seconds'][0]:,.0f}" if "seconds" in spent else ""
        rows.append(
            [
                arm,
                f"{spent['steps'][0]:,.0f}",
                f"{spent['tokens'][0] / 1e6:,.2f}",
                seconds,
                f"{np.median(spent['wall_seconds']):,.0f}",
            ]
        )
    header = ["arm", "steps", "million tokens", "seconds, as timed before", "seconds, as run"]
    return markdown.table(header, rows)


def _scores(runner: Runner, arms: Sequence[str], wanted: Sequence[tuple[str, str]]) -> str:
    """Returns the table of means and, with several seeds, standard deviations."""
    rows = []
    for arm in arms:
        cells = [mean(runner.results.over_seeds(arm, measure).get(metric, [])) for measure, metric in wanted]
        runs = max(
            (len(runner.results.over_seeds(arm, measure).get(metric, [])) for measure, metric in wanted),
            default=0,
        )
        rows.append([arm, str(runs), *cells])
    return markdown.table(["arm", "runs", *(f"{measure}: {metric}" for measure, metric in wanted)], rows)


def mean(values: Sequence[float]) -> str:
    """Returns the mean and, for several values, the sample standard deviation, as text."""
    if not values:
        return ""
    deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{deviation}"


def _at_equal_tokens(runner: Runner, arms: Sequence[str]) -> str:
    """Returns the held-out loss of each arm after as many tokens as the arm with the fewest has seen.

    The losses are interpolated between the evaluations of pre-training. The learning rate of an arm that
    sees more tokens has not decayed at that point, which is to its disadvantage.
    """
    found = {}
    for arm in arms:
        if not (runner.experiment.arm(arm).pretrain and runner.has_model(arm, 0)):
            continue
        directory = runner.model(arm, 0)
        lines = [line for line in read_metrics(directory, "eval") if "mlm_loss" in line]
        if lines:
            steps, _, tokens = spent_by_step(directory)
            seen = np.interp([line["step"] for line in lines], [0, *steps], [0.0, *tokens])
            found[arm] = seen, [line["mlm_loss"] for line in lines]
    if len(found) < 2:
        return ""
    least = min(seen[-1] for seen, _ in found.values())
    rows = [
        [arm, f"{np.interp(least, seen, values):.3f}", f"{values[-1]:.3f}"]
        for arm, (seen, values) in found.items()
    ]
    title = f"held-out masked LM loss after {least / 1e6:,.2f} million tokens"
    return markdown.table(["arm, first seed", title, "at the end"], rows)


def _draw(runner: Runner) -> None:
    arms = [arm.name for arm in runner.experiment.arms]
    panels = {
        f"{measure}: {metric}": {
            arm: values for arm in arms if (values := runner.results.over_seeds(arm, measure).get(metric))
        }
        for measure, metric in columns(runner)
    }
    if panels:
        path = os.path.join(runner.directory, SCORES_FILE)
        scores.plot_scores(panels, path, title=runner.experiment.title)
    # The directory of a run that is trained and judged may have been deleted, to free the disk.
    runs = {
        arm.name: rows
        for arm in runner.experiment.arms
        if arm.pretrain
        and runner.has_model(arm.name, 0)
        and (rows := read_metrics(runner.model(arm.name, 0)))
    }
    if runs:
        curves.plot_metrics(runs, os.path.join(runner.directory, CURVES_FILE), runner.experiment.title)
