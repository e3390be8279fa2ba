"""Estimates the cost of a train step on TPUs and GPUs that are not attached, by compiling it ahead of time.

`hardware` describes the chips, `program` compiles the step, `hlo` and `costs` read the compiled program, and
`measure` collects the figures.
"""
