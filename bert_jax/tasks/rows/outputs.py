"""Computes the outputs of a fine-tuned model for a whole data set."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.io import progress
from bert_jax.objectives.base import Objective
from bert_jax.parallel import collective, microbatches, placement, sharding
from bert_jax.tasks.rows import batches, packing


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The batch shapes for computing the outputs of a data set.

    Attributes:
        size: the number of groups in a global batch of padded rows; a multiple of the mesh's data and fsdp
            axes.
        lengths: the lengths that rows are padded to, ascending; chosen to suit the data if empty.
        packed: the shape of packed batches, with several examples per row; None if rows are padded.
    """

    size: int
    lengths: tuple[int, ...] = ()
    packed: packing.Packing | None = None

    @classmethod
    def choose(
        cls,
        data: batches.EncodedRows,
        size: int,
        row_flops: Callable[[int], float],
        mesh: jax.sharding.Mesh,
        *,
        packs: bool,
        most_tokens: int | None = None,
    ) -> Shapes:
        """Returns the shapes with the fewest FLOPs. All processes of a run get the same shapes.

        `row_flops` maps the number of tokens of a row to its FLOPs. `packs` is whether rows may hold several
        examples, which groups and token features rule out. `most_tokens` is the maximum number of tokens of a
        packed batch; None for a number that suits the devices.
        """
        lengths = batches.bucket_lengths(data.group_lengths, size, data.max_seq_length)
        if not (packs and len(data)) or data.rows_per_example > 1 or data.token_features:
            return cls(size, lengths)
        devices = mesh.shape["data"] * mesh.shape["fsdp"]
        # Processes may have different numbers of cores.
        tokens = collective.call_in_primary(lambda: microbatches.tokens_on_device(mesh))
        if most_tokens is not None:
            tokens = min(tokens, most_tokens // devices)
        longest = [data.lengths[groups[groups >= 0]].max() for groups in batches.eval_order(data, size)]
        widths = np.asarray(lengths)[np.searchsorted(lengths, longest)]
        padded = size * sum(row_flops(int(width)) for width in widths)
        return cls(size, lengths, packing.for_outputs(data.lengths, tokens, devices, row_flops, padded))


def make_predict(objective: Objective, mesh: jax.sharding.Mesh) -> sharding.MeshFunction:
    """Returns a function (params, global batch, frozen=None) -> float32 [B, C], replicated on every process.

    The function is compiled for each shape. On CPUs, it splits a batch into microbatches of suitable size.
    Without frozen parameters, the parameters may be `placement.UnstackedLayers`.
    """

    def predict(params, batch, frozen=None):
        joined, parts = objective.join(params, frozen), microbatches.for_forward_pass(batch, mesh)

        def of_part(part):
            # Stacking is inside the loop over microbatches, so XLA can cancel it with the later unstacking.
            return objective.predict(placement.restack(joined), part)

        return microbatches.mapped(of_part, batch, parts)

    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return sharding.MeshFunction(jax.jit(predict, out_shardings=replicated), mesh)


def computed(
    dispatch: Callable[[dict[str, jax.Array]], jax.Array],
    data: batches.EncodedRows,
    shapes: packing.Packing | Sequence[tuple[np.ndarray, Sequence[int]]],
    mesh: jax.sharding.Mesh,
    *,
    more: Callable[[np.ndarray], dict[str, np.ndarray]] = lambda groups: {},
    on_batch: Callable[[int, int], None] = progress.not_shown,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (the b groups of a batch, their outputs [b, ...], or the outputs of all their rows).

    `dispatch` returns the outputs [B, ...] of a global batch without waiting for them. `shapes` is the shape
    of packed batches; or, for each padded batch, its groups, int64 [B] with -1 for padding at the end, and
    the lengths that its rows may be padded to. `more` returns additional arrays [B, ...] for the groups of a
    padded batch. `on_batch` is called with (batches done, all batches) at the start and after each batch.
    """
    # Targets would be copied to the devices, and labeled rows would need separate programs.
    data = dataclasses.replace(data, targets={}, token_targets={}, row_weights=None)

    def padded(groups, lengths):
        local_rows = sharding.local_rows(mesh, len(groups))
        return batches.make_batch(data, groups, lengths, local_rows) | more(groups)

    made: list[tuple[Any, Callable[[], dict[str, np.ndarray]]]]
    if isinstance(shapes, packing.Packing):
        made = packing.output_batches(data, shapes, sharding.local_rows(mesh, shapes.multiple))
    else:
        made = [(groups, functools.partial(padded, groups, lengths)) for groups, lengths in shapes]
    on_batch(0, len(made))
    outputs = microbatches.pipelined(lambda make: dispatch(sharding.global_batch(make(), mesh)), made)
    for done, (numbers, output) in enumerate(outputs, 1):
        on_batch(done, len(made))
        if isinstance(shapes, packing.Packing):  # rows of the last batch may be empty
            found = [of_row[: len(each)] for each, of_row in zip(numbers, output, strict=False)]
            yield np.concatenate(numbers), np.concatenate(found)
        else:
            count = np.count_nonzero(numbers >= 0)
            yield numbers[:count], output[: count * len(output) // len(numbers)]


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

    `predict` is a result of `make_predict`, `params` are on its mesh, and `data` are the same in every
    process. `on_batch` is as in `computed`.

    Returns:
        The outputs [groups, C]. If `predict` returns [rows, L, C], the outputs of all tokens, [total, C]. If
        rows are windows with `row_weights`, the mean over the windows of each example, [examples, C].
    """
    of_batches: Any = shapes.packed
    if of_batches is None:
        lengths = shapes.lengths or batches.bucket_lengths(
            data.group_lengths, shapes.size, data.max_seq_length
        )
        of_batches = [(groups, lengths) for groups in batches.eval_order(data, shapes.size)]
    dispatch = functools.partial(predict, params)
    result = np.empty(0, np.float32)
    for groups, output in computed(dispatch, data, of_batches, mesh, on_batch=on_batch):
        if not result.size:
            of_groups = len(data) // data.rows_per_example
            size = len(data.tokens) if output.ndim == 3 else of_groups
            result = np.empty((size, output.shape[-1]), output.dtype)
        if output.ndim == 2:
            result[groups] = output
            continue
        for row, states in zip(batches.expand(groups, data.rows_per_example), output, strict=True):
            begin, end = data.offsets[row : row + 2]
            result[begin:end] = states[: end - begin]
    if data.row_weights is None:
        return result
    counts = np.bincount(data.examples).astype(np.float32)
    return np.add.reduceat(result, data.first_rows, axis=0) / counts[:, None]
