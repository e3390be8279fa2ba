"""The operations of a program that take the most time, each with its like of all layers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from bert_jax.estimate.analysis.hlo import Instruction

# Parts of an operation's name that are no modules of the model: transformations of jax, loops, and kernels'
# own scopes.
_NO_MODULE = re.compile(
    r"jit\(.*\)|jvp\(.*\)|transpose\(.*\)|vmap\(.*\)|rematted_computation|checkpoint|closed_call|while|body|"
    r"shard_map|pjit|custom_[a-z_]+|triton_attention_flops_\d+|"
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """One operation of a chip, with all iterations of the loop that it is in.

    Attributes:
        instruction: the operation.
        kind: what computes it.
        count: number of executions.
        seconds: its time, as estimated; 0 for one that goes on beside others.
        flops: FLOPs of its products, as far as they are known.
        bytes: bytes of memory that it reads and writes.
    """

    instruction: Instruction
    kind: str
    count: int
    seconds: float
    flops: float
    bytes: float


@dataclasses.dataclass
class Group:
    """The operations of one kind at one place of the model, in all layers; sums of `Cost`."""

    name: str
    kind: str
    count: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0


def find(costs: Iterable[Cost], most: int) -> list[Group]:
    """Returns at most this many groups of operations, the one that takes the most time first."""
    groups: dict[tuple[str, str], Group] = {}
    for cost in costs:
        key = place(cost.instruction), cost.kind
        group = groups.setdefault(key, Group(*key))
        group.count += cost.count
        group.seconds += cost.seconds
        group.flops += cost.flops
        group.bytes += cost.bytes
    by_time = sorted(groups.values(), key=lambda group: -group.seconds)
    return [group for group in by_time[:most] if group.seconds]


def place(instruction: Instruction) -> str:
    """Returns the modules that an operation belongs to, and its direction, without the number of a layer."""
    name = instruction.op_name
    if not name:
        return "added by the compiler"
    parts = [part for part in name.split("/") if not _NO_MODULE.fullmatch(part)]
    modules = [re.sub(r"_\d+$", "", re.sub(r"^layer\.", "", part)) for part in parts]
    # A scan within a scan repeats the names of its modules.
    kept = [part for i, part in enumerate(modules) if not i or part != modules[i - 1]]
    return "/".join(kept) + (", backward" if "transpose(" in name else "")
