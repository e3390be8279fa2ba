"""A report of a run as one HTML file, which opens without a server or a network."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError, hide_secrets
from bert_jax.io import files
from bert_jax.plots import curves, figures
from bert_jax.settings import config_fields
from bert_jax.tasks.predictions import ERRORS_FILE
from bert_jax.training.evaluators import read_best
from bert_jax.training.metrics import metrics_of_run
from bert_jax.workdir import run_directory

_EVALUATIONS, _MISTAKES = 30, 100  # rows that are shown at most
_NO_SCORES = ("step", "kind", "run_seconds", "time", "best_so_far")
_GIVEN = ("init_from", "data_dir", "data.dir", "data.train", "data.eval", "seed")  # fields of the config
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 1080px; margin: 2rem auto; }
body { padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin-bottom: .2rem; }
p.note { color: #555; margin-top: 0; }
table { border-collapse: collapse; font-size: 14px; }
div.wide { overflow-x: auto; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #ddd; }
th, td { vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
svg, img { max-width: 100%; height: auto; }
pre { font-size: 13px; white-space: pre-wrap; }
"""


def make(directory: str) -> str:
    """Returns the report of a work directory, as HTML.

    It has the scores, the curves, the evaluations, the worst mistakes of a fine-tuning, the command and the
    configuration, if the run has them.

    Raises:
        UserError: there is no work directory, or it has no metrics.
    """
    run = hide_secrets(run_directory.read_run(directory))
    rows = metrics_of_run(directory)
    parts = [_summary(directory, run, rows), *_curves(directory, rows), *_evaluations(rows)]
    parts += [*_mistakes(directory), _configuration(run)]
    title = _text(hide_secrets(files.name(directory)))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def _summary(directory: str, run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    config = dict(config_fields.flatten(run["config"]))
    last = next((row for row in reversed(rows) if row["kind"] == "train"), rows[-1])
    facts: list[tuple[str, Any]] = [("Command", run["command"]), ("Steps", f"{last['step']:,}")]
    best = read_best(directory)
    if best and best["scores"]:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in best["scores"].items())
        facts.append((f"Scores of the best step, {best['step']:,}", scores))
    facts += [
        (name.replace("_", " ").capitalize(), f"{last[name]:,.1f}")
        for name in ("run_seconds", "steps_per_second", "sequences_per_second", "tokens_per_second")
        if isinstance(last.get(name), int | float)
    ]
    facts += [(name, config[name]) for name in _GIVEN if config.get(name) not in (None, "")]
    table = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in facts)
    what = run["config"].get("task") or run["command"]
    return f"<h1>{_text(files.name(directory))}</h1>\n<p class=note>{_text(what)}</p>\n<table>{table}</table>"


def _curves(directory: str, rows: list[dict]) -> list[str]:
    try:
        figure = curves.draw_metrics({files.name(directory): rows})
    except UserError:  # nothing to plot
        return []
    svg = figures.render(figure, "svg").decode()
    return ["<h2>Curves</h2>", svg[svg.index("<svg") :]]


def _evaluations(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [row for row in rows if row["kind"] not in ("train", "setup")][-_EVALUATIONS:]
    if not found:
        return []
    names = list(dict.fromkeys(name for row in found for name in row if name not in _NO_SCORES))
    shown = [[f"{row['step']:,}", row["kind"], *(_number(row.get(name)) for name in names)] for row in found]
    table = _table(["step", "evaluation", *names], shown, numbers=True)
    return [f"<h2>Evaluations</h2><p class=note>The last {len(found):,}.</p>", table]


def _mistakes(directory: str) -> list[str]:
    path = os.path.join(directory, ERRORS_FILE)
    if not files.exists(path):
        return []
    lines = [line.split("\t") for line in files.read(path).decode().split("\n") if line]
    if len(lines) < 2:
        return ["<h2>Mistakes</h2>", "<p>None.</p>"]
    note = f"The first {min(_MISTAKES, len(lines) - 1):,} of {len(lines) - 1:,} in {ERRORS_FILE}."
    return ["<h2>Mistakes</h2>", f"<p class=note>{note}</p>", _table(lines[0], lines[1 : 1 + _MISTAKES])]


def _configuration(run: Mapping[str, Any]) -> str:
    command = f"<pre>{_text(run['command_line'])}</pre>" if run.get("command_line") else ""
    flat = config_fields.flatten(run["config"])
    table = _table(
        ["field", "value"], [[name, str(value)] for name, value in flat if value not in (None, "")]
    )
    details = f"<details><summary>All fields</summary>{table}</details>"
    return f"<h2>Configuration</h2>\n{command}\n{details}"


def _table(header: Iterable[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> str:
    kind = " class=number" if numbers else ""
    head = "".join(f"<th{kind}>{_text(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _number(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:,.4f}"
    return ""


def _text(value: Any) -> str:
    return html.escape(str(value))
