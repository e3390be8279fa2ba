import itertools
import random
import types

import numpy as np
import pytest

from bert_jax.io import atomic
from bert_jax.plots import curves, figures, records, scores


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0, 20_000), ["0", "5,000", "10,000", "15,000", "20,000"]),
        ((0, 1_000_000), ["0", "0.2M", "0.4M", "0.6M", "0.8M", "1M"]),
        ((0, 1e-4), ["0", "2e-5", "4e-5", "6e-5", "8e-5", "1e-4"]),
        ((0, 1e-3), ["0", "0.0002", "0.0004", "0.0006", "0.0008", "0.0010"]),
        ((-0.2, 0.2), ["-0.2", "-0.1", "0", "0.1", "0.2"]),
        ((6.93141, 6.93145), ["6.93141", "6.93142", "6.93143", "6.93144", "6.93145"]),
    ],
)
def test_labels_are_short_and_have_one_form(values, labels):
    _, ((axes,),) = figures.subplots((4.0, 3.0))
    axes.set_xlim(*values)
    figures.number(axes.xaxis, most=5)
    assert visible_labels(axes) == labels


@pytest.mark.parametrize(("limits", "labels"), [((1, 3), ["1", "2", "3"]), ((0.6, 1.4), ["1"])])
def test_steps_are_whole_numbers(limits, labels):
    _, ((axes,),) = figures.subplots((4.0, 3.0))
    axes.set_xlim(*limits)
    figures.number(axes.xaxis, most=5, whole=True)
    assert visible_labels(axes) == labels


@pytest.mark.parametrize("steps", [3, 60, 14_000, 20_000, 150_000, 1_000_000, 1_750_000])
def test_labels_of_curves_do_not_overlap(steps, drawn):
    rows = [
        {"kind": "train", "step": step, "learning_rate": 1e-4, "mlm_loss": 3.0, "mfu": 0.5}
        | {"mlm_accuracy": 0.5, "nsp_accuracy": 0.6, "tokens_per_second": 1e6}
        for step in (1, steps // 2, steps)
    ]
    curves.plot_metrics({"a run": rows}, "curves.png")
    check_labels(drawn[0])


@pytest.mark.parametrize("low, range_", [(0.8612, 4e-4), (123_456, 20_000), (4.1, 0.002), (0.8, 0.0)])
def test_labels_of_scores_do_not_overlap(low, range_, drawn):
    draw = random.Random(1).random
    panels = {
        f"score {panel}": {f"{arm} of the arms": [low + range_ * draw() for _ in range(3)] for arm in "abc"}
        for panel in range(3)
    }
    scores.plot_scores(panels, "scores.png")
    check_labels(drawn[0])


def test_labels_of_many_sequences_per_row_do_not_overlap(drawn):
    lengths = dict(row_lengths=[1] * 513, sequence_lengths=[1] * 513)
    train = dict(rows=1, sequences_per_row=[0] + 64 * [1]) | lengths
    records.plot_records(types.SimpleNamespace(path="records", facts={"train": train}), "rows.png")
    check_labels(drawn[0])


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    saved = []
    monkeypatch.setattr(atomic, "save_figure", lambda figure, output, dpi: saved.append(figure))
    return saved


def visible_labels(axes):
    low, high = axes.get_xlim()
    axes.figure.draw_without_rendering()
    return [
        label.get_text()
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low - 1e-12 <= place <= high + 1e-12
    ]


def check_labels(figure):
    """Checks that there are labels at every horizontal axis, with a space between each and the next one."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [
            label.get_window_extent()
            for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
            if axes.get_xlim()[0] <= place <= axes.get_xlim()[1]
        ]
        assert len(boxes) >= 2
        spaces = [right.x0 - left.x1 for left, right in itertools.pairwise(boxes)]
        assert np.min(spaces) > 3, [label.get_text() for label in axes.get_xticklabels()]
