"""Reports: everything of a run in one file that a browser opens, with nothing from outside."""

import html
import json
import re
import tempfile

import pytest
from support.fine_tuned import make_run
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import cli
from bert_jax.runs import report


@pytest.fixture
def run(tmp_path, vocabulary):  # noqa: F811
    folder = make_run(
        tmp_path / "a <run>", vocabulary, "classification", ("a", "b"), text_a="text", label="x"
    )
    rows = [
        {"step": step, "kind": "train", "loss": 3.0 / step, "tokens_per_second": 1234.5, "run_seconds": 90.0}
        for step in range(1, 6)
    ]
    rows += [{"step": step, "kind": "eval", "loss": 2.0, "accuracy": step / 10} for step in (2, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "best.json").write_text(
        json.dumps({"step": 4, "metric": "accuracy", "scores": {"accuracy": 0.4}, "degenerate": False,
                    "since_best": 0, "last_step": 4})
    )  # fmt: skip
    (folder / "errors-dev.tsv").write_text(
        "line\tlabel\ttext_a\n" + '3\ta\t<script>alert("x")</script> & more\n' * 120
    )
    return folder


@pytest.mark.long
def test_a_report_has_what_the_run_has(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))  # pictures are drawn in memory
    assert cli.main(["plot", f"--workdir={run}", f"--output={run}/report.html"]) == 0
    text = (run / "report.html").read_text()
    assert "<script" not in text and html.escape('<script>alert("x")</script> & more') in text
    assert all(x.startswith(("data:", "#")) for x in re.findall(r'(?:src|href)="([^"]*)"', text))
    for shown in (
        *("Curves", "Evaluations", "Mistakes", "Configuration", "<svg", "a &lt;run&gt;", "optimizer.name"),
        *("The first 100 of 120 in errors-dev.tsv.", "accuracy 0.4000", "0.2000", "90.0"),
    ):
        assert shown in text
    assert text.count("<td>3</td>") >= 100


def test_a_report_has_no_secret_of_the_config_or_the_command(run):
    path = run / "config.json"
    recorded = json.loads(path.read_text())
    url = "https://ada:s3cr3t@host/dev.tsv?X-Goog-Signature=s3cr3t"
    recorded["config"]["data"]["train"] = recorded["config"]["init_from"] = url
    recorded["command_line"] = f"bert-jax finetune '--config.data.train={url}' --hub_token=s3cr3t"
    path.write_text(json.dumps(recorded))
    made = report.make(str(run))
    assert "s3cr3t" not in made and "host/dev.tsv" in made
    assert "s3cr3t" in path.read_text()
