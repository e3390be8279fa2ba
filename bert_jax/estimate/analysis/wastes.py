"""Inefficiencies of a compiled train step, each with the setting that avoids it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bert_jax.estimate.analysis.collectives import Collective
from bert_jax.estimate.analysis.gpu_program import SLICES, Program
from bert_jax.estimate.analysis.hlo import Array, Module, walk
from bert_jax.estimate.analysis.timing import Compute
from bert_jax.estimate.chips.tpus import Chip
from bert_jax.io.wording import counted

_MIB, _GIB = 2.0**20, 2.0**30

# Fractions above which an inefficiency is reported.
_OF_MEMORY = 0.05
_OF_TIME = 0.1
_OF_TRAFFIC = 0.1


def find(
    module: Module,
    compute: Compute,
    collectives: Iterable[Collective],
    *,
    chip: Chip,
    mesh_shape: Mapping[str, int],
    parameter_bytes: float,
    optimizer_bytes: float,
    length: int,
    heads: int,
    scanned: bool,
) -> list[str]:
    """Returns the inefficiencies as lines for the user.

    Args:
        module: the compiled program.
        compute: computation time of the program.
        collectives: collectives of the program.
        chip: the chip that it was compiled for.
        mesh_shape: axis -> size, in mesh order.
        parameter_bytes: size of the parameters on each chip.
        optimizer_bytes: size of the optimizer state on each chip.
        length: tokens per row.
        heads: attention heads on each chip.
        scanned: whether layers are scanned.
    """
    collectives = list(collectives)
    lines = []
    scores = attention_scores(module, length, heads)
    if scores is not None:
        lines.append(
            f"attention stores float32 scores {list(scores.dims)} ({scores.bytes / _GIB:.2f} GiB) in HBM; a "
            "fused kernel avoids this: `bert-jax configs --fields` says at model.attention which rows, heads "
            "and positions have one"
        )
    lines += _traffic(compute, collectives, mesh_shape, parameter_bytes)
    if compute.moving_seconds > _OF_TIME * compute.seconds:
        lines.append(
            f"{compute.moving_seconds / compute.seconds:.0%} of the computation only copies, transposes, "
            f"pads and slices; {_what_to_try(scanned)}"
        )
    lines += _whole_optimizer(mesh_shape, optimizer_bytes, chip.hbm_bytes)
    if compute.recomputed:
        lines.append(
            f"the compiler recomputes {compute.recomputed} operations because memory is short: a smaller "
            "batch, or more --config.accumulate_steps, may be faster"
        )
    return lines


def find_on_gpu(
    program: Program,
    *,
    mesh_shape: Mapping[str, int],
    optimizer_bytes: float,
    hbm_bytes: float,
    scanned: bool,
) -> list[str]:
    """Returns the inefficiencies on GPUs that can be found without times, as lines for the user."""
    lines = []
    moved = program.kinds.get(SLICES)
    if moved is not None and moved.bytes > _OF_TRAFFIC * program.bytes:
        lines.append(
            f"{moved.bytes / program.bytes:.0%} of the bytes are moved by slices and copies alone; "
            f"{_what_to_try(scanned)}"
        )
    return lines + _whole_optimizer(mesh_shape, optimizer_bytes, hbm_bytes)


def _what_to_try(scanned: bool) -> str:
    if scanned:
        return "--config.model.scan_unroll=0 avoids the part that stacks activations in a scan"
    return "--operations=20 shows where"


def _whole_optimizer(mesh_shape: Mapping[str, int], optimizer_bytes: float, hbm_bytes: float) -> list[str]:
    chips = mesh_shape["data"]
    if mesh_shape["fsdp"] > 1 or chips == 1 or optimizer_bytes <= _OF_MEMORY * hbm_bytes:
        return []
    shards = min(8, chips & -chips)  # a moderate number that divides the number of chips
    return [
        f"every chip holds the whole optimizer state ({optimizer_bytes / _GIB:.2f} GiB): "
        f"--config.mesh.fsdp={shards} reduces it to {optimizer_bytes / shards / _GIB:.2f} GiB"
    ]


def attention_scores(module: Module, length: int, heads: int) -> Array | None:
    """Returns the largest float32 array in HBM that holds attention scores, or None.

    It has one score per head for every pair of tokens.
    """
    found = None
    for visit in walk(module):
        if visit.fused or visit.instruction.opcode in ("parameter", "get-tuple-element", "tuple"):
            continue
        for array in visit.instruction.arrays:
            rest = array.size // (length * length)
            if (
                array.dtype == "f32"
                and array.space == 0
                and len(array.dims) >= 4
                and array.dims.count(length) >= 2
                and rest % heads == 0
                and (found is None or array.size > found.size)
            ):
                found = array
    return found


def _traffic(
    compute: Compute, collectives: list[Collective], mesh_shape: Mapping[str, int], parameter_bytes: float
) -> list[str]:
    lines = []
    exposed = sum(one.total_seconds for one in collectives if not one.overlapped)
    if exposed > _OF_TIME * (compute.seconds + exposed):
        lines.append(
            f"the chips wait for each other for {exposed / (compute.seconds + exposed):.0%} of the step: "
            "more rows per chip (batch_size, or accumulate_steps) reduce this"
        )
    summed = [one for one in collectives if one.kind == "all-reduce" and "data" in one.axes]
    if _total(summed) > (1 + _OF_TRAFFIC) * parameter_bytes:
        lines.append(
            f"{_total(summed) / _GIB:.2f} GiB per step are all-reduced over data, for "
            f"{parameter_bytes / _GIB:.2f} GiB of gradients: some are sent more than once"
        )
    gathered = [
        one for one in collectives if one.kind == "all-gather" and one.times > 1 and "fsdp" in one.axes
    ]
    if _total(gathered) > _MIB:
        lines.append(
            f"inside the scan over layers, fsdp gathers {_total(gathered) / _GIB:.2f} GiB per step in "
            f"{sum(one.times for one in gathered)} all-gathers: a smaller --config.mesh.fsdp gathers less"
        )
    reduced = [
        one
        for one in collectives
        if one.kind == "all-reduce" and "fsdp" in one.axes and one.payload > _MIB and mesh_shape["fsdp"] > 1
    ]
    if reduced:
        times = counted(sum(one.times for one in reduced), "time")
        lines.append(
            f"{_total(reduced) / _GIB:.2f} GiB per step are all-reduced over fsdp ({times}) and then "
            "sliced: a reduce-scatter would send half"
        )
    return lines


def _total(collectives: list[Collective]) -> float:
    return sum(one.total_bytes for one in collectives)
