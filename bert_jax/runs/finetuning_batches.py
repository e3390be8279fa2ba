"""The batches of a fine-tuning run: their shapes, and the rows that this process feeds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from bert_jax.io.wording import alternatives, counted
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings.typed.finetune_config import FinetuneConfig
from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.rows import batches, packing
from bert_jax.tasks.rows.costs import Costs
from bert_jax.training import auto_accumulation
from bert_jax.training.evaluators import Batches
from bert_jax.training.step import Programs
from bert_jax.workdir.run_directory import WorkDir

_ROW_LENGTH = "row_length"  # the entry of config.json with the number of tokens of a packed row, or 0


class TrainingBatches:
    """The batches of a training file: packed if that saves computation, otherwise grouped by length.

    Args:
        config: the configuration of the run.
        task: the task that is trained.
        data: the encoded rows of the training file.
        mesh: the device mesh that the batches are placed on.
        costs: the costs of a train step.
        row_length: that of the run that goes on; see `packing.plan`.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        task: FinetuneTask,
        data: batches.EncodedRows,
        mesh: jax.sharding.Mesh,
        costs: Costs,
        row_length: int | None = None,
    ):
        self._config, self._task, self._data, self._mesh = config, task, data, mesh
        self._row_flops = costs.row_flops
        self.packing: packing.Packing | None = None
        if task.packs:
            devices = mesh.shape["data"] * mesh.shape["fsdp"]
            self.packing = packing.plan(
                data,
                config.batch_size,
                config.steps,
                devices,
                costs.row_flops,
                config.accumulate_steps,
                costs.compilation,
                row_length,
            )
        size = config.batch_size
        epochs = config.steps / batches.steps_per_epoch(len(data.group_lengths), size)
        self._buckets = batches.bucket_lengths(
            data.group_lengths, size, data.max_seq_length, config.steps, costs.least_saved(data, epochs)
        )

    @property
    def row_length(self) -> int:
        """Returns the number of tokens of a packed row; 0 if batches are not packed."""
        return self.packing.length if self.packing else 0

    def describe(self, log: Callable[[str], None]) -> None:
        """Logs the shapes of packed batches, if batches are packed."""
        if shapes := self.packing:
            rows = f"{alternatives(shapes.rows)} row{'s' * (shapes.rows != (1,))} of {shapes.length} tokens"
            log(f"a batch of {counted(self._config.batch_size, 'example')} is packed into {rows}")

    def __call__(self, start_step: int, local_rows: np.ndarray) -> Batches:
        """Yields the rows of each batch that this process feeds; see `train.fit`."""
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


def choose(
    config: FinetuneConfig,
    task: FinetuneTask,
    objective: Objective,
    data: batches.EncodedRows,
    mesh: jax.sharding.Mesh,
    costs: Costs,
    workdir: WorkDir,
    log: Callable[[str], None],
    limit: float | None = None,
) -> tuple[FinetuneConfig, Programs, TrainingBatches]:
    """Returns the batches of a run, in the number of parts that `accumulate_steps=0` stands for.

    The length of packed rows is written to config.json, and a run that resumes keeps it.

    Args:
        config: the configuration of the run.
        task: the task that is trained.
        objective: the training objective.
        data: the encoded rows of the training file.
        mesh: the device mesh.
        costs: the costs of a train step.
        workdir: the work directory, whose run has been opened.
        log: called with lines that describe the choices.
        limit: see `auto_accumulation.choose`.

    Returns:
        The configuration with the number of parts and the programs that have been compiled for it (see
        `auto_accumulation.choose`), and the batches.

    Raises:
        UserError: see `auto_accumulation.choose`.
    """
    # A run that resumes may have other devices, and its batches are those of its start.
    row_length = workdir.recorded(_ROW_LENGTH)

    def in_parts(parts: int) -> TrainingBatches:
        divided = dataclasses.replace(config, accumulate_steps=parts)
        return TrainingBatches(divided, task, data, mesh, costs, row_length)

    config, programs = auto_accumulation.choose(
        config, objective, workdir, lambda parts: in_parts(parts).largest(), log, limit=limit
    )
    chosen = in_parts(config.accumulate_steps)
    workdir.record(_ROW_LENGTH, chosen.row_length)
    chosen.describe(log)
    return config, programs, chosen
