"""The computation of a step on a chip: FLOPs, bytes, the compiler's cycle estimates, and a roofline."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from bert_jax.estimate.collectives import KINDS
from bert_jax.estimate.hlo import Array, Computation, Instruction, Module, Visit, trip_count, walk
from bert_jax.estimate.tpus import Chip

_PARAMETER = re.compile(r" parameter\((\d+)\)$")

# Operations that take no time, or whose time is counted elsewhere.
_FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call",
    "partition-id", "replica-id", "after-all", "copy-done", "slice-done", "async-start", "async-update",
    "async-done", "optimization-barrier", "domain", "send", "send-done", "recv", "recv-done",
    "call-start", "call-update", "call-done",
}  # fmt: skip
_PREFETCHES = ("copy-start", "slice-start")  # overlapped: their bytes count, their time does not

KERNEL = "tpu_custom_call"  # a Pallas kernel; the compiler's other custom calls are bookkeeping

# Operations with fewer elements run on the scalar unit, in parallel to the rest.
_SCALARS = 1024

# Number of [length, length] products in an attention kernel: two forward, and five backward, where the scores
# are computed again (Dao et al. 2022).
ATTENTION_FORWARD, ATTENTION_BACKWARD = 2, 5


@dataclasses.dataclass(frozen=True)
class Compute:
    """Time of one chip, without waiting for other chips."""

    estimated_seconds: float  # the compiler's cycle estimates at the chip's clock rate
    kernel_seconds: float  # Pallas kernels, by their schedules or their bytes, whichever take longer
    kernels: int  # number of executions of these kernels
    added_seconds: float  # rooflines of operations without a compiler estimate
    added: dict[str, int]  # number of executions of these operations, by kind
    unknown_loops: int  # number of loops whose trip count could not be read; they are counted once
    matrix_flops: float
    hbm_bytes: float

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
    """Adds up the time of a program for TPUs.

    Args:
        module: the compiled program.
        chip: the chip that it was compiled for.
        attention_flops: FLOPs of the attention kernels on one chip, over all layers and both directions,
            because neither the compiler nor `matrix_flops` looks into custom calls. Used only if there are
            such kernels.
        head_size: size of one dimension of each product in these kernels; if it is smaller than the matrix
            units, some of them are idle. None for products that fill them. Used only for kernels without
            cycles.
        kernel_cycles: the cycles of one execution of each Pallas kernel, by its `kernel_code`. Kernels that
            are not in it count as operations without an estimate.
    """
    seconds: dict[str, float] = defaultdict(float)  # by "cycles", "schedule" and "bytes"
    added: dict[str, int] = defaultdict(int)
    moved_bytes = 0.0
    kernels, attention, unscheduled = 0, 0, 0  # executions; the last one is of attention without cycles
    for visit in _operations(module):
        instruction = visit.instruction
        if instruction.opcode == "custom-call" and instruction.target != KERNEL:
            continue
        bytes_ = visit.times * hbm_bytes(module, visit)
        moved_bytes += bytes_
        source, time = _time(module, chip, visit, bytes_, kernel_cycles)
        seconds[source] += time
        kernels += visit.times * (source == "schedule")
        if source == "bytes":
            added[instruction.target or instruction.opcode] += visit.times
        if source and instruction.target == KERNEL:
            attention += visit.times
            unscheduled += visit.times * (source == "bytes")
    flops = matrix_flops(module)
    added_seconds = seconds["bytes"]
    if attention:
        flops += attention_flops
        idle = max(1.0, chip.matrix_side / head_size) if head_size else 1.0
        added_seconds += unscheduled / attention * attention_flops * idle / chip.peak_flops
    return Compute(
        estimated_seconds=seconds["cycles"],
        kernel_seconds=seconds["schedule"],
        kernels=kernels,
        added_seconds=added_seconds,
        added=dict(added),
        unknown_loops=unknown_loops(module),
        matrix_flops=flops,
        hbm_bytes=moved_bytes,
    )


def unknown_loops(module: Module) -> int:
    """Returns the number of loops whose trip count cannot be read."""
    loops = (visit.instruction for visit in walk(module) if visit.instruction.opcode == "while")
    return sum(trip_count(module, loop) is None for loop in loops)


def moved_bytes(module: Module) -> float:
    """Returns the bytes that a program reads from and writes to memory, as if there were no cache."""
    return sum(visit.times * hbm_bytes(module, visit) for visit in _operations(module))


def _operations(module: Module) -> Iterator[Visit]:
    for visit in walk(module):
        instruction = visit.instruction
        if not (visit.fused or instruction.opcode in _FREE or is_collective(instruction)):
            yield visit


def _time(module, chip, visit, bytes_, kernel_cycles):
    """Returns the source of the time of an operation, "" for one that takes no time, and its seconds."""
    instruction = visit.instruction
    if instruction.opcode in _PREFETCHES:
        return "", 0.0
    if instruction.estimated_cycles is not None:
        return "cycles", visit.times * instruction.estimated_cycles / chip.clock
    if any(map(is_collective, module.inside(instruction).values())):
        return "", 0.0  # counted as traffic
    if max((array.size for array in instruction.arrays), default=0) <= _SCALARS:
        return "", 0.0
    scheduled = kernel_cycles.get(kernel_code(instruction))
    if scheduled is None:
        return "bytes", bytes_ / chip.hbm_bandwidth
    # Its transfers between HBM and vector memory overlap with the computation.
    return "schedule", max(bytes_ / chip.hbm_bandwidth, visit.times * scheduled / chip.clock)


def kernel_code(instruction: Instruction) -> str:
    """Returns the code of a Pallas kernel, a Mosaic module in base64; "" for any other instruction."""
    if instruction.target != KERNEL:
        return ""
    return instruction.settings.get("custom_call_config", {}).get("body", "")


def is_collective(instruction: Instruction) -> bool:
    """Returns whether an instruction exchanges data between chips."""
    return re.sub(r"-(start|done)$", "", instruction.opcode) in KINDS


# Bytes


def hbm_bytes(module: Module, visit: Visit) -> float:
    """Returns the bytes that one execution of an instruction reads from and writes to HBM.

    If it reads or updates slices of an array, as a scan does with the parameters of all layers, only the
    slices count. Arrays in the core's own memory do not count, nor the workspace of cuBLAS.
    """
    instruction = visit.instruction
    if instruction.opcode in _PREFETCHES:
        ends = instruction.arrays[:2]  # source and destination, one of which is the slice
        return min(array.bytes for array in ends) * sum(array.space == 0 for array in ends)
    if instruction.opcode == "fusion":
        return _fusion_bytes(module, visit)
    arrays = [*visit.operand_arrays(), *instruction.arrays]
    if instruction.target.startswith("__cublas"):
        arrays = [*visit.operand_arrays(), *(array for array in instruction.arrays if array.dtype != "s8")]
    elif instruction.opcode in ("dynamic-slice", "gather", "slice"):
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


# FLOPs


def matrix_flops(module: Module) -> float:
    """Returns the multiplications and additions of all products that one chip executes.

    This includes products that the partitioner repeats on several chips, products of rematerialization, and
    calls of cuBLAS and of cuDNN's attention. The contents of other custom calls are not counted.
    """
    return sum(visit.times * instruction_flops(visit) for visit in walk(module))


def instruction_flops(visit: Visit) -> float:
    """Returns the FLOPs of one dot, convolution, or call of cuBLAS or cuDNN's attention; 0 for the rest."""
    instruction, target = visit.instruction, visit.instruction.target
    if target.startswith("__cublas$"):
        left = visit.computation[instruction.operands[0]].arrays[0]
        contracted = _backend_integers(instruction, "lhs_contracting_dimensions")
        return 2.0 * instruction.arrays[0].size * math.prod(left.dims[axis] for axis in contracted)
    if target.startswith("__cudnn$fmha"):
        products = ATTENTION_BACKWARD if target.endswith("Backward") else ATTENTION_FORWARD
        scores = math.prod(_backend_integers(instruction, "dimensions"))
        return 2.0 * products * scores * instruction.arrays[0].dims[-1]
    if instruction.opcode not in ("dot", "convolution"):
        return 0.0
    left, right = (visit.computation[name].arrays[0] for name in instruction.operands[:2])
    output = instruction.arrays[0]
    if instruction.opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        sizes = [left.dims[int(axis)] for axis in contracted[1].split(",") if axis] if contracted else []
        return 2.0 * output.size * math.prod(sizes)
    return _convolution_flops(left, right, output, instruction.attributes)


def _backend_integers(instruction: Instruction, name: str) -> list[int]:
    """Returns the first list with this name in the backend settings of an instruction."""
    found = re.search(rf'"{name}": ?\[([^\]]*)\]', instruction.attributes)
    return [int(number) for number in re.findall(r"\d+", found[1])] if found else []


def _convolution_flops(left: Array, right: Array, output: Array, attributes: str) -> float:
    """Returns the FLOPs of a convolution.

    The TPU compiler writes every product as a convolution, and the batch of a batched product as a spatial
    dimension whose window lies almost entirely in padding: only pairs that meet an element are counted.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    assert labels is not None, attributes
    inputs, kernel, outputs = labels.groups()
    window = re.search(r"window=\{([^}]*)\}", attributes)
    settings = dict(part.split("=") for part in window[1].split()) if window else {}
    pairs = 1
    for axis in (label for label in inputs if label.isdigit()):

        def setting(name: str, default: str, index: int = int(axis)) -> str:
            return settings[name].split("x")[index] if name in settings else default

        # Pairs (output position, kernel position) that meet padding, or the gaps of a dilated input, do not
        # count.
        size, dilation = left.dims[inputs.index(axis)], int(setting("lhs_dilate", "1"))
        positions = (
            np.arange(output.dims[outputs.index(axis)])[:, None] * int(setting("stride", "1"))
            - int(setting("pad", "0_0").partition("_")[0])
            + np.arange(right.dims[kernel.index(axis)]) * int(setting("rhs_dilate", "1"))
        )
        inside = (positions >= 0) & (positions < (size - 1) * dilation + 1) & (positions % dilation == 0)
        pairs *= int(np.count_nonzero(inside))
    batch = output.dims[outputs.index("b")]
    features = output.dims[outputs.index("f")]
    per_group = right.dims[kernel.index("i")]
    groups = re.search(r"batch_group_count=(\d+)", attributes)
    return 2.0 * batch * features * per_group * pairs / (int(groups[1]) if groups else 1)
