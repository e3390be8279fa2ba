"""The traffic between chips in a compiled program: its kind, size, mesh axes and duration."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.estimate.hlo import Module, Visit, walk
from bert_jax.estimate.tpus import Chip

# Bytes that a chip sends for each byte that it contributes, as a multiple of (n - 1) / n in a group of n
# chips, for ring algorithms.
_PASSES = {
    "all-reduce": 2.0,
    "reduce-scatter": 1.0,
    "all-to-all": 1.0,
    "ragged-all-to-all": 1.0,
    "collective-broadcast": 1.0,
    "collective-permute": 1.0,
}
KINDS = (*_PASSES, "all-gather")

# Stands for an axis: traffic between slices, over the network of the data center.
SLICES = "slices"

# (slice, coordinates on its torus) of each device, in mesh order.
Positions = Sequence[tuple[int, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Collective:
    """Traffic of one instruction.

    `payload` is the size in bytes of the whole array that a group of chips gathers or reduces. `seconds` is
    the duration of one execution with no other traffic on the links, 0 if the chip's links are not known.
    """

    kind: str
    axes: tuple[str, ...]  # axes of the mesh, or SLICES; empty if the groups cannot be read
    group: int  # number of chips
    payload: float
    times: int
    overlapped: bool  # whether it overlaps with computation
    seconds: float
    op_name: str

    @property
    def total_bytes(self) -> float:
        """Returns the bytes of all executions."""
        return self.payload * self.times

    @property
    def total_seconds(self) -> float:
        """Returns the time of all executions."""
        return self.seconds * self.times


def find(
    module: Module, mesh_shape: Mapping[str, int], chip: Chip | None, positions: Positions
) -> list[Collective]:
    """Returns every collective of a program.

    Args:
        module: the compiled program.
        mesh_shape: axis -> size, in mesh order.
        chip: the chip; None to compute no times.
        positions: positions of the mesh's devices.
    """
    found = []
    begun: set[str] = set()
    for visit in walk(module):
        kind = visit.instruction.opcode.removesuffix("-start")
        transfer = re.search(r'_xla_megascale_transfer_type="(\w+)"', visit.instruction.attributes)
        if kind == "send" and transfer:
            assert chip is not None  # only TPUs have slices
            found.append(_between_slices(visit, transfer[1].lower().replace("_", "-"), chip, positions))
        if kind not in KINDS:
            continue
        # The GPU compiler writes synchronous collectives as a start and an end, too.
        overlapped = visit.instruction.opcode.endswith("-start")
        overlapped &= '"is_sync":true' not in visit.instruction.attributes
        if visit.offloaded:
            overlapped = True
        elif visit.fused and kind == "all-reduce" and _is_sliced(visit):
            kind = "reduce-scatter"
        elif visit.fused:
            # A collective that is fused with the computation it overlaps with appears in the fusions that
            # start, continue and end it. Several collectives may have the same channel.
            overlapped = True
            channel = re.search(r"channel_id=\d+", visit.instruction.attributes)
            if channel and channel[0] in begun and not _is_started(visit):
                continue
            if channel:
                begun.add(channel[0])
        found.append(_collective(visit, kind, overlapped, mesh_shape, chip, positions))
    return found


def _between_slices(visit: Visit, kind: str, chip: Chip, positions: Positions) -> Collective:
    """Returns the part of a collective that leaves the slice.

    Hosts exchange what each chip sends, asynchronously.
    """
    slices = len({position[0] for position in positions})
    payload = sum(array.bytes for array in visit.operand_arrays())
    payload *= slices if kind == "all-gather" else 1
    passes = _PASSES.get(kind, 1.0)
    return Collective(
        kind=kind,
        axes=(SLICES,),
        group=slices,
        payload=payload,
        times=visit.times,
        overlapped=True,
        seconds=passes * payload * (slices - 1) / slices / chip.dcn_bandwidth,
        op_name=visit.instruction.op_name,
    )


def _is_started(visit: Visit) -> bool:
    """Returns whether a fusion starts an asynchronous collective."""
    return any("AsyncCollectiveStart" in part.attributes for part in visit.computation.values())


def _is_sliced(visit: Visit) -> bool:
    """Returns whether a fusion is a reduce-scatter.

    The TPU compiler writes one as a fusion of an all-reduce and slices of its result.
    """
    return any(part.opcode == "dynamic-slice" for part in visit.computation.values())


def _collective(
    visit: Visit, kind: str, overlapped: bool, mesh_shape, chip: Chip | None, positions: Positions
) -> Collective:
    instruction = visit.instruction
    devices = math.prod(mesh_shape.values())
    groups = replica_groups(instruction.attributes, devices)
    group = devices if groups is None else groups.shape[1]
    payload = sum(array.bytes for array in visit.operand_arrays())
    if kind == "all-gather":
        payload *= group
    members = range(devices) if groups is None else _widest(groups, positions)
    members = [positions[member] for member in members]
    return Collective(
        kind=kind,
        axes=() if groups is None else axes_of(groups, mesh_shape),
        group=group,
        payload=payload,
        times=visit.times,
        overlapped=overlapped,
        seconds=0.0 if chip is None else _seconds(kind, payload, chip, members),
        op_name=instruction.op_name,
    )


def _widest(groups: np.ndarray, positions: Positions) -> np.ndarray:
    """Returns the group that spans the most slices, because the others wait for it."""
    return max(groups, key=lambda group: len({positions[member][0] for member in group}))


def replica_groups(attributes: str, devices: int) -> np.ndarray | None:
    """Returns the groups that a collective works in, int [groups, members], or None if they cannot be read.

    The members are partition numbers, which follow the order of the mesh. HLO has four notations: lists, an
    iota with a permutation, axes of a separate mesh, and the source-target pairs of a permute.
    """
    pairs = re.search(r"source_target_pairs=\{(\{[\d,{} ]*\})\}", attributes)
    if pairs:
        listed = [tuple(map(int, pair.split(","))) for pair in re.findall(r"\{([\d, ]+)\}", pairs[1])]
        return np.array(sorted({tuple(pair) for pair in listed if pair[0] != pair[1]} or {(0, 0)}))
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if iota:
        shape, source, order = (
            [int(n) for n in part.split(",")] if part else [] for part in iota.groups(default="")
        )
        ids = np.arange(math.prod(source)).reshape(source)
        return (ids.transpose(order) if order else ids).reshape(shape)
    axes = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", attributes)
    if axes:
        groups = _groups_of_axes(axes[1], axes[3])
        ids = _device_ids(axes[2], groups.size)
        return None if ids is None else ids[groups]
    lists = re.search(r"replica_groups=\{((?:\{[\d, ]*\},? ?)*)\}", attributes)
    if lists is None:
        return None
    groups = [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d, ]+)\}", lists[1])]
    if not groups:
        return np.arange(devices)[None]
    return np.array(groups) if len({len(group) for group in groups}) == 1 else None


def _device_ids(text: str | None, devices: int) -> np.ndarray | None:
    """Returns the ids of a mesh whose devices are permuted, from `[2,4]T(1,0)` or from a list."""
    if text is None:
        return np.arange(devices)
    iota = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota:
        ids = np.arange(devices).reshape([int(n) for n in iota[1].split(",")])
        return (ids.transpose([int(n) for n in iota[2].split(",")]) if iota[2] else ids).reshape(-1)
    listed = [int(n) for n in re.findall(r"\d+", text)]
    return np.array(listed) if sorted(listed) == list(range(devices)) else None


def _groups_of_axes(mesh: str, chosen: str) -> np.ndarray:
    """Returns the groups along some axes of a mesh.

    Args:
        mesh: axes and sizes, like `'a'=4,'b'=2`.
        chosen: the axes of a group, like `'a':(1)2,'b'`. An entry `'a':(m)n` is the part of size n of an axis
            that comes after a part of size m.
    """
    parts: dict[str, list[tuple[int, int | None]]] = {}
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        parts.setdefault(name, []).append((int(before or 1), int(size) if size else None))
    sizes, inside = [], []
    for name, text in re.findall(r"'([^']+)'=(\d+)", mesh):
        rest = int(text)
        done = 1
        for before, size in sorted(parts.get(name, []), key=lambda part: part[0]):
            size = size or int(text)
            sizes += [before // done, size]
            inside += [False, True]
            rest //= before // done * size
            done = before * size
        sizes.append(rest)
        inside.append(False)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    order = [i for i, member in enumerate(inside) if not member] + [i for i, m in enumerate(inside) if m]
    members = math.prod(size for size, member in zip(sizes, inside, strict=True) if member)
    return ids.transpose(order).reshape(-1, members)


def axes_of(groups: np.ndarray, mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes along which the members of a group differ."""
    coordinates = np.unravel_index(groups, tuple(mesh_shape.values()))
    return tuple(
        name for name, along in zip(mesh_shape, coordinates, strict=True) if np.any(along != along[:, :1])
    )


def _seconds(kind: str, payload: float, chip: Chip, members: Positions) -> float:
    """Returns the time of a collective in seconds.

    The data crosses the torus inside each slice, and the network between slices, where each chip sends its
    share.
    """
    if kind == "collective-permute":
        slices = {member[0] for member in members}
        return payload / (chip.dcn_bandwidth if len(slices) > 1 else chip.link_bandwidth)
    passes = _PASSES.get(kind, 1.0)
    slices = len({member[0] for member in members})
    inside = len(members) // slices
    seconds = 0.0
    if inside > 1:
        first = members[0][0]
        links = _links(chip, [position for number, position in members if number == first])
        seconds += passes * payload * (inside - 1) / inside / (chip.link_bandwidth * links)
    if slices > 1:
        seconds += passes * payload / inside * (slices - 1) / slices / chip.dcn_bandwidth
    return seconds


def _links(chip: Chip, coordinates: list[tuple[int, ...]]) -> int:
    """Returns the number of links that a chip sends along at the same time.

    There are two for each torus dimension in which the group spans a ring, and one if it only spans a line.
    """
    sides = [len(set(along)) for along in zip(*coordinates, strict=True)]
    return sum(2 if side >= chip.wraps_at else 1 for side in sides if side > 1) or 1
