"""Run all steps from text to a fine-tuned model in minutes, on the docstrings that ship with Python.

    bert-jax demo --workdir=demo

It downloads nothing and prints each command that it runs. Run the same command again to resume.
"""

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import check_flag
from bert_jax.io import files
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import cli, demo


def define_flags(define: Define) -> None:
    define.string("workdir", "Directory for all files. Default: demo, or demo-quick with --quick.")
    define.boolean("quick", "Run a few steps of each command, as a check; the model learns nothing.")


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    workdir = flags.workdir or ("demo-quick" if flags.quick else "demo")
    check_flag("workdir", workdir, not files.is_remote(workdir), "a local directory")
    try:
        demo.run(workdir, cli.main, flags.quick)
    except demo.Stopped as stopped:
        return stopped.args[0]
    return 0
