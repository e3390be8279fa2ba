import json

import numpy as np
import pytest
from PIL import Image

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.objectives import distillation
from bert_jax.plots import curves


def write_metrics(workdir, steps=100):
    rows = []
    for step in range(1, steps + 1):
        loss = 5 * np.exp(-step / 30) + 3
        row = dict(step=step, kind="train", loss=loss + 0.6, mlm_loss=loss, nsp_loss=0.6, nsp_accuracy=0.6)
        row |= dict(mlm_accuracy=step / steps / 2, learning_rate=1e-4, tokens_per_second=9000.0 + step)
        rows.append(row)
        if step % 20 == 0:
            held_out = dict(mlm_loss=loss + 0.1, nsp_loss=0.65, mlm_accuracy=0.3, nsp_accuracy=0.55)
            rows.append(dict(step=step, kind="eval", **held_out))
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def test_values_that_are_not_finite_are_left_out():
    values = (float("nan"), 1.0, None, float("inf"))
    rows = [{"step": step, "kind": "train", "loss": value} for step, value in enumerate(values, 1)]
    rows += [{"step": 5, "kind": "train"}, {"step": 6, "kind": "eval", "loss": 2.0}]
    assert curves.series(rows, "train", "loss")[0].tolist() == [2]
    assert curves.series(rows, "eval", "loss")[1].tolist() == [2.0]


def test_smoothing_keeps_a_line_a_line():
    line = np.arange(200.0)
    smooth = curves._smooth(line)
    np.testing.assert_allclose(smooth[10:-10], line[10:-10])
    assert curves._smooth(np.array([2.0])).tolist() == [2.0]
    assert set(curves._smooth(np.full(100, 0.6))) == {0.6}  # or the axis would show the rounding errors


def test_each_loss_of_a_distillation_has_a_panel(tmp_path):
    names = {f"{name}_loss" for name in (distillation.LOGITS, *distillation.STATES)}
    assert names <= {metric for panel in curves._PANELS for metric in panel.metrics}
    losses = {"loss": 20.9, "mlm_loss": 10.3, "logits_loss": 0.1, "cosine_loss": 0.2}
    rows = [{"step": step, "kind": "train", **losses} for step in (1, 2, 3)]
    curves.plot_metrics({"run": rows}, str(tmp_path / "curves.svg"))
    drawn = (tmp_path / "curves.svg").read_text()
    assert "Distillation loss, logits" in drawn and "Distillation loss, cosine" in drawn
    assert "Distillation loss, hidden" not in drawn


@pytest.mark.long
def test_the_command(tmp_path, capsys):
    write_metrics(tmp_path)
    assert cli.main(["plot", f"--workdir={tmp_path}"]) == 0
    with Image.open(tmp_path / "curves.png") as image:
        assert image.width > 1000 and image.height > 700
        pixels = np.asarray(image.convert("L"))
    assert 0.01 < np.mean(pixels < 200) < 0.5  # neither empty nor black
    assert capsys.readouterr().out == f"wrote {tmp_path}/curves.png (105 rows, steps 1 to 100)\n"


@pytest.mark.long
def test_several_runs_in_one_picture(tmp_path):
    for name in ("a,1", "b"):
        (tmp_path / name).mkdir()
        write_metrics(tmp_path / name)
    both = f"--workdir={tmp_path}/a,1,{tmp_path}/b"
    assert cli.main(["plot", both, f"--output={tmp_path}/both.svg"]) == 0
    drawn = (tmp_path / "both.svg").read_text()
    assert "<!-- a,1 -->" in drawn and "<!-- b -->" in drawn and "<!-- a,1, b -->" in drawn
    # Every panel of held-out data says once what its dotted lines are.
    assert drawn.count("<!-- held out -->") == 4


def test_no_known_metric():
    with pytest.raises(UserError, match=r"nothing to plot: .* depth, kind, step"):
        curves.draw_metrics({"run": [{"step": 1, "kind": "train", "depth": 1.0}]})
