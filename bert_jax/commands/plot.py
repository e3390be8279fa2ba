"""Draw the curves of runs, or the attention of a model within a text.

    bert-jax plot --workdir=runs/mini --output=curves.png
    bert-jax plot --workdir=runs/mini,runs/base --output=both.png
    bert-jax plot --checkpoint=runs/mini --text="The cat sat on the mat." --output=attention.png
    bert-jax plot --checkpoint=runs/mini --text="The cat sat on the mat." --layer=2 --output=layer-2.png

Curves are loss, scores, learning rate and throughput. Attention is drawn as thumbnails of all heads, one
row per layer; with --layer or --head the squares are larger and labeled with the tokens. A row is the token
that attends, a column the token attended to. The text may contain [MASK].
"""

import os
import textwrap

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands.flags import models
from bert_jax.errors import UserError
from bert_jax.io import checks, files, progress
from bert_jax.io.wording import counted
from bert_jax.plots import curves
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import attention_maps
    from bert_jax.plots import attention
    from bert_jax.training.metrics import metrics_writer


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string(
        "workdir",
        "Directory of the run whose curves to draw, or several, separated by commas, to compare.",
    )
    define.string("checkpoint", f"Model whose attention to draw: {models.CHECKPOINT}.")
    define.string("text", "Text to draw the attention of.")
    define.string("text_b", "Second text, if the input is a pair of texts.")
    define.string("layer", "Layer to draw the attention of: 1 is the first, -1 the last; or all.", "all")
    define.string("head", "Head to draw, numbered like the layers; or all.", "all")
    define.string(
        "output",
        "Picture to write: a name ending in .png, .pdf or .svg. Default for curves: WORKDIR/curves.png.",
    )
    define.string("title", "Text above the picture. Default: the directory's name, or the text itself.")
    define.strings(
        "reference",
        "A dashed line to compare with, as METRIC:LABEL:VALUE, such as mlm_loss:unigram entropy:6.2. May be "
        "repeated.",
        [],
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    """Runs the command."""
    if flags.checkpoint or flags.text is not None:
        return _attention(flags)
    if not flags.workdir:
        raise UserError(
            "plot needs --workdir=DIR for curves, or --checkpoint=DIR and --text=TEXT for attention"
        )
    for name in ("text_b", "layer", "head"):
        if flags[name].present:
            raise UserError(f"--{name} is for attention, which needs --checkpoint=DIR and --text=TEXT")
    directories = models.workdirs(flags)
    if len(directories) > 1 and not flags.output:
        raise UserError("plot needs --output=FILE.png for a picture of several runs")
    output = flags.output or os.path.join(directories[0], "curves.png")
    runs = {name: _read_metrics(directory) for name, directory in _names(directories).items()}
    title = ", ".join(runs) if flags.title is None else flags.title
    curves.plot_metrics(runs, output, title, dict(map(_reference, flags.reference)))
    rows = [row for of_run in runs.values() for row in of_run]
    steps = [row["step"] for row in rows]
    print(f"wrote {output} ({counted(len(rows), 'row')}, steps {min(steps):,} to {max(steps):,})")


def _names(directories: list[str]) -> dict[str, str]:
    """Returns {name: directory} of the runs; names are full paths if the last parts are not unique."""
    names = [files.name(directory) for directory in directories]
    return dict(zip(names if len(set(names)) == len(names) else directories, directories, strict=True))


def _read_metrics(workdir: str) -> list[dict]:
    """Returns the rows of a run's metrics.jsonl.

    Raises:
        UserError: there are no metrics.
    """
    if not files.is_directory(workdir):
        raise UserError(f"--workdir={workdir}: no such directory; expected the directory of a run")
    return metrics_writer.metrics_of_run(workdir)


def _attention(flags: absl_flags.FlagValues) -> None:
    if flags.workdir:
        raise UserError(
            "--workdir draws curves, --checkpoint and --text draw attention: give only one of the two"
        )
    if flags.reference:
        raise UserError(f"--reference={flags.reference[0]} is for curves, which need --workdir=DIR")
    for name, what in (("checkpoint", "DIR"), ("text", "'The cat sat on the mat.'"), ("output", "FILE.png")):
        if flags[name].value is None:
            raise UserError(f"plot needs --{name}={what} to draw attention")
    checks.check_output_file(flags.output, checks.PICTURES)  # before a model is loaded
    model = convert.load(flags.checkpoint, log=progress.log)
    maps = attention_maps.attention_maps(model, flags.text, flags.text_b)
    whole = flags.text if flags.text_b is None else f"{flags.text} | {flags.text_b}"
    title = textwrap.shorten(whole, 80, placeholder=" ...") if flags.title is None else flags.title
    attention.plot_attention(maps, flags.output, flags.layer, flags.head, title)
    print(f"wrote {flags.output} ({len(maps.tokens)} tokens)")


def _reference(text: str) -> tuple[str, tuple[str, float]]:
    metric, _, rest = text.partition(":")
    label, _, value = rest.rpartition(":")
    try:
        number = float(value)
    except ValueError:
        number = None
    if metric not in curves.METRICS or number is None:
        known = ", ".join(curves.METRICS)
        raise UserError(f"--reference={text}: expected METRIC:LABEL:VALUE with a metric of {known}")
    return metric, (label, number)
