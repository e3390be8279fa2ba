"""Run everything from text to a fine-tuned task in minutes, on the docstrings that ship with Python.

    bert-jax demo --workdir=demo

It downloads nothing and prints each command that it runs. Run the same command again to resume.
"""

from __future__ import annotations

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError
from bert_jax.io import files

with epy.lazy_imports():
    from bert_jax import cli
    from bert_jax.demo import steps


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_string(
        "workdir",
        None,
        "Where everything goes. Default: demo, with --quick demo-quick.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_bool(
        "quick",
        False,
        "A few steps of everything, to see that it runs: it learns nothing.",
        flag_values=flag_values,
    )


def run(flags, args: list[str]) -> int:
    if args:
        raise UserError(f"demo takes no arguments besides its flags, but was given {args[0]!r}")
    workdir = flags.workdir or ("demo-quick" if flags.quick else "demo")
    if files.is_remote(workdir):
        raise UserError(f"--workdir={workdir}: expected a local directory, where the demo runs")
    try:
        steps.Demo(workdir, cli.main, steps.QUICK if flags.quick else steps.Budget()).run()
    except steps.Stopped as stopped:
        return stopped.args[0]
    return 0
