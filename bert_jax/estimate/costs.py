"""The cost of a compiled step on a chip: traffic with other chips, time, bytes of memory and FLOPs."""

import base64
import dataclasses
import math
import os
import re
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epy

from bert_jax.estimate.hardware import Chip
from bert_jax.estimate.hlo import Array, Computation, Instruction, Module, Visit, trip_count, walk
from bert_jax.io import files

with epy.lazy_imports():
    from jax.experimental.mosaic import dialects
    from jaxlib.mlir import ir

# Traffic

# Bytes that a chip sends for each byte that it contributes, as a multiple of (n - 1) / n in a group of n
# chips, for ring algorithms.
_PASSES = {
    "all-reduce": 2.0,
    "reduce-scatter": 1.0,
    "all-gather": 1.0,
    "all-to-all": 1.0,
    "ragged-all-to-all": 1.0,
    "collective-broadcast": 1.0,
    "collective-permute": 1.0,
}

# Stands for an axis: traffic between slices, over the network of the data center.
SLICES = "slices"

# (slice, coordinates on its torus) of each device, in mesh order.
Positions = Sequence[tuple[int, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Collective:
    """Traffic of one instruction.

    `payload` is the size in bytes of the whole array that a group of chips gathers or reduces. `seconds` is
    the duration of one execution with no other traffic on the links.
    """

    kind: str
    axes: tuple[str, ...]  # axes of the mesh, or SLICES; empty if the groups cannot be read
    group: int  # number of chips
    payload: float
    times: int
    overlapped: bool  # whether it overlaps with computation
    seconds: float


def collectives(
    module: Module, mesh_shape: Mapping[str, int], chip: Chip, positions: Positions
) -> list[Collective]:
    """Returns every collective of a program for TPUs, on a mesh of axes with sizes in mesh order."""
    found = []
    begun: set[str] = set()
    for visit in walk(module):
        attributes = visit.instruction.attributes
        kind = visit.instruction.opcode.removesuffix("-start")
        transfer = re.search(r'_xla_megascale_transfer_type="(\w+)"', attributes)
        if kind == "send" and transfer:
            found.append(_between_slices(visit, transfer[1].lower().replace("_", "-"), chip, positions))
        if kind not in _PASSES:
            continue
        overlapped = visit.offloaded or visit.instruction.opcode.endswith("-start")
        if visit.fused and not visit.offloaded:
            parts = visit.computation.values()
            if kind == "all-reduce" and any(part.opcode == "dynamic-slice" for part in parts):
                kind = "reduce-scatter"  # The TPU compiler writes it as an all-reduce and slices of it.
            else:
                # A collective that is fused with the computation it overlaps with appears in the fusions that
                # start, continue and end it. Several collectives may have the same channel.
                overlapped = True
                starts = any("AsyncCollectiveStart" in part.attributes for part in parts)
                channel = re.search(r"channel_id=\d+", attributes)
                if channel and channel[0] in begun and not starts:
                    continue
                begun.update([channel[0]] if channel else [])
        found.append(_collective(visit, kind, overlapped, mesh_shape, chip, positions))
    return found


def _between_slices(visit: Visit, kind: str, chip: Chip, positions: Positions) -> Collective:
    """Returns the part of a collective that leaves the slice, where hosts exchange each chip's data."""
    slices = len({position[0] for position in positions})
    payload = sum(array.bytes for array in visit.operand_arrays())
    payload *= slices if kind == "all-gather" else 1
    seconds = _PASSES.get(kind, 1.0) * payload * (slices - 1) / slices / chip.dcn_bandwidth
    return Collective(kind, (SLICES,), slices, payload, visit.times, overlapped=True, seconds=seconds)


def _collective(
    visit: Visit,
    kind: str,
    overlapped: bool,
    mesh_shape: Mapping[str, int],
    chip: Chip,
    positions: Positions,
) -> Collective:
    devices = math.prod(mesh_shape.values())
    groups = replica_groups(visit.instruction.attributes, devices)
    axes: tuple[str, ...] = ()
    members = list(range(devices))
    if groups is not None:
        # The others wait for the group that spans the most slices.
        members = max(groups.tolist(), key=lambda group: len({positions[member][0] for member in group}))
        coordinates = np.unravel_index(groups, tuple(mesh_shape.values()))
        differ = (bool(np.any(along != along[:, :1])) for along in coordinates)
        axes = tuple(name for name, along in zip(mesh_shape, differ, strict=True) if along)
    payload = sum(array.bytes for array in visit.operand_arrays())
    payload *= len(members) if kind == "all-gather" else 1
    seconds = ring_seconds(kind, payload, chip, [positions[member] for member in members])
    return Collective(kind, axes, len(members), payload, visit.times, overlapped, seconds)


def replica_groups(attributes: str, devices: int) -> np.ndarray | None:
    """Returns the groups that a collective works in, int [groups, members], or None if they cannot be read.

    The members are partition numbers, which follow the order of the mesh. HLO has four notations: lists, an
    iota with a permutation, axes of a separate mesh, and the source-target pairs of a permute.
    """
    pairs = re.search(r"source_target_pairs=\{(\{[\d,{} ]*\})\}", attributes)
    if pairs:
        listed = [tuple(map(int, pair.split(","))) for pair in re.findall(r"\{([\d, ]+)\}", pairs[1])]
        return np.array(sorted({tuple(pair) for pair in listed if pair[0] != pair[1]} or {(0, 0)}))
    iota = re.search(r"replica_groups=(\[[\d,]+\])<=(\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    if iota:
        return _iota(iota[2]).reshape(_integers(iota[1]))
    axes = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", attributes)
    if axes:
        groups = _groups_of_axes(axes[1], axes[3])
        if axes[2] is None:
            return groups
        ids = _iota(axes[2]) if axes[2].startswith("[") else np.array(_integers(axes[2]))
        return ids[groups] if sorted(ids) == list(range(groups.size)) else None
    lists = re.search(r"replica_groups=\{((?:\{[\d, ]*\},? ?)*)\}", attributes)
    if lists is None:
        return None
    groups = [_integers(group) for group in re.findall(r"\{([\d, ]+)\}", lists[1])] or [list(range(devices))]
    return np.array(groups) if len(set(map(len, groups))) == 1 else None


def _integers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _iota(text: str) -> np.ndarray:
    """Returns the numbers of an array such as `[2,4]T(1,0)`: counted in rows of 4, and transposed."""
    sizes, _, order = text.partition("T")
    ids = np.arange(math.prod(_integers(sizes))).reshape(_integers(sizes))
    return (ids.transpose(_integers(order)) if order else ids).reshape(-1)


def _groups_of_axes(mesh: str, chosen: str) -> np.ndarray:
    """Returns the groups along the chosen axes (`'a':(1)2,'b'`) of a mesh (`'a'=4,'b'=2`).

    The result is int [groups, members]. `'a':(m)n` is the part of size n of an axis after a part of size m.
    """
    parts: dict[str, list[tuple[int, int | None]]] = {}
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        parts.setdefault(name, []).append((int(before or 1), int(size) if size else None))
    sizes, inside = [], []
    for name, text in re.findall(r"'([^']+)'=(\d+)", mesh):
        rest, done = int(text), 1
        for before, size in sorted(parts.get(name, []), key=lambda part: part[0]):
            size = size or int(text)
            sizes += [before // done, size]
            inside += [False, True]
            rest //= before // done * size
            done = before * size
        sizes.append(rest)
        inside.append(False)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    order = np.argsort(inside, kind="stable")
    members = math.prod(size for size, member in zip(sizes, inside, strict=True) if member)
    return ids.transpose(order).reshape(-1, members)


def ring_seconds(kind: str, payload: float, chip: Chip, members: Positions) -> float:
    """Returns the time of a collective of a group of chips, in seconds.

    The data crosses the torus inside each slice, and the network between slices, where each chip sends its
    part. Along each torus dimension, a chip sends over two links if the group spans a ring, and over one if
    it only spans a line. Groups that contain only some devices of a chip share its links with others, and the
    devices of one chip are assumed to be connected like neighboring chips.
    """
    numbers = {member[0] for member in members}
    slices = len(numbers)
    link = chip.link_bandwidth * min(1.0, len(members) / (len(set(members)) * chip.devices))
    if kind == "collective-permute":
        return payload / (chip.dcn_bandwidth if slices > 1 else link)
    passes = _PASSES.get(kind, 1.0)
    inside = len(members) // slices
    seconds = 0.0
    if inside > 1:
        first = [position for number, position in members if number == members[0][0]]
        sides = [len(set(along)) for along in zip(*first, strict=True)]
        links = sum(2 if side >= chip.wraps_at else 1 for side in sides if side > 1) or 1
        seconds += passes * payload * (inside - 1) / inside / (link * links)
    if slices > 1:
        seconds += passes * payload / inside * (slices - 1) / slices / chip.dcn_bandwidth
    return seconds


def _is_collective(instruction: Instruction) -> bool:
    return re.sub(r"-(start|done)$", "", instruction.opcode) in _PASSES


# Time

# Operations that take no time, or whose time is counted elsewhere.
_FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call",
    "partition-id", "replica-id", "after-all", "copy-done", "slice-done", "async-start", "async-update",
    "async-done", "optimization-barrier", "domain", "send", "send-done", "recv", "recv-done",
    "call-start", "call-update", "call-done", "copy-start", "slice-start",
}  # fmt: skip

_KERNEL = "tpu_custom_call"  # a Pallas kernel; the compiler's other custom calls are bookkeeping

# Operations with fewer elements run on the scalar unit, in parallel with the rest.
_SCALARS = 1024


@dataclasses.dataclass(frozen=True)
class Compute:
    """Time of one chip, without waiting for other chips.

    The keys of `seconds` are: "compute", the compiler's cycle estimates at the chip's clock rate; "kernels",
    Pallas kernels by their schedules or their bytes, whichever take longer; and "without_estimate", other
    operations by their bytes at HBM's rate.
    """

    seconds: dict[str, float]
    kernels: int  # number of executions of these kernels
    added: dict[str, int]  # number of executions of operations without an estimate, by kind


def compute(module: Module, chip: Chip, cycles: Mapping[str, float] = types.MappingProxyType({})) -> Compute:
    """Adds up the time of a program for TPUs.

    `cycles` is the result of `kernel_cycles`. Other kernels count as operations without an estimate.
    """
    seconds = dict.fromkeys(("compute", "kernels", "without_estimate"), 0.0)
    added: dict[str, int] = defaultdict(int)
    kernels = 0
    for visit in _operations(module):
        instruction = visit.instruction
        if instruction.opcode == "custom-call" and instruction.target != _KERNEL:
            continue
        moving = visit.times * hbm_bytes(module, visit) / chip.hbm_bandwidth
        if instruction.estimated_cycles is not None:
            seconds["compute"] += visit.times * instruction.estimated_cycles / chip.clock
        elif (scheduled := cycles.get(_kernel_code(instruction))) is not None:
            # Its transfers between HBM and vector memory overlap with the computation.
            seconds["kernels"] += max(moving, visit.times * scheduled / chip.clock)
            kernels += visit.times
        elif max((array.size for array in instruction.arrays), default=0) > _SCALARS and not any(
            map(_is_collective, module.inside(instruction).values())
        ):
            seconds["without_estimate"] += moving
            added[instruction.target or instruction.opcode] += visit.times
    return Compute(seconds, kernels, dict(added))


def unknown_loops(module: Module) -> int:
    """Returns the number of loops whose trip count cannot be read."""
    loops = (visit.instruction for visit in walk(module) if visit.instruction.opcode == "while")
    return sum(trip_count(module, loop) is None for loop in loops)


def _operations(module: Module) -> Iterator[Visit]:
    for visit in walk(module):
        instruction = visit.instruction
        if not (visit.fused or instruction.opcode in _FREE or _is_collective(instruction)):
            yield visit


# Cycles of Pallas kernels

# The bundles after register allocation. Later the compiler folds empty bundles, in which all units wait for a
# result, into the previous one. The count is within 10% of its cycle analysis, which only exists on v6e.
_SCHEDULE = re.compile(r"\d+-(.*)-\d+-schedule-analysis_packed-bundles-post-ra\.txt")
_GRID = re.compile(r"iteration_bounds = array<i64: ([\d, ]+)>")
_PARALLEL = re.compile(r"dimension_semantics = \[([^\]]*)\]")


def read_schedules(folder: str) -> dict[str, int]:
    """Returns the bundles of each instruction whose schedule the TPU compiler has written into a folder.

    The compiler schedules equal instructions once. See `hardware.Slices.prepare`.
    """
    bundles = {}
    for match in filter(None, map(_SCHEDULE.fullmatch, files.names(folder))):
        text = files.read(os.path.join(folder, match[0])).decode()
        if found := re.search(r"total scheduled bundles:\s+(\d+)", text):  # some of v4 have none
            bundles[match[1]] = int(found[1])
    return bundles


def kernel_cycles(module: Module, chip: Chip, bundles: Mapping[str, int]) -> dict[str, float]:
    """Returns the cycles that one execution of each Pallas kernel of a program takes, by its code.

    The compiler gives no estimates for Pallas kernels, but it has scheduled them: the bundles of one step of
    a kernel's grid are multiplied by the steps. They contain no transfers between HBM and vector memory,
    which overlap with the computation. Blocks that a kernel skips at run time count as if they were computed,
    and a step that contains a loop counts as if all of it were inside the loop. The result omits kernels
    without a schedule, which `read_schedules` returned, and kernels with loops of unknown length.
    """
    cycles: dict[str, float] = {}
    for visit in walk(module):
        code, name = _kernel_code(visit.instruction), visit.instruction.name
        if not code or name not in bundles or code in cycles:
            continue
        if math.isfinite(executions := kernel_executions(code, chip.cores)):
            cycles[code] = bundles[name] * executions
    return cycles


def _kernel_code(instruction: Instruction) -> str:
    """Returns the code of a Pallas kernel, a Mosaic module in base64; "" for any other instruction."""
    found = (
        re.search(r'"body": ?"([^"]+)"', instruction.attributes) if instruction.target == _KERNEL else None
    )
    return found[1] if found else ""


def kernel_executions(code: str, cores: int) -> float:
    """Returns the number of executions of a kernel's innermost block on the busiest of a chip's cores.

    It is infinite if the length of a loop is unknown.
    """
    context = ir.Context()
    context.allow_unregistered_dialects = True
    dialects.tpu.register_dialect(context)
    with context, ir.Location.unknown():
        operation = ir.Module.parse(base64.b64decode(code)).operation
        text, turns = str(operation.get_asm()), _turns(operation)
    bounds, semantics = _GRID.search(text), _PARALLEL.search(text)
    grid = _integers(bounds[1]) if bounds else []
    parallel = ["parallel" in part for part in semantics[1].split(",")] if semantics else []
    if any(parallel):
        first = parallel.index(True)
        grid[first] = math.ceil(grid[first] / cores)
    return turns * math.prod(grid)


def _turns(operation: Any) -> float:
    """Returns the number of iterations of the innermost loop inside an operation."""
    inside = (child.operation for region in operation.regions for block in region for child in block)
    turns = max(map(_turns, inside), default=1)
    if operation.name.endswith("scf.for"):
        first, end, step = (_constant(operand) for operand in list(operation.operands)[:3])
        length = (end - first) / step
        turns *= math.ceil(length) if math.isfinite(length) else math.inf
    return math.inf if operation.name.endswith("scf.while") else turns


def _constant(value: Any) -> float:
    """Returns the value of an integer that is a constant or a sum of constants; otherwise NaN."""
    if isinstance(value.owner, ir.Block):
        return math.nan
    owner = value.owner.operation
    if owner.name.endswith("arith.constant"):
        return float(ir.IntegerAttr(owner.attributes["value"]).value)
    return sum(map(_constant, owner.operands)) if owner.name.endswith("arith.addi") else math.nan


# Bytes

_PARAMETER = re.compile(r" parameter\((\d+)\)$")


def moved_bytes(module: Module) -> float:
    """Returns the bytes that a program reads from and writes to memory, as if there were no cache."""
    return sum(visit.times * hbm_bytes(module, visit) for visit in _operations(module))


def hbm_bytes(module: Module, visit: Visit) -> float:
    """Returns the bytes that one execution of an instruction reads from and writes to HBM.

    If it reads or updates slices of an array, as a scan does with the parameters of all layers, only the
    slices count. Arrays in the core's own memory and the workspace of cuBLAS do not count.
    """
    instruction = visit.instruction
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
    """Returns the parameters of a computation by number; the text may list them in any order."""
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
    """Returns the multiplications and additions of all matmuls that one GPU executes.

    This includes matmuls that the partitioner repeats on several GPUs, rematerialized matmuls, and calls of
    cuBLAS and of cuDNN's attention. The contents of other custom calls are not counted.
    """
    return sum(visit.times * instruction_flops(visit) for visit in walk(module))


def instruction_flops(visit: Visit) -> float:
    """Returns the FLOPs of one dot, or call of cuBLAS or cuDNN's attention; 0 for the rest."""
    instruction, target = visit.instruction, visit.instruction.target
    if target.startswith("__cublas$"):
        left = visit.computation[instruction.operands[0]].arrays[0]
        contracted = _backend_integers(instruction, "lhs_contracting_dimensions")
        return 2.0 * instruction.arrays[0].size * math.prod(left.dims[axis] for axis in contracted)
    if target.startswith("__cudnn$fmha"):
        # The backward pass recomputes the scores (Dao et al. 2022).
        products = 5 if target.endswith("Backward") else 2
        scores = math.prod(_backend_integers(instruction, "dimensions"))
        return 2.0 * products * scores * instruction.arrays[0].dims[-1]
    if instruction.opcode != "dot":
        return 0.0
    left = visit.computation[instruction.operands[0]].arrays[0]
    found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    contracted = [left.dims[axis] for axis in _integers(found[1])] if found else []
    return 2.0 * instruction.arrays[0].size * math.prod(contracted)


def _backend_integers(instruction: Instruction, name: str) -> list[int]:
    """Returns the first list with this name in the backend settings of an instruction."""
    found = re.search(rf'"{name}": ?\[([^\]]*)\]', instruction.attributes)
    return _integers(found[1]) if found else []
