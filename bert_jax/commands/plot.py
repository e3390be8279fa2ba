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
import sys
import textwrap

from absl import flags
from etils import epy

from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.plots import curves

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import attention_maps
    from bert_jax.plots import attention
    from bert_jax.training.metrics import metrics_writer


def define_flags(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "workdir",
        None,
        "Directory of the run whose curves to draw; or several, with commas between, to compare.",
        flag_values=flag_values,
    )
    for name, default, what in (
        ("checkpoint", None, "Model whose attention to draw: a work directory or step of bert-jax, Hugging "
         "Face folder, or TF1 prefix."),
        ("text", None, "Text to draw the attention of."),
        ("text_b", None, "Second text, where they are a pair."),
        ("layer", "all", "Layer to draw the attention of: 1 is the first, -1 the last; or all."),
        ("head", "all", "Head, numbered as the layers; or all."),
    ):  # fmt: skip
        flags.DEFINE_string(name, default, what, flag_values=flag_values)
    flags.DEFINE_string(
        "output",
        None,
        "Picture to write: a name ending in .png, .pdf or .svg. Default of curves: WORKDIR/curves.png.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "title",
        None,
        "Text above the picture. Default: the directory's name, or the text that is looked at.",
        flag_values=flag_values,
    )
    flags.DEFINE_multi_string(
        "reference",
        [],
        "A dashed line to compare with, as METRIC:LABEL:VALUE, such as mlm_loss:unigram entropy:6.2.",
        flag_values=flag_values,
    )


def run(flags, args) -> int | None:
    if args:
        raise UserError(f"plot takes no arguments besides its flags, but was given {args[0]!r}")
    if flags.checkpoint or flags.text is not None:
        return _attention(flags)
    if not flags.workdir:
        raise UserError("which run? give --workdir=DIR; or for attention --checkpoint=DIR --text=TEXT")
    for name in ("text_b", "layer", "head"):
        if flags[name].present:
            raise UserError(f"--{name} is of attention, which needs --checkpoint=DIR and --text=TEXT")
    directories = [name.strip() for name in flags.workdir.split(",") if name.strip()]
    if len(directories) > 1 and not flags.output:
        raise UserError("where should the picture of several runs go? give --output=FILE.png")
    output = flags.output or os.path.join(directories[0], "curves.png")
    runs = {name: _read_metrics(directory) for name, directory in _names(directories).items()}
    title = ", ".join(runs) if flags.title is None else flags.title
    curves.plot_metrics(runs, output, title, dict(map(_reference, flags.reference)))
    rows = [row for of_run in runs.values() for row in of_run]
    steps = [row["step"] for row in rows]
    print(f"wrote {output} ({len(rows)} rows, steps {min(steps)} to {max(steps)})")


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
        raise UserError(f"{workdir}: no such directory; --workdir is the directory of a run")
    rows = metrics_writer.read_metrics(workdir)
    if not rows:
        raise UserError(f"{workdir}: no metrics in it; is it the directory of a run that reached a log step?")
    return rows


def _attention(flags) -> None:
    if flags.workdir:
        raise UserError("--workdir draws curves, --checkpoint with --text attention: give one of the two")
    if flags.reference:
        raise UserError(f"--reference={flags.reference[0]} is of curves, which need --workdir=DIR")
    if not flags.checkpoint:
        raise UserError("which model? give --checkpoint=DIR")
    if flags.text is None:
        raise UserError('which text? give one, such as --text="The cat sat on the mat."')
    if not flags.output:
        raise UserError("where should the picture go? give --output=FILE.png")
    model = convert.load(flags.checkpoint, log=lambda line: print(line, file=sys.stderr))
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
