"""What batches of rows cost, by which their shapes are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from bert_jax.objectives.base import Objective
from bert_jax.tasks.rows import batches
from bert_jax.training.metrics import flops

# What a compilation of a forward pass costs, by the time of that of a train step. It takes a tenth of it,
# 1.5 s of a core with MiniLM, and is stored: later runs, whose rows are padded to the same multiples of 8, do
# not pay for it.
_OF_FORWARD_PASS = 0.03


class Costs(NamedTuple):
    """What a step and its compilation cost.

    Attributes:
        row_flops: maps the number of tokens of a row to its model FLOPs.
        compilation: the model FLOPs that the devices compute in the time of a compilation.
    """

    row_flops: Callable[[int], float]
    compilation: float

    @classmethod
    def of_training(cls, objective: Objective, mesh: jax.sharding.Mesh, dtype: str) -> Costs:
        """Returns the costs of the train step of an objective.

        Args:
            objective: the training objective.
            mesh: the device mesh.
            dtype: the dtype of matrix products; see `flops.peak_flops`.
        """
        return cls(flops.row_flops(objective), flops.compilation_flops(mesh, dtype))

    def of_outputs(self, times: int = 1) -> Costs:
        """Returns the costs of a forward pass beside this train step.

        Args:
            times: how often the same rows are computed by each compiled program.
        """
        # It has no backward pass, which is two thirds of the FLOPs.
        return Costs(lambda length: self.row_flops(length) / 3, _OF_FORWARD_PASS * self.compilation / times)

    def least_saved(self, data: batches.EncodedRows, epochs: float = 1.0) -> float:
        """Returns the padded tokens of an epoch that another length has to save, as of `bucket_lengths`.

        Args:
            data: the encoded rows.
            epochs: how often the rows are computed.
        """
        longest = data.max_seq_length
        of_token = self.row_flops(longest) * data.rows_per_example / longest
        return self.compilation / max(of_token * epochs, 1.0)

    def of_padded(self, data: batches.EncodedRows, size: int, lengths: Sequence[int]) -> float:
        """Returns the cost of padded batches of all rows in the order of their lengths, with compilations.

        Args:
            data: the encoded rows, which are not in groups.
            size: the number of rows of a batch.
            lengths: the lengths that rows are padded to, ascending.
        """
        longest = np.append(np.sort(data.lengths)[size - 1 :: size], data.lengths.max())
        widths, counts = np.unique(
            np.searchsorted(lengths, longest[: batches.steps_per_epoch(len(data), size)]), return_counts=True
        )
        rows = sum(
            count * size * self.row_flops(lengths[width]) for width, count in zip(widths, counts, strict=True)
        )
        return rows + len(widths) * self.compilation
