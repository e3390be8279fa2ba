"""Predictions of a fine-tuned model over a whole set, and the file they are written to."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.io import atomic, files
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
    objective: Objective, mesh: jax.sharding.Mesh, params, shapes: Iterable[dict]
) -> Callable:
    """Returns (params, global batch) -> outputs as `make_predict`, but compiled at once, and for no other
    shapes.

    Args:
      objective: without frozen parameters.
      mesh: where the parameters lie.
      params: on the mesh.
      shapes: a batch of each shape, all with the same arrays; those that later batches have besides are left
        out.
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

    That is float32 [N / group, C], or, of a task whose outputs are [B, L, C], float32 [total, C] for every
    token. Of windows with `row_weights` it is the mean over the windows of each
    example: float32 [examples, C].

    Args:
      predict: as `make_predict` returns it.
      params: on the mesh.
      data: the encoded rows, the same in every process.
      batch_size: groups of the global batch; a multiple of the mesh's data and fsdp axes.
      mesh: of `predict`.
      buckets: the lengths that rows are padded to; else they are chosen to suit the data.
      on_batch: called with the number of batches that are done and of all, at the start and after each; what
        it raises ends the prediction.
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


def write_predictions(
    path: str, ids: Sequence[str], outputs: np.ndarray, labels: Sequence[str] | None
) -> None:
    """Writes one row an example: its id, the prediction and the probability of each label.

    Args:
      path: .tsv or .csv (a header, then `id`, `prediction` and one column `p(LABEL)` a label), or .jsonl.
      ids: [N].
      outputs: float32 [N, C] probabilities, or [N, 1] numbers of a regression.
      labels: the C label names; None for a regression.
    """
    suffix = files.suffix(path)
    content = io.StringIO()
    if suffix == ".jsonl":
        for row in records(ids, outputs, labels):
            content.write(json.dumps(row, ensure_ascii=False) + "\n")
    else:
        _write_table(content, suffix, ids, outputs, labels)
    atomic.write_text(path, content.getvalue())


def records(ids: Sequence[str], outputs: np.ndarray, labels: Sequence[str] | None) -> list[dict]:
    """What a .jsonl of `write_predictions` has of each example."""
    return [_record(id_, row, labels) for id_, row in zip(ids, outputs, strict=True)]


def _record(id_, row, labels):
    if labels is None:
        return {"id": id_, "prediction": round(float(row[0]), 6)}
    probabilities = {label: round(float(p), 6) for label, p in zip(labels, row, strict=True)}
    return {"id": id_, "prediction": labels[int(np.argmax(row))], "probabilities": probabilities}


def _write_table(file, suffix, ids, outputs, labels):
    header = ["id", "prediction", *(f"p({label})" for label in labels or ())]
    if suffix == ".csv":
        write = csv.writer(file, lineterminator="\n").writerow
    else:
        # As TSV is read here: no quoting, so no tab or newline may be inside a field.
        def write(row):
            file.write("\t".join(" ".join(field.split()) for field in row) + "\n")

    write(header)
    for id_, row in zip(ids, outputs, strict=True):
        if labels is None:
            write([id_, f"{row[0]:.6f}"])
        else:
            write([id_, labels[int(np.argmax(row))], *(f"{p:.6f}" for p in row)])
