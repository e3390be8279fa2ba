"""The picture of records that `bert-jax inspect --plot` draws."""

import numpy as np
import pytest

from bert_jax.data import inspection
from bert_jax.io import atomic
from bert_jax.plots import records


def report():
    lengths = np.zeros(129, int)
    lengths[20:60] = 30
    lengths[128] = 900
    split = {"rows": 500, "sequence_lengths": lengths.tolist(), "sequences_per_row": [0, 300, 150, 50]}
    return inspection.Report(
        "records", "packed records", {"seed": 1, "train": split | {"row_lengths": [0] * 128 + [500]}}
    )


def test_three_panels_with_shares(tmp_path, monkeypatch):
    drawn, save_figure = [], atomic.save_figure

    def save(figure, *args, **options):
        drawn.append(figure)
        save_figure(figure, *args, **options)

    monkeypatch.setattr(atomic, "save_figure", save)
    records.plot_records(report(), str(tmp_path / "new" / "a.png"))
    assert (tmp_path / "new" / "a.png").stat().st_size > 10_000
    axes = drawn[0].axes
    titles = [axis.get_title(loc="left") for axis in axes]
    assert titles == ["Sequence length", "Row fill", "Sequences per row"]
    assert sum(axes[0].patches[0].get_data().values) == pytest.approx(100)
    assert axes[0].patches[0].get_data().values[-1] == pytest.approx(100 * 900 / 2100)
    assert axes[1].patches[0].get_data().edges[-1] == pytest.approx(100)
    assert [bar.get_height() for bar in axes[2].patches] == pytest.approx([60, 30, 10])
