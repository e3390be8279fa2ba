"""Computes the outputs of a fine-tuned model for a whole data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.io import progress
from bert_jax.objectives.base import Objective
from bert_jax.parallel import collective, microbatches, placement, sharding
from bert_jax.tasks.rows import batches, packing, windows
from bert_jax.training import flops

# What a compilation of a forward pass costs, by the time of that of a train step. It takes a tenth of it,
# 1.5 s of a core with MiniLM, and is stored: later runs, whose rows are padded to the same multiples of 8, do
# not pay for it.
_OF_FORWARD_PASS = 0.03


class Costs(NamedTuple):
    """The model FLOPs of a row by its number of tokens, and of the time that a compilation takes."""

    row_flops: Callable[[int], float]
    compilation: float

    @classmethod
    def of_training(cls, objective: Objective, mesh: jax.sharding.Mesh, dtype: str) -> Costs:
        """Returns the costs of the train step of an objective; `dtype` is that of its matmuls."""
        return cls(flops.row_flops(objective), flops.compilation_flops(mesh, dtype))

    def of_outputs(self, times: int = 1) -> Costs:
        """Returns the costs of a forward pass, of which each program is called `times` times."""
        # It has no backward pass, which is two thirds of the FLOPs.
        return Costs(lambda length: self.row_flops(length) / 3, _OF_FORWARD_PASS * self.compilation / times)

    def least_saved(self, data: batches.EncodedRows, epochs: float = 1.0) -> float:
        """Returns the padded tokens of an epoch that another length has to save (`bucket_lengths`)."""
        longest = data.max_seq_length
        of_token = self.row_flops(longest) * data.rows_per_example / longest
        return self.compilation / max(of_token * epochs, 1.0)

    def of_padded(self, data: batches.EncodedRows, size: int, lengths: Sequence[int]) -> float:
        """Returns the cost of padded batches of `size` rows, sorted by length, with compilations."""
        longest = np.append(np.sort(data.lengths)[size - 1 :: size], data.lengths.max())
        widths, counts = np.unique(
            np.searchsorted(lengths, longest[: batches.steps_per_epoch(len(data), size)]), return_counts=True
        )
        rows = sum(
            count * size * self.row_flops(lengths[width]) for width, count in zip(widths, counts, strict=True)
        )
        return rows + len(widths) * self.compilation


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The shapes of the batches in which the outputs of a data set are computed.

    Attributes:
        size: the number of groups in a global batch of padded rows; a multiple of the mesh's data and fsdp
            axes.
        lengths: the lengths that rows are padded to, ascending; chosen to suit the data if empty.
        packed: the shape of packed batches, several examples a row; None if rows are padded.
    """

    size: int
    lengths: tuple[int, ...] = ()
    packed: packing.Packing | None = None

    @classmethod
    def choose(
        cls,
        data: batches.EncodedRows,
        size: int,
        costs: Costs,
        mesh: jax.sharding.Mesh,
        *,
        packs: bool,
        most_tokens: int | None = None,
    ) -> Shapes:
        """Returns the shapes that cost the least with their compilations, the same in all processes of a run.

        Args:
            data: the encoded rows.
            size: as of the class.
            costs: the costs of a forward pass.
            mesh: the device mesh.
            packs: whether rows may hold several examples, which groups and features of tokens rule out.
            most_tokens: the maximum number of tokens of a packed batch; None for what suits the devices.
        """
        least = costs.least_saved(data)
        lengths = batches.bucket_lengths(
            data.group_lengths, size, data.max_seq_length, least=least, for_few=True
        )
        if not (packs and len(data)) or data.rows_per_example > 1 or data.token_features:
            return cls(size, lengths)
        devices = mesh.shape["data"] * mesh.shape["fsdp"]
        # Processes may have different numbers of cores.
        tokens = collective.call_in_primary(lambda: microbatches.tokens_on_device(mesh))
        if most_tokens is not None:
            tokens = min(tokens, most_tokens // devices)
        padded = costs.of_padded(data, size, lengths) - costs.compilation
        return cls(size, lengths, packing.for_outputs(data.lengths, tokens, devices, costs.row_flops, padded))


def make_predict(
    objective: Objective, mesh: jax.sharding.Mesh, rows: int | None = None
) -> sharding.MeshFunction:
    """Returns a function (params, global batch, frozen=None) -> float32 [B, C], replicated on every process.

    The function is compiled for each shape. On CPUs, it computes a batch in parts that suit them. Parameters
    that are all trained may be `placement.UnstackedLayers`. With `rows`, only the outputs of the first rows,
    which are not padding, are returned.
    """

    def predict(params, batch, frozen=None):
        joined, parts = objective.join(params, frozen), microbatches.for_forward_pass(batch, mesh)

        def of_part(part):
            # Within the loop over the parts, so that XLA finds that what is stacked is taken apart again.
            return objective.predict(placement.restack(joined), part)

        found = microbatches.mapped(of_part, batch, parts)
        return found if rows is None else found[:rows]

    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return sharding.MeshFunction(jax.jit(predict, out_shardings=replicated), mesh)


def compile_predict(
    predict: sharding.MeshFunction,
    mesh: jax.sharding.Mesh,
    params: Any,
    shapes: Sequence[dict],
    *,
    on_program: Callable[[int, int], None] = progress.not_shown,
) -> Callable:
    """Returns a function (params, global batch) -> outputs that is compiled for given shapes only.

    Args:
        predict: a function that `make_predict` returned.
        mesh: the mesh that holds the parameters.
        params: the parameters, on the mesh.
        shapes: one batch of each shape. All of them must have the same arrays; the function ignores any other
            arrays of the batches that it is called with.
        on_program: called with (shapes done, all shapes) at the start and after each shape.
    """
    compiled, names = {}, ()
    on_program(0, len(shapes))
    for done, batch in enumerate(shapes, 1):
        names = tuple(batch)
        program = predict.lower(params, sharding.global_batch(batch, mesh)).compile()
        compiled[batch["input_ids"].shape] = program
        on_program(done, len(shapes))

    def call(params, batch):
        return compiled[batch["input_ids"].shape](params, {name: batch[name] for name in names})

    return call


def predict_all(
    predict: Callable,
    params: Any,
    data: batches.EncodedRows,
    shapes: Shapes,
    mesh: jax.sharding.Mesh,
    *,
    on_batch: Callable[[int, int], None] = progress.not_shown,
) -> np.ndarray:
    """Returns the outputs of all groups of rows, in their order.

    `predict` is a function that `make_predict` returned, `params` are on its mesh, and `data` are the same in
    every process. `on_batch` is called with (batches done, all batches) at the start and after each batch.

    Returns:
        The outputs [groups, C]. If `predict` returns [rows, L, C], the outputs of every token, [total, C]. If
        the rows are windows with `row_weights`, the mean over the windows of each example, [examples, C].
    """
    of_shape = _of_padded if shapes.packed is None else _of_packed
    result = of_shape(predict, params, data, shapes, mesh, on_batch)
    return result if data.row_weights is None else windows.join(result, data.examples)


def _of_padded(predict, params, data, shapes, mesh, on_batch) -> np.ndarray:
    size = shapes.size
    order = batches.eval_order(data, size)
    made = batches.eval_batches(
        data, size, buckets=shapes.lengths, local_rows=sharding.local_rows(mesh, size)
    )
    outputs = microbatches.pipelined(
        lambda batch: predict(params, sharding.global_batch(batch, mesh)), zip(order, made, strict=True)
    )
    result = np.empty(0, np.float32)
    on_batch(0, len(order))
    for done, (groups, output) in enumerate(outputs, 1):
        on_batch(done, len(order))
        per_token = output.ndim == 3
        if done == 1:
            rows = len(data.tokens) if per_token else len(data) // data.rows_per_example
            result = np.empty((rows, output.shape[-1]), output.dtype)
        if not per_token:
            result[groups[groups >= 0]] = output[groups >= 0]
            continue
        for row, states in zip(batches.expand(groups, data.rows_per_example), output, strict=True):
            if row >= 0:
                begin, end = data.offsets[row : row + 2]
                result[begin:end] = states[: end - begin]
    return result


def _of_packed(predict, params, data, shapes, mesh, on_batch) -> np.ndarray:
    shape = shapes.packed
    made = packing.output_batches(data, shape, sharding.local_rows(mesh, shape.multiple))
    outputs = microbatches.pipelined(lambda make: predict(params, sharding.global_batch(make(), mesh)), made)
    result = np.empty(0, np.float32)
    on_batch(0, len(made))
    for done, (rows, output) in enumerate(outputs, 1):
        on_batch(done, len(made))
        if done == 1:
            result = np.empty((len(data), output.shape[-1]), output.dtype)
        for examples, found in zip(rows, output, strict=False):  # rows of the last batch may be empty
            result[examples] = found[: len(examples)]
    return result
