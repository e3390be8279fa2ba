"""One module a command: `define_flags(flag_values)` and `run(flags, args)`.

`bert_jax.cli` imports the one that is called. The docstring's first line is the command's help.
"""
