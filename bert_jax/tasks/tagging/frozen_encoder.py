"""Training a head on a frozen encoder: what the encoder says is computed once, and only the head moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from bert_jax import convert
from bert_jax.kernels import check as kernel_check
from bert_jax.parallel import pipelining, sharding
from bert_jax.tasks.rows import batches

_MOST_BYTES = 2 << 30  # of features that are kept; more of them are computed in each step


def head_only(optimizer: optax.GradientTransformation, head: str) -> optax.GradientTransformation:
    """Updates the group `head` of the parameters alone; the others get no moments, no decay and no change."""

    def others(params):
        return {name: name != head for name in params}

    def itself(params):
        return {name: name == head for name in params}

    return optax.chain(optax.masked(optimizer, itself), optax.masked(optax.set_to_zero(), others))


def compute(
    problem: Any,
    data: Mapping[str, batches.EncodedRows],
    mesh: jax.sharding.Mesh,
    log: Callable[[str], None],
) -> dict[str, batches.EncodedRows]:
    """The rows with the `token_features` of the frozen encoder, unless these would take too much memory.

    Args:
      problem: with `task.features`; its configuration names the checkpoint.
      data: by split.
      mesh: that computes them.
      log: told what is done.
    """
    task, config = problem.task, problem.config
    width = len(task.layers) * problem.bert.hidden_size
    tokens = sum(len(rows.tokens) for rows in data.values())
    size = tokens * width * np.dtype(np.float16).itemsize
    if size > _MOST_BYTES:
        log(f"features of {tokens:,} tokens would take {size / 2**30:.1f} GiB: computed anew in each step")
        return data
    kernel_check.ensure(problem.bert, log)
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    boxed = jax.eval_shape(task.init, jax.random.key(0))["encoder"]
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), sharding.unbox(boxed)
    )
    params, _ = convert.load_params(
        config.init_from, {"encoder": abstract}, ignore=config.init_ignore, log=log
    )
    apply = jax.jit(task.features, out_shardings=replicated)
    local_rows = sharding.local_rows(mesh, config.batch_size)

    def call(batch):
        with sharding.on_mesh(mesh):
            return apply(params, sharding.global_batch(batch, mesh))

    result = {}
    for split, rows in data.items():
        kept = np.empty((len(rows.tokens), width), np.float16)
        order = batches.eval_order(rows, config.batch_size)
        found = batches.eval_batches(rows, config.batch_size, local_rows=local_rows)
        for indices, output in pipelining.computed(call, zip(order, found, strict=True)):
            for place, row in enumerate(indices):
                if row >= 0:
                    begin, end = rows.offsets[row : row + 2]
                    kept[begin:end] = output[place, : end - begin]
        result[split] = dataclasses.replace(rows, token_features={"features": kept})
    log(f"features of {tokens:,} tokens computed once: {size / 2**20:.0f} MiB, {width} numbers a token")
    return result
