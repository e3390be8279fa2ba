"""The outputs of a fine-tuned model for a whole data set."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.objectives.base import Objective
from bert_jax.parallel import pipelining, sharding
from bert_jax.tasks.rows import batches, windows


def make_predict(objective: Objective, mesh: jax.sharding.Mesh) -> Callable:
    """Returns (params, global batch, frozen=None) -> float32 [B, C] on every process.

    It is `objective.predict` on the joined parameters, compiled for each shape.
    """
    predict = _jit(objective, mesh)

    def call(params, batch, frozen=None):
        with sharding.on_mesh(mesh):
            return predict(params, batch, frozen)

    return call


def _jit(objective: Objective, mesh: jax.sharding.Mesh) -> Callable:
    def predict(params, batch, frozen=None):
        return objective.predict(objective.join(params, frozen), batch)

    return jax.jit(predict, out_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))


def compile_predict(
    objective: Objective, mesh: jax.sharding.Mesh, params: Any, shapes: Iterable[dict]
) -> Callable:
    """Returns (params, global batch) -> outputs as `make_predict`, but compiled at once, for no other shapes.

    Args:
        objective: without frozen parameters.
        mesh: where the parameters lie.
        params: on the mesh.
        shapes: a batch of each shape, all with the same arrays. Other arrays of later batches are ignored.
    """
    predict = _jit(objective, mesh)
    compiled = {}
    with sharding.on_mesh(mesh):
        for batch in shapes:
            batch = sharding.global_batch(batch, mesh)
            compiled[batch["input_ids"].shape] = predict.lower(params, batch).compile()

    def call(params, batch):
        given = {name: batch[name] for name in names}
        return compiled[batch["input_ids"].shape](params, given)

    names = tuple(batch)
    return call


def predict_all(
    predict: Callable,
    params,
    data: batches.EncodedRows,
    batch_size: int,
    mesh,
    buckets: Sequence[int] = (),
    *,
    on_batch: Callable[[int, int], None] = lambda done, total: None,
    run: Callable[[Callable[[], Any]], Any] = lambda function: function(),
) -> np.ndarray:
    """Returns the output of every group of rows, in their order.

    This is float32 [groups, C], or, where the outputs are [B, L, C], float32 [total, C] for every token. For
    windows with `row_weights` it is the mean over the windows of each example: float32 [examples, C].

    Args:
        predict: as `make_predict` returns it.
        params: on the mesh.
        data: the encoded rows, the same in every process.
        batch_size: groups of the global batch; a multiple of the mesh's data and fsdp axes.
        mesh: of `predict`.
        buckets: the lengths that rows are padded to; else they are chosen to suit the data.
        on_batch: called with the number of batches that are done and of all, at the start and after each;
            what it raises ends the prediction.
        run: calls the function it is given, which dispatches a batch, and compiles where its shape is new.
    """
    order = batches.eval_order(data, batch_size)
    local_rows = sharding.local_rows(mesh, batch_size)
    outputs = pipelining.computed(
        lambda batch: run(lambda: predict(params, sharding.global_batch(batch, mesh))),
        zip(
            order, batches.eval_batches(data, batch_size, local_rows=local_rows, buckets=buckets), strict=True
        ),
    )
    result = None
    on_batch(0, len(order))
    for done, (groups, output) in enumerate(outputs, 1):
        on_batch(done, len(order))
        per_token = output.ndim == 3
        if result is None:
            rows = len(data.tokens) if per_token else len(data) // data.rows_per_example
            result = np.empty((rows, output.shape[-1]), np.float32)
        if not per_token:
            result[groups[groups >= 0]] = output[groups >= 0]
            continue
        for row, states in zip(groups, output, strict=True):
            if row >= 0:
                begin, end = data.offsets[row : row + 2]
                result[begin:end] = states[: end - begin]
    return result if data.row_weights is None else windows.join(result, data.group_examples)
