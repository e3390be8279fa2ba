"""Estimates the cost of a train step on TPUs and GPUs that are not attached, by compiling it ahead of time.

`chips` describes the hardware, `program` compiles the step, `analysis` reads the compiled program, `search`
finds the largest batch, `measure` collects the results, and `report` formats them as lines.
"""
