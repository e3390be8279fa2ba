"""Prediction with a fine-tuned work directory."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
import numpy as np

from bert_jax import checkpoint
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform
from bert_jax.parallel import sharding
from bert_jax.tasks import fields, registry
from bert_jax.tasks.predictions import Predictions
from bert_jax.tasks.rows import assembly, batches, outputs, windows
from bert_jax.tasks.setup import split_file
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import BEST

_SHORTEST = 32  # tokens of the shortest rows that `warm_up` compiles


class Predictor:
    """Predicts with the model of a fine-tuned work directory.

    Args:
        directory: the work directory of a `finetune` run.
        which: "best" for the checkpoint that scored best on the evaluation file, if there is one, or "last".
        batch_size: the maximum number of groups of rows in a batch; 0 for the batch size of training.
        log: called with each line to be logged.
        overrides: values of fields of the run's configuration that differ from those of training.
    """

    def __init__(
        self,
        directory: str,
        which: str = BEST,
        batch_size: int = 0,
        log: Callable[[str], None] = print,
        overrides: Mapping[str, Any] = types.MappingProxyType({}),
    ):
        run = run_directory.read_run(directory)
        if run["command"] != "finetune":
            raise UserError(f"{directory} is a work directory of {run['command']}, expected one of finetune")
        if which not in (BEST, "last"):
            raise UserError(f"--checkpoint={which}: expected best or last")
        recorded = fields.complete(ml_collections.ConfigDict(run["config"]))
        for name, value in overrides.items():
            fields.override(recorded, name, value)
        config = fields.of_run(recorded)
        tokenizer = run_directory.load_tokenizer(directory)
        spec = registry.get(config.task)
        model = config.model.encoder()
        self.config = config
        self.task = spec.task(
            fields.of_task(config), spec, run["labels"], tokenizer, model.for_inference(platform.target())
        )
        kernel_check.ensure(self.task.model_config, log)
        self._mesh = sharding.make_mesh()
        size = batch_size or config.batch_size
        self.batch_size = -(-size // self._mesh.size) * self._mesh.size
        self._sizes: tuple[int, ...] = (self.batch_size,)
        self._buckets: tuple[int, ...] = ()
        root = run_directory.find_root(directory)
        best = os.path.join(root, BEST)
        source = best if which == BEST and files.exists(best) else root
        objective = self.task.objective()
        abstract = sharding.abstract_replicated(objective.init, self._mesh)
        self._params, report = checkpoint.load_params(source, abstract, log=log)
        if report.new:
            raise UserError(f"{report.source} lacks {report.new[0]}: it is not a checkpoint of this task")
        self.source = report.source
        self._predict: Callable = outputs.make_predict(objective, self._mesh)

    def file(self, split: str) -> str:
        """Returns the path of a split's file in the run's configuration; "" if it has none."""
        return split_file(self.config, self.task.spec, split)

    def predict(
        self, examples: Any, on_batch: Callable[[int, int], None] = lambda done, total: None
    ) -> Predictions:
        """Returns the predictions for examples that the task has read; `on_batch` as in `predict_all`."""
        rows = self.task.encode(examples)
        return self.task.decode(examples, rows, self(rows, on_batch))

    def __call__(
        self, data: batches.EncodedRows, on_batch: Callable[[int, int], None] = lambda done, total: None
    ) -> np.ndarray:
        """Returns the outputs of encoded rows; the result and `on_batch` are as in `outputs.predict_all`."""
        groups = len(data) // data.rows_per_example
        size = next((size for size in self._sizes if size >= groups), self.batch_size)
        return outputs.predict_all(
            self._predict, self._params, data, size, self._mesh, self._buckets, on_batch=on_batch
        )

    def warm_up(self) -> int:
        """Compiles the model for all shapes that later calls use, so that none of them waits for compilation.

        From then on, a batch has either one group of rows per device or `batch_size` groups, and rows are
        padded to 32, 64, ..., `max_seq_length` tokens.

        Returns:
            The number of compiled programs.
        """
        task = self.task
        longest, group = task.config.max_seq_length, task.objective().choices
        lengths = (_SHORTEST << power for power in range(longest.bit_length()))
        self._buckets = (*(length for length in lengths if length < longest), longest)
        self._sizes = tuple(sorted({self._mesh.size, self.batch_size}))
        pairs: list[windows.Pair] = [([], None)] * group
        rows = assembly.assemble([(pairs, False)], (), task.tokenizer, longest, rows_per_example=group)
        shapes = [
            batches.make_batch(rows, np.full(size, -1), (padded,))
            for size in self._sizes
            for padded in self._buckets
        ]
        predict = outputs.make_predict(task.objective(), self._mesh)
        self._predict = outputs.compile_predict(predict, self._mesh, self._params, shapes)
        return len(shapes)
