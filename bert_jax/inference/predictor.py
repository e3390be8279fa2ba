"""A fine-tuned work directory, ready to predict."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import flax.linen as nn
import jax
import ml_collections
import numpy as np

from bert_jax import checkpoint, tasks
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform
from bert_jax.models import config as bert_config
from bert_jax.parallel import sharding
from bert_jax.tasks import fields
from bert_jax.tasks.base import family
from bert_jax.tasks.rows import assembly, batches, predictions
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import BEST

_SHORTEST = 32  # tokens of the shortest rows that are compiled beforehand


class Predictor:
    """A fine-tuned work directory, ready to predict.

    Args:
      directory: a work directory of `finetune`.
      which: "best" on the evaluation file, or "last".
      batch_size: groups of rows at a time, at most; 0 for the training's.
      log: gets one line for each thing worth saying.
    """

    def __init__(
        self, directory: str, which: str = BEST, batch_size: int = 0, log: Callable[[str], None] = print
    ):
        run = run_directory.read_run(directory)
        if run["command"] != "finetune":
            raise UserError(f"{directory} is a work directory of {run['command']}, expected one of finetune")
        if which not in (BEST, "last"):
            raise UserError(f"--checkpoint={which}: expected best or last")
        config = fields.complete(ml_collections.ConfigDict(run["config"]))
        tokenizer = run_directory.load_tokenizer(directory)
        spec = tasks.get(config.task)
        model = bert_config.from_dict(config.model)
        self.problem = family(spec.kind)(
            config, spec, run["labels"], tokenizer, model.for_inference(platform.target())
        )
        kernel_check.ensure(self.problem.bert, log)
        self._mesh = sharding.make_mesh()
        size = batch_size or config.batch_size
        self.batch_size = -(-size // self._mesh.size) * self._mesh.size
        self._sizes, self._buckets = (self.batch_size,), ()
        root = run_directory.find_root(directory)
        best = os.path.join(root, BEST)
        source = best if which == BEST and files.exists(best) else root
        task = self.problem.task
        replicated = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated),
            nn.unbox(jax.eval_shape(task.init, jax.random.key(0))),
        )
        self._params, report = checkpoint.load_params(source, abstract, log=log)
        if report.new:
            raise UserError(f"{report.source} lacks {report.new[0]}: it is no checkpoint of this task")
        self.source = report.source
        self._predict = predictions.make_predict(task, self._mesh)

    def __call__(
        self, data: batches.EncodedRows, on_batch: Callable[[int, int], None] = lambda done, total: None
    ) -> np.ndarray:
        """The outputs of every row, as `predictions.predict_all` returns them and with its `on_batch`."""
        groups = len(data) // data.rows_per_example
        size = next((size for size in self._sizes if size >= groups), self.batch_size)
        return predictions.predict_all(
            self._predict, self._params, data, size, self._mesh, self._buckets, on_batch=on_batch
        )

    def warm_up(self) -> int:
        """Compiles all that later calls need, so that none of them waits for it; returns how many programs.

        From then on batches have one row a device or `batch_size`, padded to 32, 64, ... `max_length` tokens.
        """
        problem = self.problem
        longest, group = problem.config.max_length, problem.group
        lengths = (_SHORTEST << power for power in itertools.count())
        self._buckets = (*itertools.takewhile(lambda length: length < longest, lengths), longest)
        self._sizes = tuple(sorted({self._mesh.size, self.batch_size}))
        empty = [([([], None)] * group, False)]
        rows = assembly.assemble(empty, None, problem.tokenizer, longest, rows_per_example=group)
        shapes = [
            batches.make_batch(rows, np.full(size, -1), (length,))
            for size in self._sizes
            for length in self._buckets
        ]
        self._predict = predictions.compile_predict(problem.task, self._mesh, self._params, shapes)
        return len(shapes)
