"""Plot the curves of runs or the attention of a model, or write the report of a run.

    bert-jax plot --workdir=runs/mini --output=curves.png
    bert-jax plot --workdir=runs/mini,runs/base --output=both.png
    bert-jax plot --workdir=runs/reviews --output=report.html
    bert-jax plot --model=runs/mini --text="The cat sat on the mat." --output=attention.png
    bert-jax plot --model=runs/mini --text="The cat sat on the mat." --layer=2 --output=layer-2.png

Curves show loss, scores, learning rate and throughput. A report (.html) is one file with these curves, which
any browser opens offline; for a fine-tuning, it also has the evaluations and the rows of errors-dev.tsv.
Attention is plotted as thumbnails of all heads, one row per layer, or with --layer or --head as larger
squares labeled with the tokens. Rows are queries, and columns are keys. The text may contain [MASK].
"""

import os
import textwrap

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.io import atomic, checks, comma_lists, files, progress
from bert_jax.io.wording import counted
from bert_jax.plots import curves
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import attention_maps
    from bert_jax.plots import attention
    from bert_jax.runs import report
    from bert_jax.training import metrics

_OF_ATTENTION = ("text", "text_b", "layer", "head")


def define_flags(define: Define) -> None:
    define.string("workdir", "Work directory to plot, or comma-separated ones to compare.")
    define.string("model", f"Model whose attention to plot: {shared.MODEL}.")
    define.string("text", "Text whose attention to plot.")
    define.string("text_b", "Second text of a pair.")
    define.string("layer", "Layer to plot: 1 is the first, -1 the last; or all.", "all")
    define.string("head", "Head to plot: 1 is the first, -1 the last; or all.", "all")
    define.string(
        "output",
        "File to write: .png, .pdf or .svg, or .html for a report. Default for curves: curves.png in the "
        "first work directory.",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    shared.check_one(flags, "workdir", "model")
    if flags.model:
        return _attention(flags)
    shared.check_unused(flags, _OF_ATTENTION, "--workdir")
    if files.suffix(flags.output or "") == ".html":
        checks.check_output_file(flags.output)
        content = report.make(flags.workdir)
        atomic.write_text(flags.output, content)
        print(f"wrote {flags.output} ({len(content) / 1e3:,.0f} kB)")
        return
    directories = comma_lists.paths(flags.workdir)
    output = flags.output or os.path.join(directories[0], "curves.png")
    names = [files.name(directory) for directory in directories]
    names = names if len(set(names)) == len(names) else directories
    runs = {name: metrics.metrics_of_run(path) for name, path in zip(names, directories, strict=True)}
    curves.plot_metrics(runs, output, ", ".join(runs))
    rows = [row for of_run in runs.values() for row in of_run]
    steps = [row["step"] for row in rows]
    print(f"wrote {output} ({counted(len(rows), 'row')}, steps {min(steps):,} to {max(steps):,})")


def _attention(flags: absl_flags.FlagValues) -> None:
    shared.check_given(flags, ("text", "output"), "--model")
    checks.check_output_file(flags.output, checks.PICTURES)  # before a model is loaded
    model = convert.load(flags.model, log=progress.log)
    maps = attention_maps.attention_maps(model, flags.text, flags.text_b)
    whole = flags.text if flags.text_b is None else f"{flags.text} | {flags.text_b}"
    title = textwrap.shorten(whole, 80, placeholder=" ...")
    attention.plot_attention(maps, flags.output, flags.layer, flags.head, title)
    print(f"wrote {flags.output} ({len(maps.tokens)} tokens)")
