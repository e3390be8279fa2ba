"""Outputs on the devices: all of them, in order, and few at a time."""

import numpy as np

from bert_jax.parallel import microbatches


class Output:
    """Stands for an array on a device that is freed once it is copied to the host."""

    held = most = 0

    def __init__(self, value):
        self.value = value
        Output.held += 1
        Output.most = max(Output.most, Output.held)

    def __array__(self, dtype=None, copy=None):
        Output.held -= 1
        return np.asarray(self.value, dtype)


def test_outputs_come_in_order_and_two_at_most_are_held():
    Output.held = Output.most = 0
    found = list(microbatches.pipelined(Output, ((str(i), i) for i in range(7))))
    assert [(key, int(value)) for key, value in found] == [(str(i), i) for i in range(7)]
    assert Output.most == 2 and Output.held == 0
    assert list(microbatches.pipelined(Output, [])) == []
