"""The batches of a fine-tuning run: their shapes, and the rows that this process feeds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from bert_jax.parallel import sharding
from bert_jax.settings.typed.finetune_config import FinetuneConfig
from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.rows import batches, packing
from bert_jax.training.evaluators import Batches


def buckets(
    data: batches.EncodedRows,
    batch_size: int,
    steps: int,
    row_flops: Callable[[int], float],
    compilation: float,
) -> tuple[int, ...]:
    """Returns the lengths that rows are padded to, each of which costs a compilation."""
    longest = data.max_seq_length
    of_token = row_flops(longest) * data.rows_per_example / longest
    epochs = steps / batches.steps_per_epoch(len(data.group_lengths), batch_size)
    least = compilation / max(of_token * epochs, 1.0)
    return batches.bucket_lengths(data.group_lengths, batch_size, longest, steps, least)


class TrainingBatches:
    """The batches of a training file: packed if that saves computation, otherwise grouped by length.

    Args:
        config: the configuration of the run.
        task: the task that is trained.
        data: the encoded rows of the training file.
        mesh: the device mesh that the batches are placed on.
        row_flops: the function of the number of tokens of a row that returns its model FLOPs.
        compilation: the model FLOPs that are computed in the time of a compilation.
        row_length: that of the run that goes on; see `packing.plan`.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        task: FinetuneTask,
        data: batches.EncodedRows,
        mesh: jax.sharding.Mesh,
        row_flops: Callable[[int], float],
        compilation: float,
        row_length: int | None = None,
    ):
        self._config, self._task, self._data, self._mesh = config, task, data, mesh
        self._row_flops = row_flops
        self.packing: packing.Packing | None = None
        if getattr(task.config, "pack", False):
            devices = mesh.shape["data"] * mesh.shape["fsdp"]
            self.packing = packing.plan(
                data,
                config.batch_size,
                config.steps,
                devices,
                self._row_flops,
                config.accumulate_steps,
                compilation,
                row_length,
            )
        self._buckets = buckets(data, config.batch_size, config.steps, row_flops, compilation)

    @property
    def row_length(self) -> int:
        """Returns the number of tokens of a packed row; 0 if batches are not packed."""
        return self.packing.length if self.packing else 0

    def __call__(self, start_step: int, local_rows: np.ndarray) -> Batches:
        """Yields the rows of each batch that this process feeds; see `loop.fit`."""
        config, data = self._config, self._data
        if self.packing:
            # The number of rows differs between packed batches, and so do the rows that this process feeds.
            rows_of = functools.partial(sharding.local_rows, self._mesh)
            return packing.train_batches(
                data, self.packing, config.batch_size, config.seed, start_step, rows_of
            )
        return batches.train_batches(
            data, config.batch_size, config.seed, start_step,
            group_by_length=config.group_by_length, buckets=self._buckets, local_rows=local_rows,
        )  # fmt: skip

    def largest(self) -> dict[str, np.ndarray]:
        """Returns the rows that this process feeds of a batch of the largest shape, all of them padding."""
        data, size = self._data, self._config.batch_size
        rows_of = functools.partial(sharding.local_rows, self._mesh)
        nothing = np.full(size, -1)
        if self.packing is None:
            return batches.make_batch(data, nothing, self._buckets[-1:], rows_of(size))
        largest = dataclasses.replace(self.packing, rows=self.packing.rows[-1:])
        return packing.make_batch(data, batches.expand(nothing, data.rows_per_example), largest, rows_of)

    def flops_per_step(self) -> float:
        """Returns the mean model FLOPs of a batch; 0 if the encoder is not trained."""
        if self._task.freeze:
            return 0.0
        data = self._data
        if self.packing:
            return self.packing.mean_rows * self._row_flops(self.packing.length)
        # Rows are padded to the length of their bucket. The mean over examples approximates that of batches.
        widths = np.asarray(self._buckets)[np.searchsorted(self._buckets, data.group_lengths)]
        row_widths = self._task.objective().row_widths
        of_width = {
            int(width): sum(map(self._row_flops, row_widths(data.rows_per_example, int(width))))
            for width in np.unique(widths)
        }
        return self._config.batch_size * float(np.mean([of_width[int(width)] for width in widths]))
