"""Write a report of a run: one HTML file with curves, scores, mistakes and the configuration.

    bert-jax report --workdir=runs/reviews
    bert-jax report --workdir=runs/mini --output=mini.html

The file opens in any browser without a server or a network. It has what the run has: a fine-tuning also its
evaluations, the plot of its scores and the rows of errors-dev.tsv.
"""

from __future__ import annotations

import os

from absl import flags as absl_flags
from etils import epy

from bert_jax.io import checks
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.io import atomic
    from bert_jax.runs import report


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string("workdir", "Work directory of a run.", required="DIR, the work directory of a run")
    define.string("output", "Pictures and tables in one .html file. Default: WORKDIR/report.html.")


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    output = flags.output or os.path.join(flags.workdir, "report.html")
    if flags.output:
        checks.check_output_file(output, (".html", ".htm"))
    content = report.make(flags.workdir)
    atomic.write_text(output, content)
    print(f"wrote {output} ({len(content) / 1e3:,.0f} kB)")
    return 0
