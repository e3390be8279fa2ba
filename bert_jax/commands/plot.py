"""Draw the curves of a run: loss, scores, learning rate and throughput."""

from pathlib import Path

from absl import flags

from bert_jax import plots
from bert_jax.errors import UserError


def define_flags(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string("workdir", None, "Directory of the run.", flag_values=flag_values)
    flags.DEFINE_string(
        "output",
        None,
        "Picture to write: a name ending in .png, .pdf or .svg. Default: WORKDIR/curves.png.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "title", None, "Text above the picture. Default: the directory's name.", flag_values=flag_values
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
    if not flags.workdir:
        raise UserError("which run? give --workdir=DIR")
    output = flags.output or str(Path(flags.workdir, "curves.png"))
    rows = plots.read_metrics(flags.workdir)
    title = Path(flags.workdir).name if flags.title is None else flags.title
    plots.plot_metrics(rows, output, title, dict(map(_reference, flags.reference)))
    print(f"wrote {output} ({len(rows)} rows, steps {rows[0]['step']} to {rows[-1]['step']})")


def _reference(text: str) -> tuple[str, tuple[str, float]]:
    metric, _, rest = text.partition(":")
    label, _, value = rest.rpartition(":")
    try:
        number = float(value)
    except ValueError:
        number = None
    if metric not in plots.METRICS or number is None:
        known = ", ".join(plots.METRICS)
        raise UserError(f"--reference={text}: expected METRIC:LABEL:VALUE with a metric of {known}")
    return metric, (label, number)
