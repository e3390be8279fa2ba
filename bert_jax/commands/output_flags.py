"""The flag --overwrite, of the commands whose output takes long to make."""

from __future__ import annotations

from absl import flags as absl_flags


def define_overwrite(flag_values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_boolean("overwrite", False, "Replace the output if it exists.", flag_values=flag_values)
