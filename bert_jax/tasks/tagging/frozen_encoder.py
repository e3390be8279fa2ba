"""Training of a head on a frozen encoder, whose outputs are computed only once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np

from bert_jax import convert
from bert_jax.kernels import check as kernel_check
from bert_jax.objectives.tagging import Tagging
from bert_jax.parallel import sharding
from bert_jax.settings.typed.finetune_config import FinetuneConfig
from bert_jax.tasks.rows import batches, outputs

_MAX_BYTES = 2 << 30  # features that take more memory are not stored, but computed in each step


def compute(
    objective: Tagging,
    data: Mapping[str, batches.EncodedRows],
    mesh: jax.sharding.Mesh,
    run: FinetuneConfig,
    log: Callable[[str], None],
) -> dict[str, batches.EncodedRows]:
    """Adds the outputs of the frozen encoder to rows as `token_features`.

    Features that would take too much memory are left out; they are then computed in each step.

    Args:
        objective: the objective of a head that reads features.
        data: the rows by split.
        mesh: the device mesh that computes the features.
        run: the run's configuration, which names the checkpoint.
        log: called with each line to be logged.

    Returns:
        The rows by split.
    """
    width = objective.feature_width
    tokens = sum(len(rows.tokens) for rows in data.values())
    size = tokens * width * np.dtype(np.float16).itemsize
    if size > _MAX_BYTES:
        log(f"features of {tokens:,} tokens would take {size / 2**30:.1f} GiB: computed again in each step")
        return dict(data)
    kernel_check.ensure(objective.config, log)
    abstract = {"encoder": sharding.abstract_replicated(objective.init, mesh)["encoder"]}
    params, _ = convert.load_params(run.init_from, abstract, ignore=run.init_ignore, log=log)
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    features = sharding.MeshFunction(jax.jit(objective.features, out_shardings=replicated), mesh)
    result = {}
    for split, rows in data.items():
        found = outputs.predict_all(features, params, rows, outputs.Shapes(run.batch_size), mesh)
        result[split] = dataclasses.replace(rows, token_features={"features": found})
    log(f"features of {tokens:,} tokens computed once: {size / 2**20:.0f} MiB, {width} numbers per token")
    return result
