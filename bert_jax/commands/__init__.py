"""One module for each command; `bert_jax.cli` imports the module of the command that is called.

`define_flags(define)` defines the flags, and `run(flags, args)` runs the command and returns the exit code,
0 by default. The first line of the module's docstring is the command's help.
"""
