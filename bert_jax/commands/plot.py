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
from bert_jax.errors import UserError
from bert_jax.io import atomic, checks, files, progress
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
    """Defines the flags."""
    define.string("workdir", "Work directory to plot, or comma-separated ones to compare.")
    define.string("model", f"Model whose attention to plot: {shared.MODEL}.")
    define.string("text", "Text whose attention to plot.")
    define.string("text_b", "Second text of a pair.")
    define.string("layer", "Layer to plot: 1 is the first, -1 the last; or all.", "all")
    define.string("head", "Head to plot: 1 is the first, -1 the last; or all.", "all")
    define.string(
        "output",
        "File to write: .png, .pdf or .svg, or .html for a report. Default for curves: WORKDIR/curves.png.",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    """Runs the command."""
    if bool(flags.workdir) == bool(flags.model):
        raise UserError(
            "plot needs --workdir=DIR for curves or a report, or --model=DIR and --text=TEXT for attention"
        )
    if flags.model:
        return _attention(flags)
    shared.check_unused(flags, _OF_ATTENTION, "--workdir")
    directories = shared.workdirs(flags)
    if len(directories) > 1 and not flags.output:
        raise UserError("plot needs --output=FILE.png for a picture of several runs")
    output = flags.output or os.path.join(directories[0], "curves.png")
    if files.suffix(output) == ".html":
        return _report(directories, output)
    runs = {name: _read_metrics(directory) for name, directory in _names(directories).items()}
    curves.plot_metrics(runs, output, ", ".join(runs))
    rows = [row for of_run in runs.values() for row in of_run]
    steps = [row["step"] for row in rows]
    print(f"wrote {output} ({counted(len(rows), 'row')}, steps {min(steps):,} to {max(steps):,})")


def _names(directories: list[str]) -> dict[str, str]:
    """Returns {name: directory} of the runs; names are full paths if the last parts are not unique."""
    names = [files.name(directory) for directory in directories]
    return dict(zip(names if len(set(names)) == len(names) else directories, directories, strict=True))


def _read_metrics(workdir: str) -> list[dict]:
    if not files.is_directory(workdir):
        raise UserError(f"--workdir={workdir}: no such directory; expected the directory of a run")
    return metrics.metrics_of_run(workdir)


def _report(directories: list[str], output: str) -> None:
    if len(directories) > 1:
        raise UserError(f"--output={output}: a report shows one run; give one --workdir")
    checks.check_output_file(output)
    content = report.make(directories[0])
    atomic.write_text(output, content)
    print(f"wrote {output} ({len(content) / 1e3:,.0f} kB)")


def _attention(flags: absl_flags.FlagValues) -> None:
    for name, what in (("text", "'The cat sat on the mat.'"), ("output", "FILE.png")):
        if flags[name].value is None:
            raise UserError(f"plot needs --{name}={what} to draw attention")
    checks.check_output_file(flags.output, checks.PICTURES)  # before a model is loaded
    model = convert.load(flags.model, log=progress.log)
    maps = attention_maps.attention_maps(model, flags.text, flags.text_b)
    whole = flags.text if flags.text_b is None else f"{flags.text} | {flags.text_b}"
    title = textwrap.shorten(whole, 80, placeholder=" ...")
    attention.plot_attention(maps, flags.output, flags.layer, flags.head, title)
    print(f"wrote {flags.output} ({len(maps.tokens)} tokens)")
