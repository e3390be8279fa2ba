"""The duration of a step on a chip, by the compiler's cycle estimates and by a roofline."""

from __future__ import annotations

import dataclasses
import enum
import re
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping

from bert_jax.estimate.analysis.collectives import KINDS
from bert_jax.estimate.analysis.costliest import Cost
from bert_jax.estimate.analysis.flop_count import instruction_flops, matrix_flops
from bert_jax.estimate.analysis.hlo import (
    Array,
    Computation,
    Instruction,
    Module,
    Visit,
    operations,
    trip_count,
    walk,
)
from bert_jax.estimate.chips.tpus import Chip
from bert_jax.kernels import residual

_PARAMETER = re.compile(r" parameter\((\d+)\)$")

# Operations that take no time, or whose time is counted elsewhere.
FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call",
    "partition-id", "replica-id", "after-all", "copy-done", "slice-done", "async-start", "async-update",
    "async-done", "optimization-barrier", "domain", "send", "send-done", "recv", "recv-done",
    "call-start", "call-update", "call-done",
}  # fmt: skip
_PREFETCHES = ("copy-start", "slice-start")  # overlapped: their bytes count, their time does not
_MOVES = {
    "parameter", "bitcast", "copy", "transpose", "reshape", "slice", "pad", "concatenate", "tuple",
    "constant", "dynamic-slice", "dynamic-update-slice", "get-tuple-element",
}  # fmt: skip

KERNEL = "tpu_custom_call"  # a Pallas kernel; the compiler's other custom calls are bookkeeping
PALLAS = "Pallas kernel"  # what such a call is named in a list of operations

# Operations with fewer elements run on the scalar unit, in parallel to the rest.
_SCALARS = 1024


@dataclasses.dataclass(frozen=True)
class Compute:
    """Time of one chip, without waiting for other chips."""

    estimated_seconds: float  # the compiler's cycle estimates at the chip's clock rate
    kernel_seconds: float  # Pallas kernels, by their schedules or their bytes, whichever take longer
    kernels: int  # number of executions of these kernels
    added_seconds: float  # rooflines of operations without a compiler estimate
    added: dict[str, int]  # number of executions of these operations, by kind
    moving_seconds: float  # part of estimated_seconds for operations that only copy, transpose, pad or slice
    unknown_loops: int  # number of loops whose trip count could not be read; they are counted once
    matrix_flops: float
    hbm_bytes: float
    recomputed: int  # number of operations that the compiler repeats because memory is short

    @property
    def seconds(self) -> float:
        """Returns the time of all operations."""
        return self.estimated_seconds + self.kernel_seconds + self.added_seconds

    def roofline(self, chip: Chip) -> float:
        """Returns the time if only the matrix units or only the memory limited the chip."""
        return max(self.matrix_flops / chip.peak_flops, self.hbm_bytes / chip.hbm_bandwidth)


def compute(
    module: Module,
    chip: Chip,
    attention_flops: float = 0.0,
    head_size: int | None = None,
    kernel_cycles: Mapping[str, float] = types.MappingProxyType({}),
) -> Compute:
    """Adds up the time of a program.

    Args:
        module: the compiled program.
        chip: the chip that it was compiled for.
        attention_flops: FLOPs of the attention kernels on one chip, over all layers and both directions,
            because neither the compiler nor `matrix_flops` looks into custom calls. Used only if there are
            such kernels.
        head_size: size of one dimension of each product in these kernels; if it is smaller than the matrix
            units, a part of them is idle. None for products that fill them. Used only for kernels without
            cycles.
        kernel_cycles: the cycles of one execution of each Pallas kernel, by its `kernel_code`. Kernels that
            are not in it count as operations without an estimate.
    """
    seconds: dict[_By | None, float] = defaultdict(float)
    moving = moved_bytes = 0.0
    added: dict[str, int] = defaultdict(int)
    recomputed = kernels = 0
    attention, unscheduled = 0, 0  # executions of attention's kernels, and of those without cycles
    for by, cost in _costs(module, chip, kernel_cycles):
        instruction = cost.instruction
        moved_bytes += cost.bytes
        seconds[by] += cost.seconds
        recomputed += ".remat" in instruction.name
        moving += cost.seconds * (by is _By.CYCLES and _only_moves(module, instruction))
        kernels += cost.count * (by is _By.SCHEDULE)
        if by is _By.BYTES:
            added[instruction.target or instruction.opcode] += cost.count
        if by is not None and cost.kind == PALLAS and f"/{residual.SCOPE}/" not in instruction.op_name:
            attention += cost.count
            unscheduled += cost.count * (by is _By.BYTES)
    flops = matrix_flops(module)
    added_seconds = seconds[_By.BYTES]
    if attention:
        flops += attention_flops
        idle = max(1.0, chip.matrix_side / head_size) if head_size else 1.0
        added_seconds += unscheduled / attention * attention_flops * idle / chip.peak_flops
    return Compute(
        estimated_seconds=seconds[_By.CYCLES],
        kernel_seconds=seconds[_By.SCHEDULE],
        kernels=kernels,
        added_seconds=added_seconds,
        added=dict(added),
        moving_seconds=moving,
        unknown_loops=sum(
            visit.instruction.opcode == "while" and trip_count(module, visit.instruction) is None
            for visit in walk(module)
        ),
        matrix_flops=flops,
        hbm_bytes=moved_bytes,
        recomputed=recomputed,
    )


def costs(module: Module, chip: Chip, kernel_cycles: Mapping[str, float]) -> list[Cost]:
    """Returns all operations of a program with their times, which add up to those of `compute`.

    Without, if an attention kernel has no cycles, the time of its products.

    Args:
        module: as in `compute`.
        chip: as in `compute`.
        kernel_cycles: as in `compute`.
    """
    return [cost for _, cost in _costs(module, chip, kernel_cycles)]


class _By(enum.Enum):
    """What the time of an operation is taken from."""

    CYCLES = enum.auto()
    SCHEDULE = enum.auto()
    BYTES = enum.auto()


def _costs(
    module: Module, chip: Chip, kernel_cycles: Mapping[str, float]
) -> Iterator[tuple[_By | None, Cost]]:
    """Yields each operation with what its time is taken from; None for one that takes no time of its own."""
    for visits in operations(module):
        visit, instruction = visits[0], visits[0].instruction
        if instruction.opcode in FREE or is_collective(instruction):
            continue
        if instruction.opcode == "custom-call" and instruction.target != KERNEL:
            continue
        bytes_ = visit.times * hbm_bytes(module, visit)
        by, seconds = _seconds(module, chip, visit, bytes_, kernel_cycles)
        flops = sum(part.times * instruction_flops(part) for part in visits)
        kind = PALLAS if instruction.target == KERNEL else instruction.opcode
        yield by, Cost(instruction, kind, visit.times, seconds, flops, bytes_)


def _seconds(module, chip, visit, bytes_, kernel_cycles):
    instruction = visit.instruction
    if instruction.opcode in _PREFETCHES:
        return None, 0.0
    if instruction.estimated_cycles is not None:
        return _By.CYCLES, visit.times * instruction.estimated_cycles / chip.clock
    if any(map(is_collective, module.inside(instruction).values())):
        return None, 0.0  # counted as traffic
    if max((array.size for array in instruction.arrays), default=0) <= _SCALARS:
        return None, 0.0
    scheduled = kernel_cycles.get(kernel_code(instruction))
    if scheduled is None:
        return _By.BYTES, bytes_ / chip.hbm_bandwidth
    # Its transfers between HBM and vector memory go beside the computation.
    return _By.SCHEDULE, max(bytes_ / chip.hbm_bandwidth, visit.times * scheduled / chip.clock)


def kernel_code(instruction: Instruction) -> str:
    """Returns the code of a Pallas kernel, a Mosaic module in base64; "" for any other instruction."""
    if instruction.target != KERNEL:
        return ""
    return instruction.settings.get("custom_call_config", {}).get("body", "")


def is_collective(instruction: Instruction) -> bool:
    """Returns whether an instruction exchanges data between chips."""
    return re.sub(r"-(start|done)$", "", instruction.opcode) in KINDS


def _only_moves(module: Module, instruction: Instruction) -> bool:
    if instruction.opcode == "fusion":
        inside = module.inside(instruction)
        return bool(inside) and all(part.opcode in _MOVES for part in inside.values())
    return instruction.opcode in _MOVES


def hbm_bytes(module: Module, visit: Visit) -> float:
    """Returns the bytes that one execution of an instruction reads from and writes to HBM.

    If it reads or updates slices of an array, as a scan does with the parameters of all layers, only the
    slices count. Arrays in the core's own memory do not count.
    """
    instruction = visit.instruction
    if instruction.opcode in _PREFETCHES:
        ends = instruction.arrays[:2]  # source and destination, one of which is the slice
        return min(array.bytes for array in ends) * sum(array.space == 0 for array in ends)
    if instruction.opcode == "fusion":
        return _fusion_bytes(module, visit)
    arrays = [*visit.operand_arrays(), *instruction.arrays]
    if instruction.opcode in ("dynamic-slice", "gather", "slice"):
        arrays = [*instruction.arrays, *instruction.arrays]
    elif instruction.opcode in ("dynamic-update-slice", "scatter"):
        update = _output(
            visit.computation, instruction.operands[-1 if instruction.opcode == "scatter" else 1]
        )
        arrays = [*update, *update]
    return sum(array.bytes for array in arrays if array.space == 0)


def _fusion_bytes(module: Module, visit: Visit) -> float:
    inside = module.inside(visit.instruction)
    parameters = _parameters(inside)
    total = 0.0
    for index, name in enumerate(visit.instruction.operands):
        source = _output(visit.computation, name)
        if index in parameters and all(array.space == 0 for array in source):
            total += _read(module, inside, parameters[index])
    updates = list(_updates(module, inside))
    for array in visit.instruction.arrays:
        if array.space == 0:
            update = next((update for whole, update in updates if whole.size == array.size), array)
            total += update.bytes
    return total


def _parameters(computation: Computation) -> dict[int, Instruction]:
    """Returns the parameters of a computation by number; in the text they are in any order."""
    return {
        int(_PARAMETER.findall(part.attributes)[0]): part
        for part in computation.values()
        if part.opcode == "parameter"
    }


def _updates(module: Module, inside: Computation) -> Iterator[tuple[Array, Array]]:
    """Yields (whole array, update) for the in-place updates in a fusion and in the fusions inside it."""
    for part in inside.values():
        if part.opcode == "dynamic-update-slice":
            for update in _output(inside, part.operands[1]):
                yield part.arrays[0], update
        elif part.opcode == "fusion":
            yield from _updates(module, module.inside(part))


def _read(module: Module, inside: Computation, source: Instruction) -> float:
    """Returns the bytes of a parameter that a fusion reads."""
    whole = source.arrays[0].bytes
    total = 0.0
    for user in inside.values():
        for index, operand in enumerate(user.operands):
            if operand != source.name:
                continue
            if user.opcode == "bitcast":
                total += _read(module, inside, user)
            elif user.opcode == "fusion":
                nested = module.inside(user)
                parameter = _parameters(nested).get(index)
                total += _read(module, nested, parameter) if parameter else whole
            elif index == 0 and user.opcode in ("dynamic-slice", "gather", "slice"):
                total += user.arrays[0].bytes
            elif index == 0 and user.opcode == "dynamic-update-slice":
                continue  # in place
            else:
                return whole
    return min(total, whole)


def _output(computation: Computation, name: str) -> tuple[Array, ...]:
    instruction = computation.get(name)
    return instruction.arrays if instruction is not None else ()
