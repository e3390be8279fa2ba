"""A report of a run as one HTML file, which opens without a server or a network."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Sequence
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
_RATES = ("run_seconds", "steps_per_second", "sequences_per_second", "tokens_per_second")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0; }
svg { max-width: 100%; height: auto; }
pre { white-space: pre-wrap; }
"""


def make(directory: str) -> str:
    """Returns the report of a work directory, as HTML. Raises UserError if it has no metrics."""
    title = _text(hide_secrets(files.name(directory)))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        + "\n".join(_sections(directory))
        + "\n</body>\n</html>\n"
    )


def _sections(directory: str) -> Iterator[str]:
    run = hide_secrets(run_directory.read_run(directory))
    rows = metrics_of_run(directory)
    last = next((row for row in reversed(rows) if row["kind"] == "train"), rows[-1])
    facts = [("steps", f"{last['step']:,}"), *((name, _number(last.get(name))) for name in _RATES)]
    if (best := read_best(directory)) and best["scores"]:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in best["scores"].items())
        facts.append((f"scores of the best step, {best['step']:,}", scores))
    yield _table((run["command"], ""), facts)

    try:
        figure = curves.draw_metrics({files.name(directory): rows})
        svg = figures.render(figure, "svg").decode()
        yield "<h2>Curves</h2>" + svg[svg.index("<svg") :]
    except UserError:  # nothing to plot
        pass

    if found := [row for row in rows if row["kind"] not in ("train", "setup")][-_EVALUATIONS:]:
        names = list(dict.fromkeys(name for row in found for name in row if name not in _NO_SCORES))
        shown = [
            [f"{row['step']:,}", row["kind"], *(_number(row.get(name)) for name in names)] for row in found
        ]
        yield f"<h2>Evaluations</h2><p>The last {len(found):,}.</p>"
        yield _table(["step", "evaluation", *names], shown)

    path = os.path.join(directory, ERRORS_FILE)
    if files.exists(path):
        lines = [line.split("\t") for line in files.read(path).decode().split("\n") if line]
        count = max(len(lines) - 1, 0)
        yield f"<h2>Mistakes</h2><p>The first {min(_MISTAKES, count):,} of {count:,} in {ERRORS_FILE}.</p>"
        yield _table(lines[0] if lines else (), lines[1 : 1 + _MISTAKES])

    yield f"<h2>Configuration</h2>\n<pre>{_text(run.get('command_line', ''))}</pre>"
    yield _table(("field", "value"), config_fields.flatten(run["config"]))


def _table(header: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: Any) -> str:
    return f"{value:,.4f}" if isinstance(value, int | float) else ""


def _text(value: Any) -> str:
    return html.escape(str(value))
