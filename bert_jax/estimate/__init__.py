"""What a train step would cost on TPUs and GPUs that are not there: compiled ahead of time, and read off the
program.

`chips` has the hardware, `program` compiles the step, `analysis` reads the compiled program, `search` finds
the largest batch, `measure` puts the figures together, and `report` writes them as lines.
"""
