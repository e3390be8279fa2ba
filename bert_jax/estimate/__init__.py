"""What a train step would cost on TPUs that are not there: compiled ahead of time, and read off the program.

`chips` and `topology` name the hardware, `program` compiles, `hlo`, `flop_count`, `collectives`, `timing` and
`wastes` are pure functions over the compiled program's text, `report` puts it together.
"""
