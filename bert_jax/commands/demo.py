"""The whole way on text that every Python carries, in minutes: vocabulary, records, pre-training, a task.

    bert-jax demo --workdir=demo

No download and no account. Each command that it runs is printed. The same command goes on where it stopped.
"""

from __future__ import annotations

from absl import flags as absl_flags

from bert_jax.errors import UserError


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_string("workdir", "demo", "Where everything goes.", flag_values=flag_values)
    absl_flags.DEFINE_bool(
        "quick",
        False,
        "A few steps of everything, to see that it runs: it learns nothing.",
        flag_values=flag_values,
    )


def run(flags, args: list[str]) -> int:
    if args:
        raise UserError(f"demo takes no arguments besides its flags, but was given {args[0]!r}")
    from bert_jax import demo

    try:
        demo.Demo(flags.workdir, demo.QUICK if flags.quick else demo.Budget()).run()
    except demo.Stopped as stopped:
        return stopped.args[0]
    return 0
